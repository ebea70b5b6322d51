"""What `make start` and `make restart` ask of systemd."""

from __future__ import annotations

import pytest

from tasks.operations.upkeep import starting
from tasks.plan.service.installed import Installed

RUNS, HALF = (
    {"sglang-pd-decode.service": "active", "sglang-pd-router.service": state} for state in ("active", "failed")
)


@pytest.mark.parametrize("units", [RUNS, HALF])
@pytest.mark.parametrize("again", [True, False])
def test_whatever_ran_before_nobody_has_stopped_it_afterwards(units: dict[str, str], again: bool) -> None:
    first, *then = starting(Installed(units, has_passed=True), at_boot=True, again=again)
    assert "rm -f /var/lib/sglang-pd-playbook/stopped.json; systemctl enable -q sglang-pd.target" in first
    assert [f"systemctl {'restart' if again else 'start'} --no-block" in one for one in then] == [True] * len(then)
    assert bool(then) == (again or units is HALF), "what runs goes on"


def test_the_setting_says_whether_it_comes_back_at_boot() -> None:
    assert "systemctl disable -q" in starting(Installed(RUNS, has_passed=True), at_boot=False, again=False)[0]
