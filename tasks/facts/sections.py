"""Facts that read several things with one command: sections by name, each with its exit status."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyinfra.api import FactBase

from tasks.plan.host.answers import Answer

_MARK = re.compile(r"^@@section (\S.*) ([0-9]+)$")

# section NAME COMMAND...: its output (stdout and stderr), then a line with its name and exit status.
# limit SECONDS COMMAND...: ends with 124 or 137 where the command hangs.
PRELUDE = r"""section() { _name=$1; shift; "$@" 2>&1; _status=$?; printf "\n@@section %s %s\n" "$_name" "$_status"; }
limit() { timeout -k 5 "$@"; }
"""


class Sections(FactBase[Mapping[str, Answer]]):
    """Output of a command made of `section` calls. Empty where the host gave no answer."""

    abstract = True

    @staticmethod
    def default() -> Mapping[str, Answer]:
        return {}

    def process(self, output: list[str]) -> Mapping[str, Answer]:
        sections: dict[str, Answer] = {}
        lines: list[str] = []
        for line in output:
            mark = _MARK.match(line)
            if mark:
                if lines and not lines[-1]:
                    lines.pop()
                sections[mark[1]] = Answer(int(mark[2]), "\n".join(lines))
                lines = []
            else:
                lines.append(line)
        return sections
