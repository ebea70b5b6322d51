"""What the units of a host logged last that tells of a failure."""

from __future__ import annotations

import shlex

from pyinfra.api import FactBase

from tasks.plan.errors import one_line


class Logs(FactBase[list[str]]):
    """Lines of pd-logs; none where that tool is not there."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, tool: str, units: list[str]) -> str:
        return f"[ ! -x {shlex.quote(tool)} ] || timeout 120 {shlex.quote(tool)} {shlex.join(units)}; true"

    def process(self, output: list[str]) -> list[str]:
        return [one_line(line) for line in output]
