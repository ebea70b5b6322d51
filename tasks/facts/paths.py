"""Files and folders as they are on the host."""

from __future__ import annotations

import shlex

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from tasks.plan.errors import PlanError
from tasks.plan.files import FoundPaths, read_paths

# One line a path: path, kind, mode, owner, group, value. Contents up to 256 KiB travel whole, so that a diff
# needs no second command.
_SCRIPT = r"""
for p in "$@"; do
  if [ -L "$p" ]; then k=link; v=$(readlink "$p")
  elif [ -d "$p" ]; then k=directory; v=
  elif [ -f "$p" ]; then k=file
    if [ "$(stat -c %s "$p")" -le 262144 ]; then v=$(base64 -w0 <"$p")
    else v=sha256:$(sha256sum <"$p" | cut -d' ' -f1); fi
  elif [ -e "$p" ]; then k=other; v=
  else printf '%s\tabsent\t\t\t\t\n' "$p"; continue
  fi
  printf '%s\t%s\t%s\t%s\n' "$p" "$k" "$(stat -c '%a	%U	%G' "$p")" "$v"
done
"""


class Paths(FactBase[FoundPaths]):
    """By path: kind, mode, owner, group, content. Folders and links are told apart from files."""

    @staticmethod
    def default() -> FoundPaths:
        return FoundPaths()

    def command(self, paths: list[str]) -> str:
        return f"set -- {' '.join(map(shlex.quote, paths))}; {_SCRIPT}"

    def process(self, output: list[str]) -> FoundPaths:
        try:
            return read_paths(output)
        except PlanError as error:
            raise FactProcessError(str(error)) from None
