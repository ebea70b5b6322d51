"""When servers of several hosts restart one at a time, and when all at once."""

from __future__ import annotations

import pytest

from tasks.plan.fleet.rollout import Found, at_once, found, turns
from tasks.plan.service.restarts import ABSENT, Running
from tasks.support import render
from tests.plan.builders import TWO_HOSTS, fleet_plans

GROUPS = {**TWO_HOSTS, "gpu-3": ("decode",)}
SERVERS = {"prefill": 1, "decode": 2}


def seen(serves: bool = True, fits: bool = True) -> list[Found]:
    return [Found("prefill", "prefill", True, True), Found("decode", "decode", serves, fits)]


def test_where_another_of_its_role_serves_one_at_a_time() -> None:
    assert at_once(seen(), SERVERS) is None


def test_where_nothing_serves_yet_all_start_together_without_a_word() -> None:
    assert at_once([Found("decode", "decode", False, False)], SERVERS) == ""


def test_kv_of_two_kinds_is_never_exchanged() -> None:
    assert "must exchange none" in (at_once(seen(fits=False), SERVERS) or "")
    assert at_once(seen(serves=False, fits=False), SERVERS) is None, "what does not run exchanges nothing"


def test_with_one_server_of_each_role_nothing_is_won() -> None:
    assert "one server of each role" in (at_once(seen(), {"prefill": 1, "decode": 1}) or "")


def test_where_no_server_of_a_role_stays_where_the_router_finds_it_none_waits_for_its_turn() -> None:
    moves = Found("decode", "decode", serves=True, fits=True, moves=True)
    assert "every decode gets another address or port" in (at_once([moves, moves], SERVERS) or "")
    assert at_once([moves, Found("decode", "decode", serves=True, fits=True)], SERVERS) is None


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"decode_cuda_graph_max_batch": 32}, True),
        ({"decode_mem_fraction": 0.5}, True),
        ({"model": "deepseek-v4-flash-mxfp4"}, False),
        ({"transfer_backend": "mooncake"}, False),
        ({"release": "sglang-0.5.17-cu130"}, False),
    ],
)
def test_kv_stays_the_same_unless_release_model_or_its_kind_changes(changes: dict[str, object], fits: bool) -> None:
    before = fleet_plans(GROUPS)["gpu-2"]
    after = fleet_plans(GROUPS, **dict.fromkeys(("gpu_1", "gpu_2", "gpu_3"), changes))["gpu-2"]
    old, new = (render.instance_files(plan, plan.workers[0]) for plan in (before, after))
    running = Running("active", "running", True, False, old.fingerprint)
    made = found(after.workers[0], after, running, old.script.content.decode(), new.script.content.decode())
    assert (made.serves, made.fits, made.moves) == (True, fits, False)
    assert not found(after.workers[0], after, ABSENT, "", new.script.content.decode()).serves


def test_prefill_has_its_turn_with_the_lone_decode_server_that_takes_it_along() -> None:
    plan = fleet_plans({"gpu-1": ("prefill", "decode", "router"), "gpu-2": ("decode",)})["gpu-1"]
    prefill, decode = plan.workers
    assert turns(plan.workers, plan) == [(prefill, decode)]
    assert turns([prefill], plan) == [(prefill,)]
    two = fleet_plans(GROUPS, gpu_2={"decode_instances": 2})["gpu-2"]
    assert turns(two.workers, two) == [(one,) for one in two.workers]


@pytest.mark.parametrize(
    ("host", "changes", "moves"),
    [
        ("gpu-2", {"decode_port": 30101}, True),
        ("gpu-2", {"decode_bootstrap_port": 9101}, False),
        ("gpu-2", {"decode_mem_fraction": 0.5}, False),
        ("gpu-1", {"prefill_bootstrap_port": 9101}, True),
    ],
)
def test_a_server_moves_with_its_address_and_ports(host: str, changes: dict[str, object], moves: bool) -> None:
    before, after = fleet_plans(GROUPS)[host], fleet_plans(GROUPS, **{host.replace("-", "_"): changes})[host]
    old, new = (render.instance_files(plan, plan.workers[0]) for plan in (before, after))
    running = Running("active", "running", True, False, old.fingerprint)
    made = found(after.workers[0], after, running, old.script.content.decode(), new.script.content.decode())
    assert (made.fits, made.moves) == (True, moves)
