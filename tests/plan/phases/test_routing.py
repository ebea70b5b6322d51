"""The list that a router of several hosts reads."""

from __future__ import annotations

import json

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.phases.routing import listed, lone, of_host, shortened, workers_file
from tests.plan.builders import TWO_HOSTS, fleet_plans

GROUPS = {**TWO_HOSTS, "gpu-3": ("decode",)}


def text(**changes: dict[str, object]) -> str:
    file = workers_file(fleet_plans(GROUPS, **changes)["gpu-1"])
    assert file is not None
    return file.content.decode()


def test_a_server_leaves_the_list_and_comes_back_without_a_trace() -> None:
    whole = text()
    first, *others = listed(whole)
    left = json.loads(shortened(whole.rstrip("\n"), [first]))
    assert [one["url"] for one in left["workers"]] == others
    assert left["workers"] == json.loads(whole)["workers"][1:], "nothing else of it changes"
    assert shortened(whole.rstrip("\n")).decode() == whole


@pytest.mark.parametrize(
    "broken", ["", "garbage", "[]", '{"workers": 3}', '{"workers": [1]}', '{"workers": [{"url": "http://10.0.0.1:1"}]}']
)
def test_a_list_that_somebody_broke_is_one_line(broken: str) -> None:
    with pytest.raises(PlanError, match="cannot be read: run deploy"):
        shortened(broken)


def test_the_servers_of_a_host_are_known_by_its_addresses() -> None:
    every = listed(text(gpu_2={"decode_instances": 2}))
    host = next(url for url, role in every.items() if role == "decode").split("/")[2].partition(":")[0]
    own = of_host(every, ["127.0.0.1", host, "fe80::1"])
    assert [*own.values()] == ["decode on port 30001", "decode on port 30011"]
    assert of_host({"http://[fd00::7]:30001": "decode"}, ["fd00::7"]) == {"http://[fd00::7]:30001": "decode"}
    assert of_host(every, []) == {}


def test_the_last_of_a_role_is_told() -> None:
    every = listed(text())
    prefill, one, other = every
    assert lone(every, [prefill, one]) == ("no other host has a prefill server",)
    assert lone(every, [one]) == ()
    assert lone(every, [one, other]) == ("no other host has a decode server",)
