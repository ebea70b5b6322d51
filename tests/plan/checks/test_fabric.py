"""Cards joined by NVSwitches: registered with them or not, with a fabric manager or without."""

from __future__ import annotations

import pytest

from tasks.plan.findings import Level
from tasks.plan.host.answers import Answer
from tests.plan.judging import Changes, assert_verdict

HEALTHY, WARNING, ERROR = Level.HEALTHY, Level.WARNING, Level.ERROR
REGISTERED = "\n".join(f"{i}, Completed, Success" for i in range(8))
MANAGER = "LoadState=loaded\nActiveState=active\nFabric Manager version is : 580.95.05"
SWITCHED = "\n".join(f"0000:{i + 1:02x}:00.0 0x030200" for i in range(8)) + "\n0000:0a:00.0 0x068000"

# what is changed, settings, level, words of the line
CASES: list[tuple[Changes, dict[str, object], Level, str]] = [
    ({"fabric": Answer(2, 'Field "fabric.state" is not a valid field to query.')}, {}, HEALTHY, "no NVSwitch fabric"),
    ({"fabric": "\n".join(f"{i}, N/A, N/A" for i in range(8))}, {}, HEALTHY, "no NVSwitch fabric"),
    ({"fabric": REGISTERED, "fabricmanager": MANAGER}, {}, HEALTHY, "8 GPUs are registered"),
    ({"fabric": REGISTERED}, {}, HEALTHY, "8 GPUs are registered"),
    ({"fabric": REGISTERED, "fabricmanager": MANAGER.replace("=active", "=failed")}, {}, ERROR, "does not run (nvidia-fabricmanager.service is failed)|enable --now"),
    ({"fabric": REGISTERED, "fabricmanager": MANAGER.replace("580.95.05", "580.82.07")}, {}, ERROR, "of version 580.82.07, the driver of 580.95.05"),
    ({"fabric": REGISTERED.replace("2, Completed, Success", "2, In Progress, N/A")}, {}, ERROR, "GPU 2 is not registered|(In Progress, N/A)|error 802"),
    ({"fabric": REGISTERED.replace("2, Completed, Success", "2, Completed, Insufficient Resources")}, {}, ERROR, "(Completed, Insufficient Resources)"),
    ({"fabric": REGISTERED.replace("7, Completed, Success", "7, In Progress, N/A")}, {"decode_tensor_parallel": 2}, WARNING, "no server gets it"),
    ({"controllers": SWITCHED}, {}, ERROR, "1 NVSwitches and no fabric manager|nvidia-fabricmanager of version 580.95.05"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "data", "level", "words"), CASES)
def test_a_fabric_is_judged_by_its_manager_and_its_cards(
    changes: Changes, data: dict[str, object], level: Level, words: str
) -> None:
    assert_verdict("gpu/fabric/ready", changes, data, level, words)
