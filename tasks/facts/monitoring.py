"""Units of what watches the service, and when the files that they read were last written."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pyinfra.api import FactBase

from tasks.facts.sections import PRELUDE, Sections

_PROPERTIES = "ActiveState,UnitFileState,NeedDaemonReload,ActiveEnterTimestamp"
_SCRIPT = """
daemon() { limit 20 systemctl show --timestamp=unix -p PROPERTIES -- "$1"; shift
  newest=$(stat -c %Y -- "$@" 2>/dev/null | sort -n | tail -n 1); echo "newest=${newest:-0}"; }
"""


class Monitoring(Sections):
    """Sections for tasks.plan.phases.monitoring.read, one a unit."""

    def command(self, units: Mapping[str, Sequence[str]]) -> str:
        """units: unit name -> the files that it reads at its start."""
        lines = [f"section {shlex.quote(unit)} daemon {shlex.join([unit, *files])}" for unit, files in units.items()]
        return "\n".join([PRELUDE, _SCRIPT.replace("PROPERTIES", _PROPERTIES), *lines])


class Unseen(FactBase[list[str]]):
    """What Prometheus does not see, a line each; [] where it sees everything."""

    @staticmethod
    def default() -> list[str]:
        return ["the host gave no answer about what Prometheus sees"]

    def command(self, words: Sequence[str]) -> str:
        """words: pd-metrics check, with its arguments."""
        return (
            f"{PRELUDE}told=$(limit 200 {shlex.join(words)} 2>&1) && echo '@@seen' || printf '@@unseen %s\\n' \"$told\""
        )

    def process(self, output: list[str]) -> list[str]:
        if "@@seen" in output:
            return []
        told = [line.removeprefix("@@unseen ").removeprefix("pd-metrics: ") for line in output]
        return [line for line in told if line.strip()] or self.default()
