"""The recorded hosts, judged for a release that runs on GPUs: each gets the verdict that a good engineer would give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.plan.checks import Found
from tasks.plan.findings import Level, Refused
from tasks.plan.host import answers as reading
from tasks.support import catalogue
from tests.plan.builders import plan, profile, settings
from tests.plan.judging import NOW, places, recorded_answers, verdicts

RELEASE = catalogue.release(catalogue.manifest("sglang-0.5.23-cu130"), "3.11", "cpu")
FOUR = {"prefill_tensor_parallel": 4, "decode_tensor_parallel": 4}
TWO = {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2}
ONE = {"prefill_tensor_parallel": 1, "decode_tensor_parallel": 1}

# Host, settings, and every finding that is not healthy: id -> level and words. Why:
VERDICTS: list[tuple[str, dict[str, object], dict[str, tuple[Level, str]]]] = [
    # nothing is wrong
    ("rtx-pro-6000-x8", FOUR, {}),
    # eight nodes of a socket cut in four: pairs of GPUs each keep a node, its 32 CPUs and its 200 GB
    ("nps4", TWO, {}),
    # two groups of two find a node each
    ("uneven-6-2", TWO, {}),
    # the driver serves seven; those are fine for two groups of two, but the eighth is lost and must be named
    ("one-gpu-hidden", TWO, {
        "gpu/count/visible": (Level.WARNING, "serves 7 of 8 cards on the PCI bus, not 0000:f5:00.0"),
        "gpu/xid/none": (Level.WARNING, "(79) (no server gets it)"),
    }),
    # the chipset allows no peer copies at all: NCCL could live with that, the KV path not
    ("p2p-all-cns", FOUR, {
        "gpu/p2p/group": (Level.WARNING, "24 of 24 pairs inside a server (topo -p2p: CNS, chipset not supported)"),
        "gpu/p2p/transfer": (Level.ERROR, "16 of 16 pairs from prefill to decode"),
    }),
    # idle cards at Gen1 are healthy
    ("idle-gen1", FOUR, {}),
    # CUDA 13.0 needs 580, and 570 does not serve it
    ("driver-570", FOUR, {"gpu/driver/minimum": (Level.ERROR, "driver 570.172.08 serves CUDA 12.8")}),
    ("two-gpus", ONE, {}),
    ("spans", TWO, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "expected"), VERDICTS, ids=[case[0] for case in VERDICTS])
def test_the_verdict(
    name: str, data: dict[str, object], expected: dict[str, tuple[Level, str]], tmp_path: Path
) -> None:
    answers = recorded_answers(name, tmp_path)
    wanted = settings(**data)
    hardware = reading.read_hardware(answers)
    made = plan(
        wanted, hardware, RELEASE, profile(size_gb=16.0, moe_runner_backend={RELEASE.manifest.sglang: "triton"})
    )
    answers |= places(made)
    every = verdicts(Found(wanted, RELEASE.manifest, reading.read_system(answers), answers, NOW, hardware, made))
    assert {id: one.level for id, one in every.items() if one.level is not Level.HEALTHY} == {
        id: level for id, (level, _) in expected.items()
    }
    for id, (_, words) in expected.items():
        assert words in every[id].line
        assert every[id].advice
        assert every[id].evidence


@pytest.mark.parametrize(
    ("name", "check", "line"),
    [
        # the library was upgraded under the loaded module: a reboot mends it, nothing else does
        ("driver-mismatch", "gpu/driver/match", "Driver/library version mismatch"),
        ("no-nvidia", "gpu/driver/answers", "no nvidia-smi on this host"),
    ],
)
def test_a_host_without_a_list_of_gpus_is_refused_at_reading(name: str, check: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        reading.read_hardware(recorded_answers(name, tmp_path))
    (finding,) = refused.value.findings
    assert (finding.id, finding.level) == (check, Level.ERROR)
    assert line in finding.line
    assert finding.advice
