"""A pin that holds the host on another release than the settings ask for."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, healthy, warning


@check(
    "release/pin/none",
    "plan",
    judges="a rollback's pin that holds the host on another release than the settings ask for: warning",
    source="docs/releases.md: without a pin the next run would undo a rollback",
    settings=("rollback", "unpin"),
    ask="cat /etc/sglang-pd/pin.json",
)
def none(found: Found) -> Verdict:
    assert found.plan is not None
    pin = found.plan.pin
    if pin is None:
        return healthy("not pinned")
    return warning(
        f"{pin.told}; the settings ask for {found.plan.asked}",
        "to go on to that one, run with --data unpin=True",
    )
