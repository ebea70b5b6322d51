"""TCP ports that are taken, and who holds them."""

from __future__ import annotations

from tasks.facts.sections import PRELUDE, Sections

_SCRIPT = r"""
owners() { ss -Hltnp | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -un | while read -r p; do
  unit=$(grep -o '[^/]*\.service' "/proc/$p/cgroup" 2>/dev/null | tail -n 1)
  printf '%s\t%s\t%s\n' "$p" "$unit" "$(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | cut -c1-80)"; done; }
section listeners ss -Hltnp
section owners owners
"""


class Listeners(Sections):
    """Sections for tasks.plan.host.read_listeners."""

    def command(self) -> str:
        return PRELUDE + _SCRIPT
