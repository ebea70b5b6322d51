"""Units of systemd, and what root left of their starts below /run."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.service.paths import WATCHDOG

# left FILE: only where nobody but root can have written it; once its folder was the service user's.
_LEFT = """
left() { [ "$(stat -c %u "${1%/*}" "$1" 2>/dev/null | sort -u)" = 0 ] && [ -f "$1" ] && cat "$1"; true; }
"""
_FILES = """
files() { cd /etc/systemd/system && for unit in sglang-pd-*.service; do
  case $unit in *@*) continue ;; esac
  [ -f "$unit" ] && [ ! -L "$unit" ] || continue
  echo "$unit $(systemctl is-active -- "$unit" 2>/dev/null) $(base64 --wrap=0 <"$unit")"; done; true; }
section files files
drop_ins() { for unit in "$@"; do for place in /etc /run; do for kind in system system.control; do
  folder=$place/systemd/$kind/$unit.d; [ ! -d "$folder" ] || find "$folder" -mindepth 1 -maxdepth 1; done; done; done; }
"""
_PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Job"


def _shown(unit: str) -> str:
    name = shlex.quote(unit)
    return f"section {name} systemctl show -p {_PROPERTIES} {name}"


def _left(unit: str, what: str, run: str) -> str:
    return f"section {shlex.quote(f'{unit} {what}')} left {shlex.quote(f'{run}/{what}.json')}"


class Units(Sections):
    """Sections for tasks.plan.service.restarts.read_units: UNIT, 'UNIT fingerprint', and
    files: a line for each unit file that may be ours: its name, its state, its text in base64; drop-ins: paths."""

    def command(self, units: dict[str, str], target: str) -> str:
        """units: unit name -> folder of its process below /run."""
        drop_ins = f"section drop-ins drop_ins {shlex.join([*units, WATCHDOG])}"
        lines = [PRELUDE, _LEFT, _FILES, drop_ins, _shown(target), _shown(WATCHDOG)]
        for unit, run in units.items():
            lines += [_shown(unit), _left(unit, "fingerprint", run)]
        return "\n".join(lines)


class Gates(Sections):
    """Sections for tasks.plan.service.restarts.read_gates: UNIT, 'UNIT gate'."""

    def command(self, units: dict[str, str]) -> str:
        """units: as for Units."""
        lines = [PRELUDE, _LEFT]
        for unit, run in units.items():
            lines += [_shown(unit), _left(unit, "gate", run)]
        return "\n".join(lines)
