"""What pd-watchdog is told, and what its unit may do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.phases.watchdog import LONGEST_ROUND, watchdog_config
from tasks.plan.plan import Plan
from tasks.support import render
from tests.plan.builders import API_KEY, TWO_SOCKETS, catalogue_plan, fleet_plans, hardware


def told(plan: Plan) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(watchdog_config(plan).content)
    return content


def planned(**changes: object) -> Plan:
    return catalogue_plan(changes, hardware(TWO_SOCKETS))


def test_of_a_host_that_serves_alone_it_is_told_everything() -> None:
    config = told(planned())
    assert (config["url"], config["router"], config["whole"]) == (
        "http://127.0.0.1:8000",
        "sglang-pd-router.service",
        True,
    )
    assert config["servers"] == [
        {"unit": "sglang-pd-prefill.service", "role": "prefill", "url": "http://127.0.0.1:30000",
         "bootstrap": "127.0.0.1:8998", "takes": []},
        {"unit": "sglang-pd-decode.service", "role": "decode", "url": "http://127.0.0.1:30001", "bootstrap": None,
         "takes": ["sglang-pd-prefill.service"]},
    ]  # fmt: skip
    assert config["api_key_file"] is config["certificate_file"] is None


@pytest.mark.parametrize(("limit", "round_s", "first"), [(30, 10, 300), (180, 20, 300), (600, 20, 600)])
def test_a_round_is_shorter_than_the_limit_and_the_first_answer_may_take_longer(
    limit: int, round_s: int, first: int
) -> None:
    config = told(planned(watchdog_limit=limit))
    assert (config["limit_s"], config["round_s"], config["first_limit_s"]) == (limit, round_s, first)


def test_systemd_takes_the_pause_between_two_rounds_for_no_hang() -> None:
    """It is told of life once a round: the longest pause and the longest round, with its child's, are shorter."""
    unit = render.watchdog(planned(watchdog_interval=60))[0].content.decode()
    told_within = int(unit.partition("WatchdogSec=")[2].split()[0])
    assert told_within > 60 + 1.5 * LONGEST_ROUND + 10
    with pytest.raises(PlanError, match="watchdog_interval"):
        planned(watchdog_interval=61)


def test_hosts_that_serve_together_watch_their_own_parts_alone() -> None:
    plans = {host: told(plan) for host, plan in fleet_plans().items()}
    assert not any(config["whole"] for config in plans.values())
    assert [server["url"] for server in plans["gpu-2"]["servers"]] == ["http://10.1.0.2:30001"]
    assert plans["gpu-2"]["url"] is plans["gpu-2"]["router"] is plans["gpu-2"]["api_key_file"] is None
    assert plans["gpu-1"]["router"] == "sglang-pd-router.service"


def test_turned_off_there_is_neither_unit_nor_file() -> None:
    assert render.watchdog(planned(watchdog=False)) == []
    assert [file.path for file in render.watchdog(planned())] == [
        "/etc/systemd/system/sglang-pd-watchdog.service",
        "/etc/sglang-pd/watchdog.json",
    ]


def test_the_key_itself_stands_in_no_file_of_it() -> None:
    plan = planned(router_host="0.0.0.0", router_api_key_env="PD_KEY")
    plan = type(plan)(**{**plan.__dict__, "api_key": API_KEY})
    assert told(plan)["api_key_file"] == plan.paths.secret
    assert all(API_KEY not in file.content.decode() for file in render.watchdog(plan))
