"""Facts that read several things with one command: sections by name, each with its exit status.

A section is one line, its output in base64: whatever a file, a process or a name on the host holds, it cannot begin
another section. A mark that content cannot know would not do: it stands in the command line of the fact's own shell.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Mapping

from pyinfra.api import FactBase

from tasks.plan.host.answers import Answer

_SECTION = re.compile(r"@@section (\S.*) ([A-Za-z0-9+/=]*) ([0-9]+)")

# section NAME COMMAND...: one line with its name, output (stdout and stderr) and exit status. The command runs in this
#   shell and keeps its variables; its output goes through a file that has no name any more.
# limit SECONDS COMMAND...: ends with 124 or 137 where the command hangs.
PRELUDE = r"""_file=$(mktemp -p /run 2>/dev/null || mktemp) && exec 8>"$_file" 9<"$_file" && rm -f "$_file" || exit 1
section() { _name=$1; shift; "$@" >&8 2>&1; _status=$?
  printf '\n@@section %s %s %s\n' "$_name" "$(base64 -w0 <&9)" "$_status"; }
limit() { timeout -k 5 "$@"; }
"""


def text_in(variable: str, text: str) -> str:
    """Shell that puts a text which travels with the question, a tool of ours for example, into a variable."""
    return f"{variable}=$(cat <<'PD_END'\n{text}\nPD_END\n)"


class Sections(FactBase[Mapping[str, Answer]]):
    """Output of a command made of `section` calls. Empty where the host gave no answer.

    What is no section, such as the banner of a login, is not ours. Bytes that are no UTF-8 become U+FFFD.
    """

    abstract = True

    @staticmethod
    def default() -> Mapping[str, Answer]:
        return {}

    def process(self, output: list[str]) -> Mapping[str, Answer]:
        found = {}
        for line in filter(None, map(_SECTION.fullmatch, output)):
            with contextlib.suppress(ValueError):  # a line that was cut, or changed on its way, is not ours either
                found[line[1]] = Answer(int(line[3]), _text(line[2]))
        return found


def _text(encoded: str) -> str:
    """As a terminal would show it: without the last line break. Raises ValueError for what is no base64."""
    return base64.b64decode(encoded, validate=True).decode(errors="replace").removesuffix("\n")
