"""pd-probe: its processes are played by an interpreter of ours that answers well, badly, cut short or never."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bin.tools import finish, load, run, start

probe = load("pd-probe")

# What stands for `python pd-probe measure ORDER`: the answers come from ANSWERS, by mode, role and what is asked.
PLAYER = """\
import json, os, signal, sys
order = json.loads(sys.argv[-1])
played = json.loads(open({answers!r}).read())
def say(key):
    answer = played.get(key + "/" + order.get("role", ""), played.get(key))
    if answer is None:
        return
    if answer == "hang":
        signal.pause()
    if answer == "end":
        print("last words of", key, file=sys.stderr)
        sys.exit(3)
    if answer == "control":
        answer = {{"right": "NCCL_P2P_DISABLE" in os.environ, "small_s": 1e-5, "large_s": 1e-2}}
    if isinstance(answer, str):
        print(answer, file=sys.stderr)
        answer = {{}}
    print(json.dumps(answer), flush=True)
print(f"ucp 1 intra-node cfg#1 rma_am(tcp/lo) am({{played['lane']}})", file=sys.stderr, flush=True)
say(order["mode"])
for line in sys.stdin:
    asked = json.loads(line)
    say(order["mode"] + "/" + asked.get("do", "copy"))
"""
GOOD: dict[str, Any] = {
    "lane": "tcp/lo cma/memory cuda_ipc/cuda",
    "peer": {"ready": True},
    "peer/copy": {"bytes": 1024, "gbps": 50.0, "same_bytes": True, "peer_access": True},
    "all_reduce": {"right": True, "small_s": 3e-5, "large_s": 4e-3},
    "kv_path": {
        "name": "x",
        "metadata": "",
        "address": 0,
        "number": 0,
        "backend": "UCX",
        "parameters": {"num_threads": "8"},
    },
    "kv_path/connect": {"seconds": 0.01},
    "kv_path/clear": {},
    "kv_path/prepare": {},
    "kv_path/write": {"seconds": [0.001], "prepare_s": 0.0005, "repeats": 5},
    "kv_path/compare": {"same_bytes": True},
}


class Host:
    """A configuration, and the interpreter that plays the measuring processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = copy.deepcopy(GOOD)
        self.config: dict[str, Any] = {
            "python": str(folder / "python"), "device": "cuda", "driver": "580.95.05", "release": "r1", "limit_s": 20,
            "transfer_backend": "nixl",
            "instances": [self.instance("prefill", [0, 1]), self.instance("decode", [4, 5])],
            "peer": {"gpus": [0, 4], "uuids": ["GPU-0", "GPU-4"], "bytes": 1024},
            "pairs": [{"prefill": "prefill", "decode": "decode", "from": 0, "to": 4}],
            "shapes": [{"name": "page", "bytes": 4096, "count": 100}, {"name": "256 MiB", "bytes": 1 << 28, "count": 2}],
        }  # fmt: skip

    def instance(self, role: str, gpus: list[int]) -> dict[str, Any]:
        uuids = [f"GPU-{gpu}" for gpu in gpus]
        return {
            "name": role,
            "role": role,
            "gpus": gpus,
            "uuids": uuids,
            "devices": gpus,
            "binding": [],
            "environment": {},
        }

    def write(self) -> Path:
        (self.folder / "answers").write_text(json.dumps(self.answers))
        player = self.folder / "python"
        player.write_text(f"#!{sys.executable}\n" + PLAYER.format(answers=str(self.folder / "answers")))
        player.chmod(0o755)
        config = self.folder / "config.json"
        config.write_text(json.dumps(self.config))
        return config

    def probe(self, *more: object) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        ran = run("pd-probe", "--config", self.write(), *more)
        return ran, json.loads(ran.stdout)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_everything_measured(host: Host, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    ran, result = host.probe("--keep", kept)
    assert ran.returncode == 0
    assert json.loads(kept.read_text()) == result
    assert result["depends"] == {
        "driver": "580.95.05", "release": "r1", "gpus": ["GPU-0", "GPU-1", "GPU-4", "GPU-5"],
        "boot": probe.BOOT_ID.read_text().strip(), "settings": result["depends"]["settings"],
    }  # fmt: skip
    peer, reduce, kv = (result["parts"][part] for part in probe.PARTS)
    assert [(pair["from"], pair["to"], pair["gbps"]) for pair in peer["pairs"]] == [(0, 4, 50.0), (4, 0, 50.0)]
    # 2 ranks: each byte crosses the bus once, 64 MiB in 4 ms
    assert [(group["outcome"], group["bus_gbps"]) for group in reduce["groups"]] == [("right", 16.777)] * 2
    [pair] = kv["pairs"]
    assert (pair["plain_gbps"], pair["cuda_ipc"], kv["parameters"]["prefill"]) == (50.0, True, {"num_threads": "8"})
    assert pair["lane"] == "intra-node cfg#1 rma_am(tcp/lo) am(tcp/lo cma/memory cuda_ipc/cuda)"
    assert [(s["descriptor_bytes"], s["us_per_descriptor"], s["gbps"]) for s in pair["alone"]] == [
        (4096, 10.0, 0.4096), (1 << 28, 500.0, 536.8709)
    ]  # fmt: skip
    assert len(pair["together"]) == 2
    assert [len(shape["rounds"]) for shape in (*pair["alone"], *pair["together"])] == [1, probe.ROUNDS] * 2


def test_of_several_measurements_the_best_stays_with_all_their_figures() -> None:
    one, better, wrong = (
        {"descriptor_bytes": 1, "gbps": gbps, "rounds": [gbps], "same_bytes": right, "us_per_descriptor": 1 / gbps}
        for gbps, right in ((2.0, True), (4.0, True), (3.0, False))
    )
    [row] = probe.with_row(probe.with_row(probe.with_row([], one), better), wrong)
    assert (row["gbps"], row["rounds"], row["us_per_descriptor"]) == (4.0, [2.0, 4.0, 3.0], 0.25)
    assert row["same_bytes"] is False, "wrong bytes once are wrong"


def test_one_part_alone(host: Host) -> None:
    ran, result = host.probe("--part", "all_reduce")
    assert (ran.returncode, list(result["parts"])) == (0, ["all_reduce"])


def test_without_peer_copies_nothing_is_compared_with_them(host: Host) -> None:
    _, result = host.probe("--part", "kv_path")
    assert result["parts"]["kv_path"]["pairs"][0]["plain_gbps"] is None


def test_a_lane_without_cuda_ipc_is_told(host: Host) -> None:
    host.answers["lane"] = "tcp/lo cma/memory"
    _, result = host.probe("--part", "kv_path")
    assert result["parts"]["kv_path"]["pairs"][0]["cuda_ipc"] is False


def test_one_gpu_has_nothing_to_reduce(host: Host) -> None:
    host.config["instances"] = [host.instance("prefill", [0]), host.instance("decode", [4])]
    host.answers["all_reduce"] = "end"  # would fail if it ran
    ran, result = host.probe("--part", "all_reduce")
    assert (ran.returncode, [g["outcome"] for g in result["parts"]["all_reduce"]["groups"]]) == (0, ["single"] * 2)


def test_another_transfer_backend_is_skipped_and_said(host: Host) -> None:
    host.config["transfer_backend"] = "mooncake"
    ran, result = host.probe("--part", "kv_path")
    assert ran.returncode == 0
    assert result["parts"]["kv_path"]["status"] == "skipped"
    assert "mooncake" in result["parts"]["kv_path"]["reason"]


# what is played, what the part says, its exit code
FAULTS: dict[str, tuple[dict[str, Any], str, str, str, int]] = {
    "peer copies bring wrong bytes": (
        {"peer/copy": {"bytes": 1024, "gbps": 50.0, "same_bytes": False, "peer_access": True}},
        "peer", "failed", "2 of 2 copies brought wrong bytes", 10,
    ),
    "peer copies hang": ({"peer/copy": "hang"}, "peer", "timeout", "gave no answer within its limit", 11),
    "peer process ends": ({"peer": "end"}, "peer", "failed", "ended (exit 3), it said: ", 10),
    "KV arrives wrong": (
        {"kv_path/compare": {"same_bytes": False}}, "kv_path", "failed", "4 transfers brought wrong bytes", 30
    ),
    "KV hangs": ({"kv_path/write": "hang"}, "kv_path", "timeout", "prefill GPU 0 gave no answer", 31),
    "decode ends": ({"kv_path/decode": "end"}, "kv_path", "failed", "last words of kv_path", 30),
    "decode reports a failure": (
        {"kv_path/decode": {"failed": "RuntimeError: hidden GPU: wants device 4, sees 1"}},
        "kv_path", "failed", "decode GPU 4: RuntimeError: hidden GPU", 30,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_part_that_fails_says_how(host: Host, fault: str) -> None:
    changes, part, status, words, code = FAULTS[fault]
    host.answers |= changes
    host.config["limit_s"] = 2 if status == "timeout" else 20
    ran, result = host.probe("--part", part)
    found = result["parts"][part]
    assert (ran.returncode, found["exit"], found["status"]) == (code, code, status)
    assert words in found["reason"]


@pytest.mark.parametrize(
    ("answers", "outcome", "control"),
    [
        ("control", "wrong", "right"),  # wrong with P2P, right without: the fabric
        ({"right": False, "small_s": 1e-5, "large_s": 1e-2}, "wrong", "wrong"),
        ("end", "broken", "broken"),
        ("hang", "hang", "hang"),
    ],
)
def test_a_control_run_without_p2p_tells_fabric_from_set_up(
    host: Host, answers: object, outcome: str, control: str
) -> None:
    host.answers["all_reduce"] = answers
    host.config["instances"] = [host.instance("prefill", [0, 1])]
    host.config["pairs"] = []
    host.config["limit_s"] = 5 if answers == "hang" else 20
    ran, result = host.probe("--part", "all_reduce")
    [group] = result["parts"]["all_reduce"]["groups"]
    assert (ran.returncode, group["outcome"], group["control"]["outcome"]) == (20, outcome, control)


def test_one_part_that_fails_does_not_end_the_others(host: Host) -> None:
    host.answers["peer"] = "end"
    ran, result = host.probe()
    assert ran.returncode == 10
    assert [result["parts"][part]["status"] for part in probe.PARTS] == ["failed", "done", "done"]


def test_processes_end_with_their_part(host: Host) -> None:
    host.answers["all_reduce"] = "hang"
    host.config["limit_s"] = 5
    host.probe("--part", "all_reduce")
    left = subprocess.run(["pgrep", "-f", host.config["python"]], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_an_interrupted_probe_leaves_no_process(host: Host) -> None:
    host.answers["peer"] = "hang"
    host.config["limit_s"] = 600
    child = start("pd-probe", "--config", host.write())
    pattern = ["pgrep", "-f", host.config["python"]]
    while subprocess.run(pattern, capture_output=True, check=False).returncode:
        assert child.poll() is None
    child.terminate()
    assert finish(child).returncode == 128 + 15
    assert subprocess.run(pattern, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"shapes": None}, "shapes is missing or of the wrong type"),
        ({"pairs": [{"prefill": "other", "decode": "decode", "from": 0, "to": 4}]}, "a pair names other and decode"),
        ({"python": "/nowhere/python"}, "/nowhere/python is not there: build the release first"),
    ],
)
def test_a_configuration_that_cannot_be_used(host: Host, change: dict[str, object], line: str) -> None:
    config = host.write()
    config.write_text(json.dumps(host.config | change))
    ran = run("pd-probe", "--config", config)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert line in ran.stderr


@pytest.mark.parametrize("content", ["", "[]", '{"python": '])
def test_a_configuration_that_is_no_object(host: Host, content: str) -> None:
    config = host.write()
    config.write_text(content)
    ran = run("pd-probe", "--config", config)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)


def test_small_descriptors_leave_gaps() -> None:
    assert probe.stride({"bytes": 4096}) == 8192
    assert probe.stride({"bytes": 1 << 28}) == 1 << 28
    assert probe.extent({"bytes": 1 << 20, "count": 3}) == 6 << 20
