"""Versions: of Python packages as PEP 440 orders them, of everything else by their leading numbers."""

from __future__ import annotations

import re

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def order(version: str) -> Version:
    """A package's version as something to sort by."""
    return Version(version)


def fits(version: str, specifier: str) -> bool:
    """Whether a version such as 0.5.13.post1 is one of a specifier such as >=0.5.13,<0.5.24. An empty one fits all."""
    return SpecifierSet(specifier).contains(version, prereleases=True)


def same(found: str, wanted: str) -> bool:
    """Whether an installed version is the wanted one; a local part such as +cu130 counts only where it is asked for.

    What an environment calls a version may be none by PEP 440: then it is not the wanted one.
    """
    try:
        return fits(str(order(found)), f"=={wanted}")
    except InvalidVersion:
        return False


def numbers(text: str) -> list[int]:
    """The leading numbers of a dotted version: [2, 36] of '2.36-9', [580, 95, 5] of '580.95.05'."""
    found: list[int] = []
    for part in text.split("."):
        digits = re.match(r"[0-9]+", part)
        if not digits:
            break
        found.append(int(digits[0]))
    return found


def at_least(version: str, minimum: str) -> bool:
    """Whether glibc, a distribution, a driver or a card is no older than another. Only leading numbers count."""
    return numbers(version) >= numbers(minimum)
