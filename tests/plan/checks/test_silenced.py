"""Silencing a check: by a known id, with a reason, and never one that no plan can do without."""

from __future__ import annotations

import pytest

from tasks.plan.checks.silenced import check_silenced
from tasks.plan.errors import PlanError
from tasks.plan.proof.judgement import IDS
from tests.plan.builders import settings


def lines(silenced: dict[str, str]) -> tuple[str, ...]:
    try:
        check_silenced(settings(silenced_checks=silenced).silenced_checks, IDS)
    except PlanError as error:
        return error.lines
    return ()


@pytest.mark.parametrize("check", ["pcie/width/full", "gpu/p2p/transfer", "proof/kv/share"])
def test_a_check_may_be_silenced_with_a_reason(check: str) -> None:
    assert lines({check: "riser of 8 lanes"}) == ()


def test_an_unknown_check_is_told_with_the_nearest_one() -> None:
    (line,) = lines({"pcie/widht/full": "riser"})
    assert line == "setting silenced_checks names no check 'pcie/widht/full'. Did you mean pcie/width/full?"


@pytest.mark.parametrize(
    "check", ["gpu/driver/answers", "gpu/placement/possible", "host/python/usable", "release/auto/fits"]
)
def test_what_no_plan_can_do_without_cannot_be_silenced(check: str) -> None:
    (line,) = lines({check: "never mind"})
    assert f"no plan can be made where {check} fails" in line


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_reason_must_say_something(reason: str) -> None:
    (line,) = lines({"pcie/width/full": reason}) if reason else _refused()
    assert "silenced_checks" in line


def _refused() -> tuple[str, ...]:
    with pytest.raises(PlanError) as error:
        settings(silenced_checks={"pcie/width/full": ""})
    return error.value.lines
