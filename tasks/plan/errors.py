"""What a user can get wrong, as one line each."""

from __future__ import annotations

import re


class PlanError(ValueError):
    """Input that cannot be planned with. `lines` holds one line a fault: what, where, what to do.

    A line stays one, whatever the input that it quotes holds.
    """

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(map(one_line, lines))
        super().__init__("; ".join(self.lines))


def one_line(text: str) -> str:
    """Text as one line of a terminal, whatever it quotes."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


QUOTED = 240  # characters of a host's words in one line


def quoted(text: str) -> str:
    """What a host said, as a quotation: one line, cut where it grows longer than a quarter of a screen."""
    line = "; ".join(line.strip() for line in text.splitlines() if line.strip()) or "without a word"
    return line if len(line) <= QUOTED else f"{line[: QUOTED - 4]} ..."


def without_passwords(text: str) -> str:
    """Text as it may be shown: no user and password of any URL in it."""
    return re.sub(r"\b(\w+://)[^/\s'\"@]+@", r"\1***@", text)


def nearest(name: str, known: list[str]) -> str:
    """' Did you mean X?' for the known name nearest to `name`, or ''."""
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {found[0]}?" if found else ""
