"""The scripts of the facts, run by a real shell beside tools that answer badly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tasks.facts.hardware import Hardware
from tasks.facts.listeners import Listeners
from tasks.facts.planned import Planned
from tasks.facts.sections import Sections
from tasks.facts.system import System
from tasks.plan.findings import Refused
from tasks.plan.host.answers import Answer, read_hardware
from tests.plan.builders import overlay, release
from tests.plan.judging import healthy_answers

COUNT = 'echo "$*" >>"$ASKED"\n'
TOLD = (
    release(patches=[overlay(targets={"always": [{"module": "sglang.srt.x", "function": "run"}]})])
    .patch_list(contents=False)
    .decode()
)
HANGS = "exit 124\n"  # as coreutils' timeout ends where it had to stop a command


def answers(fact: Sections, tmp_path: Path, tools: Mapping[str, str], **arguments: object) -> Mapping[str, Answer]:
    """What a fact brings where these tools stand first on PATH: name -> shell script."""
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
    ran = subprocess.run(
        ["sh", "-c", fact.command(**arguments)],  # type: ignore[call-arg]
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked")},
        capture_output=True,
        text=True,
        check=True,
    )
    return fact.process(ran.stdout.splitlines())


def test_every_section_that_a_check_reads_is_asked(tmp_path: Path) -> None:
    """With the section's names taken from the healthy host of the checks' own tests."""
    asked = {
        **answers(System(), tmp_path, {}, user="x", paths=["/"], sysctls=["fs.nr_open"], packages=["apt"]),
        **answers(Hardware(), tmp_path, {"nvidia-smi": "exit 9\n"}),
        **answers(Listeners(), tmp_path, {}),
        **answers(
            Planned(), tmp_path, {"numactl": "exit 0\n"}, release_file="/x", model_file="/y", site_packages="/z",
            bindings=["numactl --cpunodebind=0 --membind=0", "numactl --cpunodebind=1 --membind=1"],
            releases=str(tmp_path), sglang="9.9", patches=TOLD,
        ),
    }  # fmt: skip
    assert asked.keys() == healthy_answers([0, 1]).keys()
    assert asked["variables"].status == 3
    assert asked["patches"].status == 3
    assert asked["files"] == Answer(0, "")
    assert asked["binding numactl --cpunodebind=1 --membind=1"].status == 0


def test_a_driver_that_hangs_is_asked_once(tmp_path: Path) -> None:
    tools = {"nvidia-smi": "exit 0\n", "timeout": f'case "$*" in *nvidia-smi*) {COUNT} {HANGS} ;; esac\nexit 1\n'}
    found = answers(Hardware(), tmp_path, tools)
    assert [found[name].status for name in ("gpus", "health", "rows", "topo", "p2p", "apps")] == [124] * 6
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    with pytest.raises(Refused, match="no answer within 30 s"):
        read_hardware(found)


def on_a_bus(tmp_path: Path, count: int, tools: Mapping[str, str]) -> Mapping[str, Answer]:
    """What the fact Hardware brings from a host with `count` cards on its bus, 0000:01:00.0 the first."""
    for i in range(count):
        for end, kind in ((0, "0x030200"), (1, "0x040300")):  # a card, and its sound device
            device = tmp_path / f"bus/0000:{i + 1:02x}:00.{end}"
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text(f"{kind}\n")

    class OnABus(Hardware):
        def command(self) -> str:
            return super().command().replace("/sys/bus/pci/devices", str(tmp_path / "bus"))

    return answers(OnABus(), tmp_path, tools)


def test_the_driver_gets_more_time_for_each_card(tmp_path: Path) -> None:
    """Without persistence eight cards need 25 to 35 s for a good answer (cvmimage#363)."""
    tools = {"nvidia-smi": "exit 0\n", "timeout": f'case "$*" in *nvidia-smi*) {COUNT} {HANGS} ;; esac\nexit 1\n'}
    found = on_a_bus(tmp_path, 8, tools)
    assert "-k 5 110 nvidia-smi" in (tmp_path / "asked").read_text()
    assert found["apps"] == Answer(124, "no answer within 110 s")


def test_a_corrupted_inforom_is_told_beside_a_good_answer(tmp_path: Path) -> None:
    corrupted = "WARNING: infoROM is corrupted at gpu 0000:02:00.0"
    found = on_a_bus(tmp_path, 2, {"nvidia-smi": f"echo good; echo {corrupted}; exit 14\n"})
    for name in ("gpus", "health", "rows", "fabric", "topo", "p2p", "apps"):
        assert found[name] == Answer(0, "good")
    assert found["warned"] == Answer(0, corrupted)


def test_beside_a_lost_card_the_others_still_answer(tmp_path: Path) -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:02:00.0: Unknown Error"
    fails = f'echo "{lost}"; exit 255'
    smi = f'case "$*" in "-i 0000:02:00.0 "*) {fails} ;; "-i "*) echo "0, of $2" ;; *) {fails} ;; esac\n'
    found = on_a_bus(tmp_path, 3, {"nvidia-smi": smi})
    assert found["gpus"] == Answer(0, "0, of 0000:01:00.0\n0, of 0000:03:00.0")
    assert found["warned"] == Answer(0, lost)


def test_a_driver_without_any_card_that_answers_is_no_good_answer(tmp_path: Path) -> None:
    lost = "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error"
    found = on_a_bus(tmp_path, 1, {"nvidia-smi": f'echo "{lost}"; exit 255\n'})
    assert found["gpus"] == Answer(255, lost)


def test_the_kernel_log_comes_from_dmesg_where_the_journal_has_none(tmp_path: Path) -> None:
    log = "echo '[ 0.0] Linux version 6'; echo '[ 9.1] NVRM: Xid (PCI:0000:03:00): 79, pid=1'; echo '[ 9.2] other'\n"
    found = answers(Hardware(), tmp_path, {"journalctl": "exit 0\n", "dmesg": log})
    assert found["kernel"].text.splitlines() == [
        "3 lines, the first: [ 0.0] Linux version 6",
        "[ 9.1] NVRM: Xid (PCI:0000:03:00): 79, pid=1",
    ]


def test_a_kernel_log_that_may_not_be_read_is_no_empty_log(tmp_path: Path) -> None:
    refused = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n"
    found = answers(Hardware(), tmp_path, {"journalctl": "exit 1\n", "dmesg": refused})
    assert found["kernel"].status == 1
    assert "not permitted" in found["kernel"].text


def test_who_computes_is_told_with_unit_and_command(tmp_path: Path) -> None:
    found = answers(
        Hardware(), tmp_path, {"nvidia-smi": f'case "$*" in *apps*) echo "{os.getpid()}, GPU-x, 5" ;; esac\n'}
    )
    assert found["apps"].text == f"{os.getpid()}, GPU-x, 5"
    assert found["holders"].text.startswith(f"{os.getpid()}\t")
    assert "python" in found["holders"].text


def test_wheels_of_a_folder(tmp_path: Path) -> None:
    arguments: dict[str, object] = {
        "release_file": "/x", "model_file": "/y", "site_packages": "/z", "bindings": [], "releases": str(tmp_path),
        "sglang": "9.9", "patches": "",
    }  # fmt: skip
    assert "wheels" not in answers(Planned(), tmp_path, {}, **arguments)
    (tmp_path / "wheels" / "below").mkdir(parents=True)
    for name in ("wheels/a-1-py3-none-any.whl", "wheels/below/b-1-py3-none-any.whl", "wheels/SHA256SUMS"):
        (tmp_path / name).touch()
    asked = answers(Planned(), tmp_path, {}, **arguments, wheelhouse=str(tmp_path / "wheels"))
    assert asked["wheels"] == Answer(0, "a-1-py3-none-any.whl")
    assert answers(Planned(), tmp_path, {}, **arguments, wheelhouse="/nowhere")["wheels"].status == 4


def test_names_in_the_source_of_a_built_release(tmp_path: Path) -> None:
    (tmp_path / "site/sglang/srt").mkdir(parents=True)
    (tmp_path / "site/sglang/srt/environ.py").write_text("SGLANG_B = 1\nSGLANG_A = get('SGLANG_B')\n")
    (tmp_path / "release.json").write_text("{}")
    found = answers(
        Planned(), tmp_path, {}, release_file=str(tmp_path / "release.json"), model_file="/y",
        site_packages=str(tmp_path / "site"), bindings=[], releases=str(tmp_path), sglang="9.9", patches="",
    )  # fmt: skip
    assert found["variables"] == Answer(0, "SGLANG_A\nSGLANG_B")
    assert found["files"].text == str(tmp_path / "release.json")


@pytest.mark.parametrize("own", [True, False], ids=["this release", "another of the same SGLang"])
def test_patches_are_judged_by_a_built_release(tmp_path: Path, own: bool) -> None:
    site = tmp_path / "releases/r1/env/lib/python3.11/site-packages"
    (site / "sglang/srt").mkdir(parents=True)
    (site / "sglang-9.9.dist-info").mkdir()
    (site / "sglang/srt/x.py").write_text("def walk(): pass\n")
    asked = {
        "release_file": "/x", "model_file": "/y", "bindings": [], "releases": str(tmp_path / "releases"), "patches": TOLD,
        "site_packages": str(site if own else tmp_path / "releases/r2/env/lib/python3.11/site-packages"), "sglang": "9.9",
    }  # fmt: skip
    assert answers(Planned(), tmp_path, {}, **asked)["patches"].status == 3, "not built whole"
    (tmp_path / "releases/r1/release.json").write_text("{}")
    found = answers(Planned(), tmp_path, {}, **asked)["patches"]
    assert found == Answer(1, "patch shim looked for run in sglang.srt.x: sglang.srt.x has walk")
    (site / "sglang/srt/x.py").write_text("def run(): pass\n")
    assert answers(Planned(), tmp_path, {}, **asked)["patches"] == Answer(0, "fit: shim")
    assert answers(Planned(), tmp_path, {}, **{**asked, "sglang": "9.8"})["patches"].status == 3
