"""What the units of a host logged last that tells of a failure."""

from __future__ import annotations

import shlex

from pyinfra.api import FactBase

from tasks.plan.errors import one_line


class Logs(FactBase[list[str]]):
    """Lines of pd-logs, with what it says where it fails; none where that tool is not there."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, tool: str, units: list[str], limit: int = 120) -> str:
        """limit: seconds."""
        run = f"timeout -k 5 {limit} {shlex.quote(tool)} {shlex.join(units)} 2>&1"
        late = f"{{ status=$?; [ $status -lt 124 ] || echo 'pd-logs: no answer within {limit} s'; }}"
        return f"[ ! -x {shlex.quote(tool)} ] || {run} || {late}; true"

    def process(self, output: list[str]) -> list[str]:
        return [one_line(line) for line in output]
