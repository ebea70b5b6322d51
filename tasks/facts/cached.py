"""What servers have put into the caches of their release since they were started."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pyinfra.api import FactBase

from tasks.facts.paths import AS_USER
from tasks.plan.service import caches

# One line a cache: number of files, name. By ctime, which nobody sets: a kernel compiled again counts too. In its first
# second a server writes nothing, and systemd's time is cut to seconds.
_LOOK = r"""
look() { since=$(for unit in "$@"; do systemctl show -p InactiveExitTimestamp --value --timestamp=unix "$unit"; done |
    sed -n 's/^@\([0-9][0-9]*\)$/\1/p' | sort -n | head -n 1)
  [ -n "$since" ] || return 0
  echo counted
  as_user "$user" find "$cache" -type f ! -name '*.pyc' -newerct "@$((since + 1))" -printf '%P\n' |
    awk -F/ '{kind = $1 == ".cache" ? $2 : $1; count[kind]++} END {for (kind in count) print count[kind], kind}'; }
"""


class Cached(FactBase[dict[str, int] | None]):
    """By cache the number of files; None where a unit was not started."""

    @staticmethod
    def default() -> None:
        return None

    def command(self, cache: str, user: str, units: Sequence[str]) -> str:
        given = f"cache={shlex.quote(cache)} user={shlex.quote(user)}"
        return f"{AS_USER}{_LOOK}{given}; look {shlex.join(units)}"

    def process(self, output: list[str]) -> dict[str, int] | None:
        return caches.read(output)
