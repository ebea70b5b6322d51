"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], what: str, limit: float) -> None:
    """Returns once the condition holds; fails when it does not within `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"waited {limit:.0f} s in vain: {what}"
        time.sleep(0.5)
