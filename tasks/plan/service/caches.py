"""What servers compiled at their start, by what they put into the caches of their release."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MOST = 6  # kinds that are named
LINE = re.compile(r" *(\d{1,9}) ([A-Za-z][A-Za-z0-9_-]{0,30})")


def read(lines: Sequence[str]) -> dict[str, int] | None:
    """Files by the cache that they lie in, from the fact Cached; None where the host could not tell.

    Servers name the folders: what is no plain name counts as "other".
    """
    if not lines or lines[0] != "counted":
        return None
    found: dict[str, int] = {}
    for line in lines[1:]:
        if plain := LINE.fullmatch(line):
            found[plain[2]] = int(plain[1])
        else:
            found["other"] = found.get("other", 0) + int((re.match(r" *(\d{1,9}) ", line) or ("", 0))[1])
    return found


def told(files: Mapping[str, int]) -> str:
    """ "the start of the servers put 88 new files into their caches: triton 88"."""
    total = sum(files.values())
    most = sorted(files.items(), key=lambda one: -one[1])[:MOST]
    of_each = ", ".join(f"{name} {count}" for name, count in most)
    new = f"{total} new file{'s' * (total != 1)}" if total else "no new file"
    return f"the start of the servers put {new} into their caches{': ' if most else ''}{of_each}"
