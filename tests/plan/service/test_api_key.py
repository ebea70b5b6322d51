"""The key that clients must send: what is taken, how it is written, and how a started router is compared with it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.errors import PlanError
from tasks.plan.service.api_key import is_of, key_of, written
from tests.bin.tools import load

launch = load("pd-launch")


@pytest.mark.parametrize(
    "key", ["0123456789abcdef", 'it\'s "mine" and $(yours)', "#" * 16, "PD_API_KEY=0123456", "a" + " " * 14 + "b"]
)
def test_printable_keys_are_taken_as_they_are(key: str) -> None:
    assert written(key_of("PD_KEY", key)) == f"{key}\n".encode()


@pytest.mark.parametrize(
    "key",
    ["0123456789abcde", " 0123456789abcdef", "0123456789abcdef ", "0123456789abcdef\n", "01234567\n89abcdef",
     "schlüssel-schlüssel", "0123456789\tabcdef", "\x7f" * 20],
)  # fmt: skip
def test_a_key_that_no_client_could_send_is_refused_unshown(key: str) -> None:
    with pytest.raises(PlanError) as error:
        key_of("PD_KEY", key)
    (line,) = error.value.lines
    assert "PD_KEY, whose value is no key: take 16 or more printable ASCII characters" in line
    assert key.strip() not in line


def test_a_key_that_is_not_there() -> None:
    with pytest.raises(PlanError, match="names PD_KEY, which your environment does not hold: export it"):
        key_of("PD_KEY", "")


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_what_a_launch_left_is_compared_behind_its_salt(content: bytes, other: bytes) -> None:
    left = launch.salted(content)
    assert is_of(left, content)
    assert is_of(left, other) == (content == other)
    assert hashlib.sha256(content).hexdigest() not in left and launch.salted(content) != left


@pytest.mark.parametrize("left", [hashlib.sha256(b"key\n").hexdigest(), "", ":", "zz:00", None])
def test_what_an_earlier_version_left_is_of_no_key(left: str | None) -> None:
    assert not is_of(left, b"key\n")


def test_no_key_is_only_like_no_key() -> None:
    assert is_of(None, None)
    assert not is_of(launch.salted(b"key\n"), None)
