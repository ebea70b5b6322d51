"""All hosts finish a phase before one begins the next."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra import host
from pyinfra.api import StringCommand, operation


@operation()
def _meet() -> Generator[StringCommand, None, None]:
    """Yields nothing: a call that every host shares keeps their phases together (pyinfra orders by depth)."""
    host.noop("nothing to do")
    yield from ()


def barrier(phase: str) -> None:
    _meet(name=f"All hosts: {phase} done")
