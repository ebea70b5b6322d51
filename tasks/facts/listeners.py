"""Sockets that take connections or packets, and who holds them, and whether systemd keeps others away from them.

Holders are told by the kernel's numbers, since a process chooses its own name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from tasks.facts.owners import OWNER
from tasks.facts.sections import PRELUDE, Sections

# listeners: protocol, address and inode of each socket that listens (tcp), or that no peer is tied to (udp). sockets:
# those inodes with the processes that hold them. enforced: a packet to loopback goes out of this shell, so it must not
# go out of a unit that may send none; "passed" where it does all the same.
_SCRIPT = r"""
listeners() { for p in tcp:0A tcp6:0A udp:07 udp6:07; do f=/proc/net/${p%:*}
  [ ! -e "$f" ] || awk -v state="${p#*:}" -v name="${p%%[6:]*}" '$4 == state {print name, $2, $10}' "$f"; done; }
sockets() { limit 20 find /proc/[0-9]*/fd -maxdepth 1 -lname 'socket:*' -printf '%h %l\n' 2>/dev/null |
  sed -n 's|^/proc/\([0-9]*\)/fd socket:\[\([0-9]*\)\]$|\2 \1|p' |
  awk -v wanted="$(listeners | cut -d' ' -f3 | tr '\n' ' ')" \
    'BEGIN {split(wanted, list, " "); for (i in list) held[list[i]]} $1 in held'; }
enforced() { send='echo >/dev/udp/127.0.0.1/9'; bash -c "$send" || return
  limit 20 systemd-run --quiet --wait --pipe --collect --property=IPAddressDeny=any \
    bash -c "if $send 2>/dev/null; then echo passed; else echo refused; fi"; }
_sockets=$(sockets)
section listeners listeners
section sockets echo "$_sockets"
owners() { echo "$_sockets" | cut -s -d' ' -f2 | sort -un | while read -r p; do owner "$p"; done; }
section owners owners
section enforced enforced
"""


class Listeners(Sections):
    """Sections for tasks.plan.host.answers.read_listeners, 'enforced' for the check of the filter, and one for each of
    `units`: the filter that systemd has for it."""

    def command(self, units: Iterable[str] = ()) -> str:
        show = "systemctl show -p IPAddressDeny,IPAddressAllow"
        lines = [f"section {name} {show} {name}" for name in map(shlex.quote, units)]
        return "\n".join([PRELUDE + OWNER + _SCRIPT, *lines])
