"""Options of a systemd unit with the reasons for them, and what a user sets in their place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.plan.errors import nearest
from tasks.plan.settings.settings import Settings


@dataclass(frozen=True)
class Option:
    """NAME=VALUE, once for each value: systemd adds later ones to earlier ones."""

    name: str
    values: tuple[str, ...]
    reason: str

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={value}" for value in self.values)


def replaced(options: tuple[Option, ...], settings: Settings) -> tuple[Option, ...]:
    """Each option as the setting unit_options has it, where it names that option; one set to None is left out."""
    found = []
    for option in options:
        own = settings.unit_options.get(option.name)
        if own is None:
            found.append(option)
        elif own.value is not None:
            found.append(Option(option.name, (own.value,), f"setting unit_options: {own.reason}"))
    return tuple(found)


def unknown(settings: Settings, options: Iterable[Option]) -> list[str]:
    """A line for each name in unit_options that no unit has."""
    known = sorted({option.name for option in options})
    return [
        f"setting unit_options names {name}, which no unit of ours has.{nearest(name, known)} docs/security.md lists "
        "them"
        for name in settings.unit_options
        if name not in known
    ]
