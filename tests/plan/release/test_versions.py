"""Versions compare as numbers, those of packages as PEP 440 says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.release.versions import at_least, fits, order, same


@pytest.mark.parametrize(
    ("version", "minimum"),
    [
        ("2.36", "2.34"),
        ("2.34", "2.34"),
        ("2.100", "2.34"),
        ("3", "2.34"),
        ("2.34.1", "2.34"),
        ("24.04", "22.04"),
        ("12", "12"),
        ("13", "12"),
        ("2.36-9+deb12u10", "2.34"),
    ],
)
def test_new_enough(version: str, minimum: str) -> None:
    assert at_least(version, minimum)


@pytest.mark.parametrize(
    ("version", "minimum"),
    [
        ("2.31", "2.34"),
        ("2.4", "2.34"),
        ("2", "2.34"),
        ("1.100", "2.34"),
        ("20.04", "22.04"),
        ("11", "12"),
        ("", "12"),
        ("sid", "12"),
        ("2.9-1ubuntu10", "2.34"),
        ("2.4rc50", "2.34"),
    ],
)
def test_too_old(version: str, minimum: str) -> None:
    assert not at_least(version, minimum)


NUMBERS = st.lists(st.integers(0, 400), min_size=1, max_size=4)


@given(NUMBERS, NUMBERS)
def test_versions_compare_as_lists_of_numbers(left: list[int], right: list[int]) -> None:
    assert at_least(".".join(map(str, left)), ".".join(map(str, right))) == (left >= right)


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("0.5.13.post1", ">=0.5.13", True),
        ("0.5.13.post1", ">0.5.13,<0.5.14", False),  # PEP 440: > leaves the post-releases of the same version out
        ("0.5.13.post1", ">=0.5.13.post1", True),
        ("0.5.13.post1", "==0.5.13", False),
        ("0.5.13", ">=0.5.13.post1", False),
        ("0.5.9", "<0.5.10", True),
        ("0.5.24rc1", ">=0.5.23", True),
        ("0.5.23", "", True),
    ],
)
def test_versions_and_specifiers(version: str, specifier: str, expected: bool) -> None:
    assert fits(version, specifier) is expected


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ("2.11.0+cu130", "2.11.0", True),
        ("2.11.0+cu130", "2.11.0+cu130", True),
        ("2.11.0", "2.11.0+cu130", False),
        ("2.11.0+cpu", "2.11.0+cu130", False),
        ("2.11", "2.11.0", True),
        ("0.5.13-1", "0.5.13.post1", True),  # spellings of one version
        ("0.5.13.post1", "0.5.13", False),
        ("2.11.0rc1", "2.11.0", False),
        ("2.12.0rc1", "2.12.0rc1", True),
        ("built here", "2.11.0", False),
    ],
)
def test_the_version_that_is_wanted(found: str, wanted: str, expected: bool) -> None:
    assert same(found, wanted) is expected


def test_a_post_release_is_newer_and_a_pre_release_older() -> None:
    assert sorted(["0.5.13.post1", "0.5.9", "0.5.13", "0.5.13rc1"], key=order) == [
        "0.5.9", "0.5.13rc1", "0.5.13", "0.5.13.post1",
    ]  # fmt: skip
