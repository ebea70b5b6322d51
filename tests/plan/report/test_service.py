"""One verdict and one page for the hosts of a service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tasks.plan.fleet import members
from tasks.plan.fleet.members import Member
from tasks.plan.proof.judgement import FRESH
from tasks.plan.report import data as report
from tasks.plan.report import service
from tasks.plan.report.service import Report
from tasks.plan.report.summary import Ending, HostRun, Service
from tests.plan.builders import TWO_HOSTS, fleet_plans, inventoried, measured
from tests.plan.report.test_data import DOUBT, GOOD

NOW = datetime(2026, 12, 3, 5, 30, tzinfo=UTC)
THREE: Mapping[str, tuple[str, ...]] = {**TWO_HOSTS, "gpu-3": ("decode",)}
PLANS = fleet_plans(THREE)


def hosts(groups: Mapping[str, tuple[str, ...]] = THREE) -> tuple[Member, ...]:
    return members.services(members.members(inventoried(groups)))["main"]


def run(host: str, **changes: Any) -> HostRun:
    return replace(HostRun(host, Ending.WELL, Service.of(PLANS[host]), operations=70), **changes)


def reported(**changes: Mapping[str, Any]) -> dict[str, Report | None]:
    """Reports of hosts that are well. changes: of a report's data by host, gpu_1 for gpu-1."""
    found: dict[str, Report | None] = {}
    for host, plan in PLANS.items():
        made = report.build(host, plan, [GOOD], measured(plan), FRESH, NOW)
        found[host] = Report(
            {**made, "run": run(host).as_data(), **changes.get(host.replace("-", "_"), {})}, f"{host}.html"
        )
    return found


def built(reports: dict[str, Report | None] | None = None, *runs: HostRun) -> dict[str, Any]:
    reports = reported() if reports is None else reports
    told = {one.name: one.as_data() for one in runs or [run(host) for host in PLANS]}
    data = service.build("main", hosts(), reports, told, NOW)
    view = service.view(json.loads(json.dumps(data)), reports)  # what the page shows is in the JSON, and can be shown
    assert len(view["hosts"]) == len(data["hosts"])
    return data


def said(reports: dict[str, Report | None] | None = None, *runs: HostRun) -> tuple[str, str]:
    verdict = built(reports, *runs)["verdict"]
    return verdict["level"], verdict["sentence"]


def test_a_host_alone_is_no_service() -> None:
    every = members.members(inventoried({"gpu-1": ("prefill", "decode", "router")}))
    assert members.services(every) == {}


def test_every_host_of_a_service_stands_on_its_page() -> None:
    data = built()
    assert [(one["host"], one["roles"], one["address"]) for one in data["hosts"]] == [
        ("gpu-1", ["prefill", "router"], "10.1.0.1"),
        ("gpu-2", ["decode"], "10.1.0.2"),
        ("gpu-3", ["decode"], "10.1.0.3"),
    ]
    assert {one["release"] for one in data["hosts"]} == {PLANS["gpu-1"].release.id}
    assert [bool(one["router"]) for one in data["hosts"]] == [True, False, False]


def test_hosts_that_are_well_make_a_service_that_is() -> None:
    assert said() == ("healthy", "main serves on 3 hosts; the router answers right.")


def test_a_service_whose_router_was_left_out_was_not_asked() -> None:
    assert said(None, run("gpu-2"))[1] == "main serves on 3 hosts; this run asked no router."


@pytest.mark.parametrize("ending", [one for one in Ending if not one.is_good])
def test_a_host_that_is_not_done_is_named_first(ending: Ending) -> None:
    level, sentence = said(reported(gpu_1={"verdict": report.verdict("gpu-1", [DOUBT], [], FRESH, "pd")}),
                           run("gpu-1"), run("gpu-2", ending=ending), run("gpu-3"))  # fmt: skip
    assert (level, sentence) == ("error", f"main: gpu-2 ({ending}); 2 of 3 hosts have nothing left to do.")


def test_servers_of_two_releases_are_named() -> None:
    older = {"versions": {"release id": "older"}}
    assert said(reported(gpu_3=older)) == (
        "error",
        f"main: servers of different releases exchange KV cache: gpu-1, gpu-2 {PLANS['gpu-1'].release.id}; gpu-3 older.",
    )


def test_a_router_alone_has_a_part_of_a_release() -> None:
    made = service._verdict(
        "main",
        [
            {**one, "release": "router only", "roles": ["router"]} if one["host"] == "gpu-3" else one
            for one in built()["hosts"]
        ],
    )
    assert made["level"] == "healthy"


def test_a_host_without_a_report_is_named() -> None:
    assert said({**reported(), "gpu-2": None}) == ("incomplete", "main: no run has written a report of gpu-2 here.")


def test_the_worst_host_speaks_for_the_service() -> None:
    doubt = {"verdict": report.verdict("gpu-2", [DOUBT], [], FRESH, "pd")}
    assert said(reported(gpu_2=doubt, gpu_3=doubt)) == (
        "warning",
        "gpu-2 serves; 1 warning to look at (and 1 more of its hosts); the router answers right.",
    )


def test_what_a_run_changed_is_counted_by_phase() -> None:
    changed = ("Launch | File a", "Launch | File b", "Services | Running: decode")
    reports = reported()
    data = built(reports, run("gpu-1"), run("gpu-2", changed=changed, restarts={"decode": "restarts"}))
    row = service.view(data, reports)["hosts"][1]
    assert (row["changed"], row["restarts"]) == ("3 of 70: Launch 2, Services 1", ["decode: restarts"])


def test_a_host_that_this_run_left_out_has_its_last_report() -> None:
    reports = reported()
    data = built(reports, run("gpu-1"), run("gpu-2"))
    assert [one["run"] is None for one in data["hosts"]] == [False, False, True]
    row = service.view(data, reports)["hosts"][2]
    assert row["ending"] == "not in this run; report of 2026-12-03T05:30:00Z"
    assert row["serves"] and row["changed"] == "0 of 70"
