"""TCP ports that are taken, and who holds them: by the kernel's numbers, since a process chooses its own name."""

from __future__ import annotations

from tasks.facts.owners import OWNER
from tasks.facts.sections import PRELUDE, Sections

# listeners: address and inode of each socket that listens. sockets: those inodes with the processes that hold them.
_SCRIPT = r"""
listeners() { for f in /proc/net/tcp /proc/net/tcp6; do [ ! -e "$f" ] || awk '$4 == "0A" {print $2, $10}' "$f"; done; }
sockets() { limit 20 find /proc/[0-9]*/fd -maxdepth 1 -lname 'socket:*' -printf '%h %l\n' 2>/dev/null |
  sed -n 's|^/proc/\([0-9]*\)/fd socket:\[\([0-9]*\)\]$|\2 \1|p' |
  awk -v wanted="$(listeners | cut -d' ' -f2 | tr '\n' ' ')" \
    'BEGIN {split(wanted, list, " "); for (i in list) held[list[i]]} $1 in held'; }
_sockets=$(sockets)
section listeners listeners
section sockets echo "$_sockets"
owners() { echo "$_sockets" | cut -s -d' ' -f2 | sort -un | while read -r p; do owner "$p"; done; }
section owners owners
"""


class Listeners(Sections):
    """Sections for tasks.plan.host.answers.read_listeners."""

    def command(self) -> str:
        return PRELUDE + OWNER + _SCRIPT
