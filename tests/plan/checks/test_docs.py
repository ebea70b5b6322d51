"""docs/refusals.md lists the checks as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks.plan.checks import CHECKS, table
from tasks.plan.settings.settings import NAMES

REFUSALS = Path(__file__).resolve().parents[3] / "docs" / "refusals.md"


def test_the_list_of_checks_is_the_codes() -> None:
    text = REFUSALS.read_text()
    assert text[text.index("| check | judges") :].strip() == table()


@pytest.mark.parametrize("id", CHECKS)
def test_a_check_says_what_it_judges_and_why(id: str) -> None:
    one = CHECKS[id]
    assert re.fullmatch(r"[a-z0-9]+/[a-z0-9]+/[a-z0-9]+", id)
    assert one.judges and one.source
    assert "\n" not in one.judges + one.source + one.ask
    assert set(one.settings) <= set(NAMES)
    assert not (one.never_silenced and not one.required)
