"""Units of systemd, and what their processes left below /run."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections

_SCRIPT = """
left() { cat "$1" 2>/dev/null; true; }
files() { cd /etc/systemd/system && for unit in sglang-pd-*.service; do
  case $unit in *@*) continue ;; esac
  [ -f "$unit" ] && [ ! -L "$unit" ] || continue
  echo "$unit $(systemctl is-active -- "$unit" 2>/dev/null) $(base64 --wrap=0 <"$unit")"; done; true; }
"""
_PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,MainPID,NeedDaemonReload"


class Units(Sections):
    """Sections for tasks.plan.service.restarts.read_units: UNIT, 'UNIT fingerprint', 'UNIT gate', and
    files: a line for each unit file that may be ours: its name, its state, its text in base64."""

    def command(self, units: dict[str, str], target: str) -> str:
        """units: unit name -> folder of its process below /run."""
        lines = [PRELUDE, _SCRIPT, f"section files files; section {target} systemctl show -p {_PROPERTIES} {target}"]
        for unit, run in units.items():
            name = shlex.quote(unit)
            lines.append(f"section {name} systemctl show -p {_PROPERTIES} {name}")
            lines.append(f"section {shlex.quote(unit + ' fingerprint')} left {run}/fingerprint.json")
            lines.append(f"section {shlex.quote(unit + ' gate')} left {run}/gate.json")
        return "\n".join(lines)
