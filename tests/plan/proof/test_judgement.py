"""What was measured, judged: with results from two real H200, good and broken on purpose, and made ones."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.plan.findings import Finding, Level
from tasks.plan.plan import Plan
from tasks.plan.proof import judgement as proof
from tests.plan.builders import (
    BOOT,
    TWO_SOCKETS,
    catalogue_plan,
    hardware,
    manifest,
    measured,
    plan,
    profile,
    release,
    settings,
)

RESULTS = Path(__file__).parents[1] / "fixtures" / "probe"
PLAN = plan(settings(), hardware(TWO_SOCKETS))
GOOD = measured(PLAN)


def real(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"h200-x2-{name}.json").read_text())
    return found


def by_id(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    assert len({finding.id for finding in findings}) == len(findings)
    assert {finding.id for finding in findings} <= set(proof.IDS)
    return {finding.id: finding for finding in findings}


def levels(findings: tuple[Finding, ...]) -> dict[str, str]:
    return {id: str(finding.level) for id, finding in by_id(findings).items()}


def read(data: object, serving: bool = False, found: Plan = PLAN, boot: str = BOOT) -> proof.Proof:
    return proof.read(found, data if data is None or isinstance(data, str) else json.dumps(data), boot, serving)


# ---- results of real GPUs


def test_two_good_gpus() -> None:
    found = levels(proof.judge(real("good"), PLAN))
    assert found == dict.fromkeys(set(proof.IDS) - {"proof/state"}, "healthy")


def test_the_proof_within_a_deploy_on_two_gpus() -> None:
    """Prefill and decode of random-qwen2-7b, SGLang 0.5.16 in an existing environment."""
    data = real("in-a-deploy")
    (pair,) = data["parts"]["kv_path"]["pairs"]
    assert [row["descriptor_bytes"] for row in pair["alone"]] == [65536, 1 << 20, 256 << 20], "its page, merged, large"
    found = levels(proof.judge(data, PLAN))
    assert found == dict.fromkeys(set(proof.IDS) - {"proof/state"}, "healthy")


def test_without_cuda_ipc_the_lane_and_the_speed_are_errors() -> None:
    found = by_id(
        proof.judge(
            real("no-cuda-ipc"), plan(settings(prefill_environment={"UCX_TLS": "^cuda_ipc"}), hardware(TWO_SOCKETS))
        )
    )
    assert {id for id, finding in found.items() if finding.level is Level.ERROR} == {
        "proof/kv/lane", "proof/kv/speed", "proof/kv/share", "proof/kv/together"
    }  # fmt: skip
    assert found["proof/kv/lane"].advice.startswith(
        "causes, the likeliest first: UCX_TLS=^cuda_ipc in the servers' environment"
    )
    assert "am(tcp/lo cma/memory)" in found["proof/kv/lane"].evidence[0]
    assert "0.409" in found["proof/kv/speed"].line
    assert found["proof/kv/bytes"].level is Level.HEALTHY  # the bytes are right: nothing else would tell


def test_tcp_only() -> None:
    found = by_id(proof.judge(real("tcp-only"), PLAN))
    assert found["proof/kv/lane"].level is Level.ERROR
    assert "tcp/eth0" in found["proof/kv/lane"].evidence[0]


def test_a_hidden_gpu_is_named() -> None:
    [run] = proof.judge(real("hidden"), PLAN)[-1:]
    assert (run.id, run.level) == ("proof/kv/run", Level.ERROR)
    assert "CUDA_VISIBLE_DEVICES=0" in run.evidence[0]
    assert "a GPU is hidden from the server" in run.advice


def test_gpus_in_another_order_are_named() -> None:
    run = by_id(proof.judge(real("swapped"), PLAN))["proof/kv/run"]
    assert run.level is Level.ERROR
    assert "another GPU than planned" in run.advice


def test_all_reduce_over_nvlink() -> None:
    sums = by_id(proof.judge(real("group"), PLAN))["proof/all-reduce/sums"]
    assert (sums.level, sums.line) == (Level.HEALTHY, "sums are right: prefill 205.159 GB/s")


def test_a_broken_set_up_is_not_taken_for_a_broken_fabric() -> None:
    sums = by_id(proof.judge(real("group-broken"), PLAN))["proof/all-reduce/sums"]
    assert sums.level is Level.ERROR
    assert "no socket interface found" in sums.evidence[0]
    assert "the set-up is broken, not the fabric" in sums.advice


def test_seconds_per_1000_tokens_from_the_time_of_a_descriptor() -> None:
    found = catalogue_plan({}, hardware(TWO_SOCKETS))
    [pair] = real("good")["parts"]["kv_path"]["pairs"]
    seconds = proof.transfer_seconds(pair["alone"], found.profile, 1)
    assert seconds is not None
    # by hand from the file: 21 x 4 x 2.647 + 21 x 4 x 2.601 + 20 x 4 x 2.624 us; 21 x 3.638 + 21 x 2.657 + 20 x 2.653
    assert seconds["split"] == pytest.approx(650.7e-6, rel=1e-3)
    assert seconds["merged"] == pytest.approx(185.3e-6, rel=1e-3)


def test_sizes_of_another_model_give_no_seconds() -> None:
    [pair] = real("good")["parts"]["kv_path"]["pairs"]
    assert proof.transfer_seconds(pair["alone"], profile(), 1) is None


# ---- faults that no machine at hand has


def everywhere(data: dict[str, Any], part: str, rows: str, **values: object) -> None:
    for row in data["parts"][part][rows]:
        row.update(values)


def slow_together(data: dict[str, Any]) -> None:
    for pair in data["parts"]["kv_path"]["pairs"]:
        for shape in pair["together"]:
            shape["gbps"] = 2.7


def wrong_once(data: dict[str, Any]) -> None:
    data["parts"]["kv_path"]["pairs"][1]["together"][0]["same_bytes"] = False


def hang(control: dict[str, Any] | None) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        group = data["parts"]["all_reduce"]["groups"][0]
        group.update(outcome="hang", reason="prefill rank 0 gave no answer", control=control)
        data["parts"]["all_reduce"].update(status="failed", exit=20, reason="prefill: hang")

    return change


def ended(part: str, status: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["parts"][part] = {"status": status, "exit": 31, "reason": "it said: words", "seconds": 180.0}

    return change


# the fault, the finding that tells it, its level, words of its line or advice
FAULTS: list[tuple[Callable[[dict[str, Any]], None], str, Level, str]] = [
    (lambda d: everywhere(d, "peer", "pairs", same_bytes=False), "proof/peer/bytes", Level.ERROR, "IOMMU or ACS"),
    (lambda d: everywhere(d, "peer", "pairs", gbps=13.0), "proof/peer/speed", Level.WARNING, "copies below 30 GB/s"),
    (slow_together, "proof/kv/together", Level.ERROR, "from one PCIe switch to several roots"),
    (wrong_once, "proof/kv/bytes", Level.ERROR, "GPU 1 to 5"),
    (hang({"outcome": "right"}), "proof/all-reduce/sums", Level.ERROR, "it is right with NCCL_P2P_DISABLE=1"),
    (hang({"outcome": "hang"}), "proof/all-reduce/sums", Level.ERROR, "the set-up is broken, not the fabric"),
    (hang({"outcome": "wrong"}), "proof/all-reduce/sums", Level.ERROR, "take the GPUs out of service"),
    (ended("kv_path", "timeout"), "proof/kv/run", Level.INCOMPLETE, "KV path: timeout, exit 31"),
    (ended("peer", "failed"), "proof/peer/run", Level.ERROR, "peer copies: failed"),
    (ended("all_reduce", "timeout"), "proof/all-reduce/run", Level.INCOMPLETE, "all_reduce: timeout"),
    (ended("kv_path", "skipped"), "proof/kv/run", Level.WARNING, "not measured"),
    (lambda d: d["parts"].pop("kv_path"), "proof/kv/run", Level.INCOMPLETE, "not part of the last measurement"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "id", "level", "words"), FAULTS, ids=[f"{id}-{words}" for _, id, _, words in FAULTS]
)
def test_a_fault_is_told_by_its_own_finding(
    change: Callable[[dict[str, Any]], None], id: str, level: Level, words: str
) -> None:
    data = copy.deepcopy(GOOD)
    change(data)
    found = by_id(proof.judge(data, PLAN))
    assert found[id].level is level
    assert words in found[id].sentence
    assert "\n" not in found[id].sentence
    others = {other.id for other in found.values() if other.level is not Level.HEALTHY} - {id}
    assert not others
    assert read(data).holds is not found[id].stops


def test_gates_are_settings() -> None:
    strict = plan(settings(kv_minimum_gbps=50), hardware(TWO_SOCKETS))
    assert by_id(proof.judge(GOOD, strict))["proof/kv/speed"].level is Level.ERROR
    assert by_id(proof.judge(GOOD, PLAN))["proof/kv/speed"].level is Level.HEALTHY


# Shares of four proofs on four good machines, and of a path that is staged through the host (13 of 37 GB/s).
@pytest.mark.parametrize(
    ("share", "level"),
    [
        *((share, Level.HEALTHY) for share in (0.603, 0.69, 0.695, 0.75)),
        (0.54, Level.WARNING),
        (0.41, Level.WARNING),
        (13 / 37, Level.ERROR),
        (0.001, Level.ERROR),
    ],
)
def test_between_good_and_bad_shares_lies_a_warning(share: float, level: Level) -> None:
    data = copy.deepcopy(GOOD)
    for pair in data["parts"]["kv_path"]["pairs"]:
        pair["plain_gbps"] = 40.0 / share
    found = by_id(proof.judge(data, PLAN))["proof/kv/share"]
    assert found.level is level
    assert found.stops is (level is Level.ERROR)
    if level is Level.WARNING:
        assert "below 0.55, which good machines reach" in found.line and "servers start" in found.advice


def test_the_best_of_several_measurements_is_judged_and_the_spread_is_shown() -> None:
    data = copy.deepcopy(GOOD)
    for pair in data["parts"]["kv_path"]["pairs"]:
        pair["alone"][-1].update(gbps=40.0, rounds=[12.0, 40.0, 31.5])
    found = by_id(proof.judge(data, PLAN))["proof/kv/speed"]
    assert found.level is Level.HEALTHY
    assert "40 GB/s alone (the best of 3, from 12)" in found.evidence[0]


def test_an_old_ucx_is_a_likely_cause_and_a_new_one_is_not() -> None:
    data = copy.deepcopy(GOOD)
    everywhere(data, "kv_path", "pairs", cuda_ipc=False)
    old = plan(settings(), hardware(TWO_SOCKETS), release(manifest(ucx="1.21")))
    assert "UCX 1.21 underrates cuda_ipc" in by_id(proof.judge(data, old))["proof/kv/lane"].advice
    assert "underrates" not in by_id(proof.judge(data, PLAN))["proof/kv/lane"].advice


def test_a_silenced_finding_no_longer_stops() -> None:
    data = copy.deepcopy(GOOD)
    slow_together(data)
    silent = plan(settings(silenced_checks={"proof/kv/together": "one switch, known"}), hardware(TWO_SOCKETS))
    found = read(data, found=silent)
    assert found.holds
    assert by_id(found.findings)["proof/kv/together"].reason == "one switch, known"


def test_host_memory_has_no_floor_and_no_lane() -> None:
    on_cpu = catalogue_plan(
        {"release": "sglang-0.5.20-cpu", "torch_wheel": "ordinary", "model": "rehearsal-qwen2", "context_length": 1024,
         "prefill_tensor_parallel": 1, "decode_tensor_parallel": 1},
        hardware(TWO_SOCKETS),
    )  # fmt: skip
    found = levels(proof.judge(measured(on_cpu, gbps=0.1), on_cpu))
    assert set(found.values()) == {"healthy"}
    assert not {"proof/kv/lane", "proof/kv/speed"} & set(found)


# ---- fresh or stale


def test_a_good_measurement_holds() -> None:
    assert read(GOOD).holds
    assert read(GOOD).stale == ""


@pytest.mark.parametrize(
    ("changed", "boot", "why"),
    [
        (plan(settings(), hardware(TWO_SOCKETS, driver="580.126.09")), BOOT, "driver 580.95.05 is now 580.126.09"),
        (plan(settings(), hardware(TWO_SOCKETS), release(lock="sglang==9.9 --hash=sha256:11\n")), BOOT, "release "),
        (plan(settings(decode_gpus=[0, 1, 2, 3]), hardware(TWO_SOCKETS)), BOOT, "other settings of the servers"),
        (plan(settings(prefill_environment={"NCCL_DEBUG": "INFO"}), hardware(TWO_SOCKETS)), BOOT, "other settings of the servers"),
        (plan(settings(decode_tensor_parallel=2), hardware(TWO_SOCKETS)), BOOT, "other GPUs"),
        (PLAN, "another boot", "other boot"),
    ],
)  # fmt: skip
def test_what_it_depends_on_makes_it_stale(changed: Plan, boot: str, why: str) -> None:
    found = read(GOOD, found=changed, boot=boot)
    assert not found.holds
    assert found.stale.startswith(why)
    assert "\n" not in found.stale


def test_a_setting_that_the_links_do_not_depend_on_leaves_it_fresh() -> None:
    assert read(GOOD, found=plan(settings(decode_mem_fraction=0.62, kv_minimum_gbps=10), hardware(TWO_SOCKETS))).holds


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2, "parts": {}, "depends": {}}', "null"])
def test_what_cannot_be_read_is_measured_again(text: str) -> None:
    found = read(text)
    assert (found.holds, found.stale, found.data) == (False, "it cannot be read", None)


def test_nothing_measured_yet() -> None:
    found = read(None)
    assert (found.holds, found.stale) == (False, "nothing was measured yet")
    assert levels(found.findings) == {"proof/state": "incomplete"}
    assert not any(finding.stops for finding in found.findings)  # the run measures, then judges


def test_beside_running_servers_a_stale_proof_is_a_warning_that_says_how_to_renew_it() -> None:
    [state] = read(GOOD, serving=True, boot="another boot").findings
    assert (state.id, state.level) == ("proof/state", Level.WARNING)
    assert "--data reprove=True" in state.advice
