"""TCP ports that are taken, and who holds them."""

from __future__ import annotations

from tasks.facts.sections import PRELUDE, Sections

_SCRIPT = r"""
owners() { limit 20 ss -Hltnp | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -un | while read -r p; do owner "$p"; done; }
section listeners limit 20 ss -Hltnp
section owners owners
"""


class Listeners(Sections):
    """Sections for tasks.plan.host.answers.read_listeners."""

    def command(self) -> str:
        return PRELUDE + _SCRIPT
