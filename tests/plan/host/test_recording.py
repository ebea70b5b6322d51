"""A recording holds what a host's tools said, whole or not at all, and nothing that names the host or its owner."""

from __future__ import annotations

import json

import pytest

from tasks.facts.recording import QUESTIONS, section_of
from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.host.recording import SEAL, fault, read

UUID = "GPU-3f6a1c52-88d0-4b7e-9a41-0c5d2e71b906"
OTHER = "GPU-71b0e9d4-2c35-4f18-b6aa-5d9e03c48f12"
# What may stand somewhere in a host's answers, and must stand nowhere in its recording.
PLANTED = [
    "hunter2", "5d1b6c0e", "3f6a1c52", "71b0e9d4", "rack7-gpu", "example.com", "alice", "train_secret.py",
    "10.20.30.40", "fe80::1", "0c:42:a1:b2:c3:d4", "1650123456789",
]  # fmt: skip
ASKED = [section_of(question) for question in QUESTIONS]


def answers(**changes: Answer) -> dict[str, Answer]:
    """Of a host whose every answer holds something of its owner."""
    of_tools: dict[tuple[str, ...], Answer] = dict.fromkeys(QUESTIONS, Answer(127, ""))
    of_tools[("nvidia-smi", "-L")] = Answer(0, f"GPU 0: B (UUID: {UUID})\nGPU 1: B (UUID: {OTHER})")
    of_tools[("nvidia-smi", "topo", "-m")] = Answer(0, "\x1b[4m\tGPU0\x1b[0m\nGPU0\t X ")
    of_tools[QUESTIONS[1]] = Answer(0, f"1, {OTHER.upper()}, 00000000:07:00.0, B, 12.0, 580.95.05, 97887")
    of_tools[("dmesg",)] = Answer(
        0,
        "[    0.0] Linux version 6.8 (alice@rack7-gpu.example.com) on 10.20.30.40 fe80::1 0c:42:a1:b2:c3:d4\n"
        "[   99.1] NVRM: Xid (PCI:0000:07:00): 13, pid=77, name=train_secret.py, Graphics Exception",
    )
    files = {
        "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=5d1b6c0e-2f7a-4c39-9b08-7ae41d60c2f5 ro iommu=pt luks=hunter2",
        "/proc/driver/nvidia/version": "NVRM version: 580.95.05 (alice@rack7-gpu)",
        "/proc/driver/nvidia/gpus/0000:07:00.0/information": f"GPU UUID: \t {OTHER}\nSerial:\t1650123456789\nIRQ:\t 300",
        "/sys/devices/system/node/node0/cpumap": "00000000,ffffffff",
    }
    return {
        **{f"file {path}": Answer(0, text) for path, text in files.items()},
        "names": Answer(0, "rack7-gpu\nrack7-gpu.example.com\n10.20.30.40 fe80::1"),
        "fabricmanager": Answer(0, "LoadState=not-found\nActiveState=inactive"),
        **{section_of(question): answer for question, answer in of_tools.items()},
        "end": Answer(0, ""),
        **changes,
    }


def recorded() -> dict[str, str]:
    return {path: content.decode() for path, content in read(answers(), ASKED, ["gpu-1", "10.20.30.40"]).items()}


@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_names_the_host_or_its_owner(planted: str) -> None:
    assert any(planted.lower() in answer.text.lower() for answer in answers().values()), "it is planted"
    assert [path for path, text in recorded().items() if planted.lower() in text.lower()] == []


def test_a_gpu_has_one_stand_in_everywhere() -> None:
    files = recorded()
    first, second = (line.split("UUID: ")[1].rstrip(")") for line in files["commands/nvidia-smi/1/stdout"].splitlines())
    assert first != second
    assert files["commands/nvidia-smi/2/stdout"].split(", ")[1] == second
    assert second in files["files/proc/driver/nvidia/gpus/0000:07:00.0/information"]


def test_what_facts_read_is_kept_as_it_was() -> None:
    files = recorded()
    assert files["files/proc/cmdline"] == "ro iommu=pt\n"
    assert "NVRM: Xid (PCI:0000:07:00): 13, pid=77, name=recorded, Graphics" in files["commands/dmesg/1/stdout"]
    assert files["commands/nvidia-smi/3/stdout"] == "\x1b[4m\tGPU0\x1b[0m\nGPU0\t X \n"
    assert files["commands/nvidia-smi/3/args"] == "topo\n-m\n"
    assert "580.95.05" in files["files/proc/driver/nvidia/version"]
    assert files["files/sys/devices/system/node/node0/cpumap"] == "00000000,ffffffff\n"


def test_a_tool_that_is_not_there_has_no_answers() -> None:
    files = recorded()
    assert not any(path.startswith(("commands/modinfo", "commands/lscpu")) for path in files)
    assert files["commands/lspci/absent/rc"] == "127\n", "a deploy installs it: the answer must stay"


def test_the_fabric_managers_state_is_kept() -> None:
    running = answers(fabricmanager=Answer(0, "LoadState=loaded\nActiveState=active"))
    assert read(running, ASKED, [])["units"] == b"nvidia-fabricmanager.service active\n"


@pytest.mark.parametrize("lost", [ASKED[0], ASKED[-1], "names", "end"])
def test_an_answer_that_is_cut_short_is_not_recorded(lost: str) -> None:
    cut = {name: answer for name, answer in answers().items() if name != lost}
    with pytest.raises(PlanError, match="nothing is recorded, run again"):
        read(cut, ASKED, [])


def test_the_seal_tells_whether_a_recording_is_whole() -> None:
    files = read(answers(), ASKED, [])
    seal = files.pop(SEAL).decode()
    path = "files/proc/cmdline"
    assert fault(seal, files) == ""
    assert fault(None, files) == "it has no recording.json, which is written last"
    assert fault(seal[:100], files) == "its recording.json cannot be read"
    assert fault(seal, {name: text for name, text in files.items() if name != path}) == f"{path} is missing"
    assert fault(seal, {**files, path: b"ro\n"}) == f"{path} is not as it was recorded"
    assert fault(seal, {**files, "more": b""}) == "more is not as it was recorded"
    assert fault(json.dumps([]), files) == "its recording.json cannot be read"


@pytest.mark.parametrize(
    "name",
    [
        "file /../../../home/me/.bashrc",
        "file /proc/../../x",
        "file /sys/..",
        "file /etc/shadow",
        "file x",
        "file /proc/a//b",
        'answer ["../x"]',
        "answer x",
    ],
)
def test_a_host_does_not_say_where_files_land(name: str) -> None:
    found = read(answers(**{name: Answer(0, "x")}), ASKED, [])
    assert found == read(answers(), ASKED, [])
