"""What a rehearsal concludes from what pyinfra and the node say."""

import json
from typing import Any

import pytest

from tests.node import rehearse
from tests.node.process import NodeError


def operation(name: str, success: int = 0, error: int = 0, no_change: int = 0) -> dict[str, Any]:
    hosts = {"success": success, "error": error, "no_change": no_change}
    return {"name": name, "names": [name], **{key: ["rehearsal"] * count for key, count in hosts.items()}}


def report(*operations: dict[str, Any], failed: tuple[str, ...] = ()) -> str:
    keys = ("success", "error", "no_change")
    totals = {key: sum(len(one[key]) for one in operations) for key in keys}
    totals["hosts"] = sum(totals.values())
    return json.dumps({"plan": [], "results": {"operations": operations, "totals": totals, "failed_hosts": failed}})


def test_counts() -> None:
    text = "the deploy printed this\n" + report(operation("A", success=1), operation("B", no_change=1))
    assert rehearse.read_report(text, 0) == rehearse.Run(operations=2, changed=["A"])


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("", 1, "the deploy failed: pyinfra ended with 1"),
        ("Traceback\n", 1, "the deploy failed: pyinfra ended with 1"),
        (report(operation("A", success=1), operation("B", error=1)), 1, "the deploy failed in: B"),
        (report(operation("A", no_change=1), failed=("rehearsal",)), 0, "the deploy failed"),
    ],
)
def test_failed_deploy(text: str, status: int, message: str) -> None:
    with pytest.raises(NodeError, match=message):
        rehearse.read_report(text, status)


def test_second_run_that_changes_something() -> None:
    rehearse.require_unchanged(rehearse.Run(operations=3, changed=[]))
    with pytest.raises(NodeError, match="the second run changed 2 of 3: Unit files; Launch scripts"):
        rehearse.require_unchanged(rehearse.Run(operations=3, changed=["Unit files", "Launch scripts"]))
