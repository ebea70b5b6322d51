"""The report's data: the verdict, what follows from the figures, and what is missing."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks.plan.findings import Finding, Level, silence
from tasks.plan.plan import Plan
from tasks.plan.proof.judgement import FRESH, NONE
from tasks.plan.report import page
from tasks.plan.report.data import build
from tasks.plan.service.placement import write_collapse
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware
from tests.plan.proofs import MIB, PAGE, pair, proof, row

NOW = datetime(2026, 12, 3, 5, 30, tzinfo=UTC)
PLAN = catalogue_plan({}, hardware(TWO_SOCKETS))
GOOD = Finding("gpu/driver/match", Level.HEALTHY, "driver and library are 580.95.05")
BAD = Finding("gpu/driver/match", Level.ERROR, "the module is 580, the library 590", ("NVRM 580",), "reboot")
DOUBT = Finding("host/acs", Level.WARNING, "9 ports redirect", (), "turn ACS off")
UNREAD = Finding("gpu/xid", Level.INCOMPLETE, "the kernel log could not be read")


def built(
    found: Iterable[Finding] = (GOOD,),
    measured: dict[str, Any] | None = None,
    state: str = NONE,
    plan: Plan | None = PLAN,
) -> dict[str, Any]:
    data = build("gpu-1", plan, found, measured, state, NOW)
    view = page.view(json.loads(json.dumps(data)))  # what the page shows is in the JSON, and can be shown
    assert view["verdict"]["sentence"] == data["verdict"]["sentence"]
    return data


# ---- verdict


@pytest.mark.parametrize(
    ("found", "measured", "state", "level", "sentence"),
    [
        ([GOOD, BAD, UNREAD], proof(), FRESH, "error", "gpu-1 must not serve: the module is 580, the library 590 (and 1 more)."),
        ([UNREAD], proof(), FRESH, "incomplete", "gpu-1 must not serve: the kernel log could not be read."),
        ([GOOD], None, NONE, "unproven", "gpu-1 may serve as far as its checks tell, but its KV path has not been measured yet: every check healthy."),
        ([DOUBT], proof(), "stale: another driver", "unproven", "gpu-1 was proven once, but no longer is: another driver; 1 warning to look at."),
        ([GOOD, DOUBT], proof(), FRESH, "warning", "gpu-1 serves: its slowest KV pair moves 51.6 GB/s, 0.97 of a plain copy; 1 warning to look at."),
        ([GOOD], proof(), FRESH, "healthy", "gpu-1 serves: its slowest KV pair moves 51.6 GB/s, 0.97 of a plain copy; every check healthy."),
    ],
)  # fmt: skip
def test_the_verdict_is_one_sentence(
    found: list[Finding], measured: dict[str, Any] | None, state: str, level: str, sentence: str
) -> None:
    verdict = built(found, measured, state)["verdict"]
    assert (verdict["level"], verdict["sentence"]) == (level, sentence)


def test_the_slowest_pair_speaks_for_the_host() -> None:
    slow = pair(1, 5, alone=[row(PAGE, 23.0), row(256 * MIB, 640000.0)])
    assert (
        "moves 0.4 GB/s, 0.01 of a plain copy"
        in built(measured=proof([pair(0, 4), slow]), state=FRESH)["verdict"]["sentence"]
    )


def test_findings_stand_in_the_order_in_which_they_are_read() -> None:
    optional = Finding("host/clock", Level.INCOMPLETE, "no answer", required=False)
    silenced = silence([Finding("a/b", Level.WARNING, "x")], {"a/b": "known"})
    data = built([GOOD, DOUBT, *silenced, optional, UNREAD, BAD])
    assert [one["level"] for one in data["findings"]] == [
        "error",
        "incomplete",
        "incomplete",
        "warning",
        "silenced",
        "healthy",
    ]
    assert [one["required"] for one in data["findings"][1:3]] == [True, False]
    assert data["findings"][4]["reason"] == "known"


# ---- figures that follow


@pytest.mark.parametrize("measured", [[], [row(PAGE, 1.0, us_per_descriptor=None, gbps=None)], [row(MIB, 20.0)]])
def test_without_figures_there_are_no_seconds(measured: list[dict[str, Any]]) -> None:
    data = built(measured=proof([pair(0, 4, alone=measured)]), state=FRESH)
    assert data["kv_path"][0]["seconds"]["alone"] is None


def test_seconds_stand_beside_the_pair() -> None:
    seconds = built(measured=proof(), state=FRESH)["kv_path"][0]["seconds"]["alone"]
    assert seconds["split"] == pytest.approx((21 + 21 + 20) * 4 * 2.7e-6)
    assert seconds["merged"] == pytest.approx((21 * 14.0 + (21 + 20) * 2.7) * 1e-6)


def test_a_pairs_share_is_of_the_plain_copy_of_the_same_pair() -> None:
    data = built(measured=proof([pair(0, 4, plain_gbps=103.24)]), state=FRESH)
    assert data["kv_path"][0]["share"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(hours=5), "5 hours ago"),
        (timedelta(days=3, hours=2), "3 days ago"),
        (timedelta(hours=-2), "just now"),
    ],
)
def test_age_in_words(before: timedelta, words: str) -> None:
    measured = {**proof(), "started": (NOW - before).strftime("%Y-%m-%dT%H:%M:%SZ")}
    assert built(measured=measured, state=FRESH)["age"]["words"] == words


# ---- placement, hardware, versions


def test_the_placement_with_its_rules() -> None:
    prefill, decode = built()["placement"]
    assert (prefill["gpus"], prefill["numa_nodes"], prefill["binding"]) == (
        [0, 1, 2, 3],
        [0],
        "numactl --cpunodebind=0 --membind=0",
    )
    assert decode["rule"] == "one NUMA node, roles apart, as close as the host allows (NODE)"
    assert built()["writes"] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_matrices_are_in_the_order_of_the_gpus() -> None:
    found = built()["hardware"]
    assert found["links"][0][:5] == ["X", "NODE", "NODE", "NODE", "SYS"]
    assert found["p2p"][7] == ["OK"] * 7 + ["X"]
    assert found["sockets"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_versions_of_what_serves() -> None:
    versions = built()["versions"]
    assert versions["release id"] == PLAN.release.id
    assert versions["driver"] == "580.95.05"
    assert {"SGLang", "torch", "UCX", "router", "Python", "model"} <= versions.keys()


# ---- what is missing


def test_the_model_and_how_it_fits_each_server() -> None:
    data = built()
    rows = {row["server"]: row for row in data["model"]["memory"]}
    assert rows.keys() == {worker.name for worker in PLAN.workers}
    fit = PLAN.fits["decode"]
    assert (rows["decode"]["weights_gb"], rows["decode"]["kv_tokens"]) == (fit.weights, fit.tokens)
    assert sum(rows["decode"][part] for part in ("weights_gb", "kv_gb", "left_gb")) == pytest.approx(fit.card)
    shown = page.view(data)["model"]
    assert [row["tokens"] for row in shown["memory"] if row["server"] == "decode"] == [f"{fit.tokens:,}"]
    assert (shown["name"], shown["context"]) == (PLAN.profile.name, f"{PLAN.context_length:,}")


def test_a_host_that_was_refused_before_there_was_a_plan() -> None:
    data = built([BAD], plan=None)
    assert (data["placement"], data["hardware"], data["versions"], data["verdict"]["word"]) == ([], None, {}, "Refused")


def test_a_host_without_matrices() -> None:
    import dataclasses

    bare = dataclasses.replace(PLAN, hardware=dataclasses.replace(PLAN.hardware, topo=None, p2p=None))
    found = built([write_collapse(tuple(w.placement for w in bare.workers if w.placement), bare.hardware)], plan=bare)
    assert (found["hardware"]["links"], found["hardware"]["p2p"]) == (None, None)
    assert found["verdict"]["level"] == "unproven"


FAILED = {"status": "timeout", "exit": None, "seconds": None, "reason": "no answer within 60 s"}


@pytest.mark.parametrize(
    "measured",
    [
        proof(peer=None, all_reduce=None, kv_path=None),
        proof(peer=FAILED, all_reduce=FAILED, kv_path=FAILED),
        proof(kv_path={**FAILED, "pairs": [], "backend": None, "parameters": None}),
        proof([pair(0, 4, plain_gbps=None, lane=None, cuda_ipc=None, alone=[], together=[])]),
        proof([pair(0, 4, alone=[row(PAGE, 1.0, gbps=None, us_per_descriptor=None, same_bytes=None)], together=[])]),
        {**proof(), "depends": {}, "seconds": None, "started": None, "device": "cpu"},
        {**proof(), "parts": None},
    ],
)
def test_figures_that_are_missing_are_no_fault(measured: dict[str, Any]) -> None:
    built(measured=measured, state=FRESH)


def test_parts_that_failed_say_why() -> None:
    view = page.view(built(measured=proof(all_reduce={**FAILED, "groups": []}), state=FRESH))
    assert {"name": "all_reduce", "status": "timeout", "detail": "", "reason": "no answer within 60 s"} in view["parts"]


# ---- what the page makes of it


@pytest.mark.parametrize(
    ("count", "shown"),
    [(9216, "9 KiB"), (MIB, "1 MiB"), (256 * MIB, "256 MiB"), (1000, "1000 B"), (640, "640 B"), (None, "n/a")],
)
def test_sizes(count: int | None, shown: str) -> None:
    assert page.size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "n/a"), (0.0, "0.0"), (0.42, "0.4"), (0.02, "0.020"), (53.27, "53.3"), (7540.2, "7,540")],
)
def test_figures(value: float | None, shown: str) -> None:
    assert page.figure(value) == shown


def cells(measured: dict[str, Any], title: str) -> list[list[page.Cell]]:
    view = page.view(built(measured=measured, state=FRESH))
    return [row for _, row in next(one for one in view["maps"] if one.title == title).rows]


def test_a_copy_with_wrong_bytes_and_one_through_host_memory_are_marked_in_words() -> None:
    measured = proof()
    copies = measured["parts"]["peer"]["pairs"]
    copies[0]["same_bytes"], copies[1]["peer_access"] = False, False
    row = cells(measured, "Peer copies, measured")[0]
    assert [cell.text for cell in row[:4]] == ["·", "53.2≠", "53.2 h", "53.2"]
    assert row[1].shade == "bad"


def test_shades_follow_the_figures() -> None:
    row = cells(proof(), "Peer copies, measured")[0]
    assert (row[1].shade, row[5].shade) == ("h5", "h4")
    assert {cell.shade for cell in cells(proof(), "Links")[0]} == {"self", "h2", "h1"}


def test_a_lane_line_stands_once() -> None:
    assert [names for names, _ in page.view(built(measured=proof(), state=FRESH))["lanes"]] == ["every pair"]
    two = proof([pair(0, 4), pair(1, 5, lane="tcp/lo")])
    assert [names for names, _ in page.view(built(measured=two, state=FRESH))["lanes"]] == [
        "prefill 0 → decode 4",
        "prefill 1 → decode 5",
    ]
