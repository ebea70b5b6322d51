"""What a user can get wrong, as one line each."""

from __future__ import annotations

import re


class PlanError(ValueError):
    """Input that cannot be planned with. `lines` holds one line a fault: what, where, what to do."""

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


def without_passwords(text: str) -> str:
    """Text as it may be shown: no user and password of any URL in it."""
    return re.sub(r"(\w+://)[^/\s'\"@]+@", r"\1***@", text)


def nearest(name: str, known: list[str]) -> str:
    """' Did you mean X?' for the known name nearest to `name`, or ''."""
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {found[0]}?" if found else ""
