"""What operations say while they run."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tasks.operations.progress import say


def test_no_words_of_a_server_or_user_move_the_cursor(caplog: pytest.LogCaptureFixture) -> None:
    host = cast(Any, SimpleNamespace(print_prefix="[gpu-1] "))
    with caplog.at_level(logging.INFO, logger="pyinfra"):
        say(host, "answered \x1b[2J\x1b]0;title\x07\nready")
    assert caplog.messages == ["[gpu-1] answered  [2J ]0;title ready"]
