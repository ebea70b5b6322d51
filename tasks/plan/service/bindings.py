"""Are the running servers bound as planned? Compared from what the kernel and the driver say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.plan.host.answers import Answer, Hardware
from tasks.plan.host.matrices import number_list, spell_number_list
from tasks.plan.service.instances import Instance


@dataclass(frozen=True)
class Verdict:
    """faults: lines that contradict the plan. unknown: what could not be checked, and why."""

    faults: tuple[str, ...]
    unknown: tuple[str, ...]


def judge(
    sections: Mapping[str, Answer],
    instances: tuple[Instance, ...],
    hardware: Hardware,
    online: frozenset[int],
    on_gpu: bool,
) -> Verdict:
    """Compare each worker's processes with its placement. `online`: CPUs of the running kernel."""
    faults: list[str] = []
    unknown: list[str] = []
    index_of = {gpu.uuid: gpu.index for gpu in hardware.gpus}
    holders: dict[int, set[int]] = {}
    for line in sections["gpus"].text.splitlines() if sections.get("gpus", Answer(1, "")).status == 0 else []:
        pid, uuid, *_ = (cell.strip() for cell in f"{line},".split(","))
        if pid.isdecimal():  # else the driver's words, such as that it shows no process
            holders.setdefault(int(pid), set()).add(index_of.get(uuid, -1))
    for instance in instances:
        placement = instance.placement
        if placement is None:
            continue
        lines = [line.split() for line in sections.get(instance.unit, Answer(1, "")).text.splitlines()]
        lines = [words for words in lines if _is_process(words)]
        if not lines:
            faults.append(f"{instance.name}: no process of {instance.unit} could be read")
            continue
        planned = number_list(placement.cpus) if placement.cpus else frozenset()
        if not placement.numa_nodes:
            unknown.append(f"{instance.name}: CPUs and memory (the host names no NUMA node)")
        elif not planned <= online:
            unknown.append(
                f"{instance.name}: CPUs and memory (planned {placement.cpus}, "
                f"this kernel has {spell_number_list(online)})"
            )
        else:
            for pid, cpus, policy in lines:
                if not number_list(cpus) <= planned:
                    faults.append(f"{instance.name}: pid {pid} may run on CPUs {cpus}, planned are {placement.cpus}")
                if policy == "-":
                    unknown.append(f"{instance.name}: memory of pid {pid} (the kernel shows no policy)")
                elif policy != f"bind:{placement.nodes}":
                    faults.append(
                        f"{instance.name}: pid {pid} has memory policy {policy}, planned is node {placement.nodes}"
                    )
        if not on_gpu:
            unknown.append(f"{instance.name}: GPUs (a CPU release holds none)")
            continue
        held = set().union(*(holders.get(int(line[0]), set()) for line in lines))
        if not held and not holders:
            unknown.append(f"{instance.name}: GPUs (the driver shows no process)")
        elif held != set(placement.gpus):
            faults.append(f"{instance.name}: holds GPU {sorted(held)}, planned are {list(placement.gpus)}")
    return Verdict(tuple(faults), tuple(unknown))


def _is_process(words: list[str]) -> bool:
    """Whether a line tells of a process: one that ended meanwhile has no CPUs."""
    try:
        return len(words) == 3 and int(words[0]) > 0 and bool(number_list(words[1]))
    except ValueError:
        return False
