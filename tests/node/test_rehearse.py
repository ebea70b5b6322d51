"""What a rehearsal concludes from what pyinfra and the node say."""

import json
from typing import Any

import pytest

from tests.node import rehearse, settings
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
    assert rehearse.read_report(text, 0) == rehearse.Run(operations=2, changed=["rehearsal: A"])


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


# ---- a user's own settings

MINE: dict[str, object] = {
    "layout": "data_parallel", "server_instances": 4, "server_tensor_parallel": 2, "router_port": 9000,
    "model_dir": "/data/models/mine", "router_host": "127.0.0.1",
}  # fmt: skip


def test_a_users_settings_are_planned_with_and_served_with_as_far_as_a_cpu_can() -> None:
    planned = settings.planned(MINE)
    assert (planned["server_instances"], planned["server_tensor_parallel"], planned["model_dir"]) == (4, 2, None)
    assert settings.played(MINE) == {"layout": "data_parallel", "server_instances": 2, "router_port": 9000}


def test_what_was_not_played_is_named() -> None:
    assert settings.left_out(MINE) == (["server_instances", "server_tensor_parallel", "router_host"], ["model_dir"])
    assert settings.left_out({"router_port": 9000}) == ([], [])


def test_every_setting_that_is_played_or_set_aside_is_there() -> None:
    known = settings.variables(settings.DEFAULTS)
    assert settings.PLAYED | settings.ELSEWHERE.keys() | settings.REHEARSAL.keys() <= known.keys()


def test_settings_that_are_not_there_are_one_line() -> None:
    with pytest.raises(
        NodeError, match=r"no settings gpu-9: there is no group_data/gpu-9\.py, and no file of this name"
    ):
        settings.own("gpu-9")
