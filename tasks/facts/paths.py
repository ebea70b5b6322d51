"""Files and folders as they are on the host."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pyinfra.api import FactBase

from tasks.plan.files import FoundPaths, read_paths

# One line a path: path, kind, mode, owner, group, value in base64. Contents up to 256 KiB travel whole, so that a diff
# needs no second command.
_LOOK = r"""
for p in "$@"; do
  if [ -L "$p" ]; then k=link; v=$(readlink -n "$p" | base64 -w0)
  elif [ -d "$p" ]; then k=directory; v=
  elif [ -f "$p" ]; then k=file
    if [ "$(stat -c %s "$p")" -le 262144 ]; then v=$(head -c 262144 "$p" | base64 -w0)
    else v=sha256:$(sha256sum <"$p" | cut -d' ' -f1); fi
  elif [ -e "$p" ]; then k=other; v=
  else printf '%s\tabsent\t\t\t\t\n' "$p"; continue
  fi
  printf '%s\t%s\t%s\t%s\n' "$p" "$k" "$(stat -c '%a	%U	%G' "$p")" "$v"
done
"""
# as_user USER COMMAND...: what a command prints as another user; where there is no such user yet, nothing is theirs.
# Root opens nothing below another user's folder: what lies there may be a link to anywhere, or a pipe that never ends.
# What comes back is that user's word, so it goes through a pipe of its own, within limits.
AS_USER = r"""
as_user() { _user=$1; shift
  if id -u "$_user" >/dev/null 2>&1; then timeout -k 5 60 runuser -u "$_user" -- "$@"; else "$@"; fi \
    </dev/null 2>/dev/null | timeout -k 5 60 head -c 4194304; }
"""


class Paths(FactBase[FoundPaths]):
    """By path: kind, mode, owner, group, content. Folders and links are told apart from files."""

    @staticmethod
    def default() -> FoundPaths:
        return FoundPaths()

    def command(self, paths: list[str], user: str = "", theirs: Sequence[str] = ()) -> str:
        """theirs: paths below folders of the user, looked at as that user."""
        look = f"sh -c {shlex.quote(_LOOK)} sh"
        of_user = f"as_user {shlex.quote(user)} {look} {shlex.join(theirs)}; echo\n" if theirs else ""
        return f"{AS_USER}{of_user}{look} {shlex.join(paths)}"  # root's own last: no other line stands against them

    def process(self, output: list[str]) -> FoundPaths:
        return read_paths(output)
