"""When servers of several hosts restart one at a time, and when all at once."""

from __future__ import annotations

import pytest

from tasks.plan.fleet.rollout import Found, at_once, found
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
    assert (made.serves, made.fits) == (True, fits)
    assert not found(after.workers[0], after, ABSENT, "", new.script.content.decode()).serves
