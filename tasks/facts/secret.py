"""A file with a secret: compared without its content leaving the host."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections

_SCRIPT = r"""
secret() { if [ -f "$1" ] && [ ! -L "$1" ]; then
    printf '%s\t%s\n' "$(stat -c 'file	%a	%U	%G' "$1")" "$({ printf %s "$2"; cat "$1"; } | sha256sum | cut -c1-64)"
  elif [ -e "$1" ] || [ -L "$1" ]; then echo other; fi; }
left() { for p in "$@"; do if [ -f "$p" ] || [ -L "$p" ]; then echo "$p"; fi; done; }
"""


class Secret(Sections):
    """Sections for tasks.plan.files.read_secret: secret, and left: those of some files that are there."""

    def command(self, path: str, salt: str, leftovers: list[str]) -> str:
        """salt: what the content is hashed behind."""
        return "\n".join(
            [
                PRELUDE,
                _SCRIPT,
                f"section secret secret {shlex.join([path, salt])}",
                f"section left left {shlex.join(leftovers)}",
            ]
        )
