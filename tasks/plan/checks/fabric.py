"""Cards joined by NVSwitches: the fabric manager, and whether they are registered."""

from __future__ import annotations

import re

from tasks.plan.checks.gpus import NOT_SAID, by_use, indices
from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, error, healthy

NO_FABRIC_COLUMN = "is not a valid field to query"  # drivers from before the fabric was told
REGISTERED = ("Completed", "Success")
NVSWITCH = "0x0680"  # PCI class of an NVSwitch: a bridge of another kind


@check(
    "gpu/fabric/ready",
    "plan",
    judges="cards joined by NVSwitches are registered with them (Completed, Success), and the fabric manager, where it "
    "is this host's, runs and has the driver's version",
    source="NVSentinel#883, #889, azhpc-images#506, huggingface_hub#4134: nvidia-smi looks healthy, CUDA fails with "
    "error 802; NVIDIA's fabric manager guide: its version must be the driver's",
    ask="nvidia-smi --query-gpu=index,fabric.state,fabric.status --format=csv; systemctl status nvidia-fabricmanager",
    of_gpu=True,
)
def fabric(found: Found) -> Verdict:
    switches = [line for line in found.text_or_empty("controllers").splitlines() if f" {NVSWITCH}" in line]
    states = _fabric_states(found)
    if not states and not switches:
        return healthy("these cards have no NVSwitch fabric")
    manager = found.answers.get("fabricmanager")
    text = manager.text if manager and manager.status == 0 else ""
    driver = found.gpus[0].driver
    package = f"nvidia-fabricmanager of version {driver}"
    unit = dict(re.findall(r"^(LoadState|ActiveState)=(.*)$", text, re.MULTILINE))
    version = re.search(r"([0-9]+(?:\.[0-9]+){1,2})\s*$", text)
    said = [f"GPU {index}: fabric.state {state}, fabric.status {status}" for index, (state, status) in states.items()]
    if unit.get("LoadState") == "loaded":
        if version and version[1] != driver:
            return error(
                f"the fabric manager is of version {version[1]}, the driver of {driver}: CUDA fails with error 802",
                f"install {package}, then restart nvidia-fabricmanager.service",
                *text.strip().splitlines(),
            )
        if unit.get("ActiveState") != "active":
            return error(
                f"the fabric manager does not run (nvidia-fabricmanager.service is {unit.get('ActiveState')}): "
                "CUDA fails with error 802",
                "`systemctl enable --now nvidia-fabricmanager`; its journal says why where it does not start",
                *text.strip().splitlines(),
            )
    elif switches:
        return error(
            f"{len(switches)} NVSwitches and no fabric manager: CUDA fails with error 802",
            f"install {package}, then `systemctl enable --now nvidia-fabricmanager`",
            *switches[:4],
        )
    unready = [index for index, told in states.items() if told != REGISTERED]
    if unready:
        state, status = states[unready[0]]
        return by_use(
            found,
            unready,
            f"{indices(unready)} is not registered with its NVSwitches ({state}, {status}): CUDA fails with error 802",
            "wait where the host has just booted, else restart nvidia-fabricmanager.service (in a virtual machine: on "
            "its host) and read its journal",
            said,
        )
    return healthy(f"{len(states)} GPUs are registered with their NVSwitches", *said)


def _fabric_states(found: Found) -> dict[int, tuple[str, str]]:
    """State and status of the cards that have a fabric, by index. {} where the driver does not know of one."""
    answer = found.answers.get("fabric")
    if answer is not None and NO_FABRIC_COLUMN in answer.text:
        return {}
    states = {}
    for line in found.rows("fabric"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not cells[0].isdecimal():
            raise Unreadable("a line that is cut short or of another shape", line.strip())
        if cells[1] not in NOT_SAID:
            states[int(cells[0])] = (cells[1], cells[2])
    return states
