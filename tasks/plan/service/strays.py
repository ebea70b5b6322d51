"""Servers and routers outside every unit of systemd that hold a port or a GPU of the plan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# By command line, or by the title that SGLang gives its processes. A process may call itself anything: this only keeps
# a run from ending what is plainly somebody else's, such as a database on the router's port.
_SERVER = re.compile(
    r"sglang::|(\S*/)?(python[0-9.]*|smg|sglang)( -\S+)* ?(-m )?"
    r"(sglang\.launch_server|sglang_router(\.launch_router)?|smg(\.launch_router)?|launch|serve)\b"
)


# Units that let people in or start what they ask for: where no session is made, what was started there stays in them.
_LOGINS = frozenset({"ssh.service", "sshd.service", "cron.service", "crond.service"})


@dataclass(frozen=True)
class Stray:
    """A process that a run may end where the setting end_strays says so."""

    pid: int
    command: str  # as the host told it, cut
    holds: str  # "port 8000", "GPU 3"


def is_stray(unit: str | None, command: str) -> bool:
    """Whether a process is a server or router of SGLang's outside every unit."""
    return (not unit or unit in _LOGINS) and _SERVER.match(command) is not None


def joined(found: Iterable[Stray]) -> tuple[Stray, ...]:
    """One entry a process, with all that it holds."""
    by_pid: dict[int, Stray] = {}
    for one in found:
        known = by_pid.get(one.pid)
        by_pid[one.pid] = Stray(one.pid, one.command, f"{known.holds}, {one.holds}") if known else one
    return tuple(by_pid[pid] for pid in sorted(by_pid))
