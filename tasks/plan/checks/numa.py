"""NUMA nodes: CPUs and memory for the servers that are bound to them, and whether they may be bound."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from tasks.plan.checks.registry import (
    GB,
    NO_SUCH_TOOL,
    Found,
    Later,
    Unreadable,
    Verdict,
    check,
    error,
    healthy,
    warning,
)
from tasks.plan.host.matrices import number_list, spell_number_list
from tasks.plan.service import retraction
from tasks.plan.service.units import is_ours
from tasks.plan.settings.roles import Decode


def _ranks_of_node(found: Found) -> Iterator[tuple[int, str, int]]:
    """(NUMA node, role, GPU) for each GPU (for a CPU release: rank) of the servers that are bound to a node."""
    node_of = {gpu.index: gpu.numa_node for gpu in found.gpus}
    for worker in found.plan.workers:
        nodes = worker.placement.numa_nodes if worker.placement else ()
        for gpu in worker.placement.gpus if worker.placement and nodes else ():
            own = node_of.get(gpu)
            yield own if own is not None and own in nodes else nodes[0], worker.role, gpu


def _gpus_of_node(found: Found) -> dict[int, int]:
    """NUMA node -> GPUs of the servers that are bound to it."""
    return dict(Counter(node for node, _, _ in _ranks_of_node(found)))


def _pinned(found: Found, role: str, index: int) -> float:
    """GB of host memory that one GPU's rank pins for requests that decode takes back."""
    decode = found.settings.roles.get(role)
    memory = next((gpu.memory_mib for gpu in found.gpus if gpu.index == index), 0)
    if not isinstance(decode, Decode):
        return 0.0
    return retraction.pinned_gb(decode, found.plan.profile, memory, found.plan.arguments)


def held(found: Found) -> Mapping[int, float]:
    """GB that the processes of our own units hold, by NUMA node. Raises Unreadable."""
    if "own" not in found.answers:
        raise Unreadable("the host's answer is cut short")
    total: dict[int, float] = {}
    for line in found.answers["own"].text.splitlines():
        unit, _, counts = line.strip().partition(" ")
        if not unit.endswith(".service"):
            raise Unreadable("a line of another shape", line.strip())
        if not is_ours(unit):
            continue
        for node, size in re.findall(r"N([0-9]+)=([0-9]+)", counts):
            total[int(node)] = total.get(int(node), 0.0) + int(size) / GB
    return total


@check(
    "numa/cpus/enough",
    "plan",
    judges="each NUMA node has enough CPUs for its servers",
    source="SGLang runs a busy scheduler per GPU, beside it tokenizer, detokenizer and the transfer's threads",
    settings=("minimum_cpus_per_gpu",),
    ask="cat /sys/devices/system/node/node*/cpulist",
)
def cpus(found: Found) -> Verdict:
    each = found.settings.minimum_cpus_per_gpu
    have = {node.index: len(node.cpus) for node in found.hardware.nodes}
    wanted = _gpus_of_node(found)
    said = [f"node {node}: {have.get(node, 0)} CPUs for {gpus} GPUs" for node, gpus in sorted(wanted.items())]
    short = [node for node, gpus in wanted.items() if have.get(node, 0) < gpus * each]
    if short:
        return error(
            f"too few CPUs: {'; '.join(said)}, {each} a GPU are needed",
            "give the servers GPUs on other nodes, or fewer of them",
            *said,
        )
    return healthy("; ".join(said) or "no server is bound to a node", *said)


@check(
    "numa/memory/enough",
    "plan",
    judges="each NUMA node has enough free memory for its servers; what our own units hold there counts as free",
    source="a rule of thumb of this playbook: CUDA context, imports and pinned buffers of a rank, doubled; decode's "
    "host pool: 20 % of the KV cache, as SGLang 0.5.23 takes it",
    settings=("minimum_memory_gb_per_gpu", "decode_retraction_backup", "decode_retraction_gb"),
    ask="numactl -H",
    of_gpu=True,  # a CPU release sizes its pools by what is free
)
def node_memory(found: Found) -> Verdict:
    free: dict[int, float] = {}
    for line in found.rows("nodememory"):
        row = re.match(r"Node ([0-9]+) (\w+):\s+([0-9]+) kB", line)
        if not row:
            raise Unreadable("a line of another shape", line.strip())
        if row[2] in ("MemFree", "FilePages"):  # pages of files are given up for programs
            free[int(row[1])] = free.get(int(row[1]), 0.0) + int(row[3]) * 1024 / GB
    own, each = held(found), found.settings.minimum_memory_gb_per_gpu
    wanted, pinned = _gpus_of_node(found), dict.fromkeys(free, 0.0)
    said = []
    for node, role, gpu in _ranks_of_node(found):
        pinned[node] = pinned.get(node, 0.0) + _pinned(found, role, gpu)
    for node, gpus in sorted(wanted.items()):
        if node not in free:
            raise Unreadable(f"no memory of node {node} in it")
        pool = f" and {pinned[node]:.0f} GB that decode pins" if pinned[node] else ""
        said.append(f"node {node}: {free[node] + own.get(node, 0.0):.0f} GB for {gpus} GPUs{pool}")
    short = [node for node, gpus in wanted.items() if free[node] + own.get(node, 0.0) < gpus * each + pinned[node]]
    if short:
        smaller = ', or set decode_retraction_backup = "cpu_tensor"' if any(pinned[node] for node in short) else ""
        return error(
            f"too little free memory: {'; '.join(said)}, {each:g} GB a GPU are needed",
            f"free it, or give the servers GPUs on another node{smaller}",
            *said,
        )
    return healthy("; ".join(said) or "no server is bound to a node", *said)


@check(
    "host/memory/free",
    "plan",
    judges="the host has enough memory available for all servers; what our own units hold counts as free",
    source="as numa/memory/enough",
    settings=("minimum_memory_gb_per_gpu", "decode_retraction_backup", "decode_retraction_gb"),
    ask="free -g",
    of_gpu=True,
)
def host_memory(found: Found) -> Verdict:
    row = re.search(r"^MemAvailable:\s+([0-9]+) kB", found.text("memory"), re.MULTILINE)
    if not row:
        raise Unreadable("no MemAvailable in it", *found.rows("memory"))
    available = int(row[1]) * 1024 / GB + sum(held(found).values())
    ranks = [(w.role, gpu) for w in found.plan.workers if w.placement for gpu in w.placement.gpus]
    pinned = sum(_pinned(found, role, gpu) for role, gpu in ranks)
    needed = len(found.wanted) * found.settings.minimum_memory_gb_per_gpu + pinned
    if available < needed:
        pool = f", {pinned:.0f} of them for what decode pins" if pinned else ""
        smaller = ', or set decode_retraction_backup = "cpu_tensor"' if pinned else ""
        return error(
            f"{available:.0f} GB of memory are available, {needed:.0f} GB are needed for {len(found.wanted)} "
            f"GPUs{pool}",
            f"end what holds it, or run fewer servers{smaller}",
            row[0],
        )
    return healthy(f"{available:.0f} GB available, {needed:.0f} GB are needed", row[0])


def _allowed(found: Found, field: str) -> frozenset[int]:
    row = re.search(rf"^{field}:\s*(\S+)$", found.text("pid1"), re.MULTILINE)
    if not row:
        raise Unreadable(f"no {field} in it", *found.rows("pid1"))
    return number_list(row[1])


@check(
    "numa/cpuset/cpus",
    "plan",
    judges="systemd may use the CPUs of the servers' NUMA nodes; a part that is missing is a warning",
    source="sglang#27368, #26983: numactl kills a worker without a word inside a restricted cpuset",
    ask="grep Cpus_allowed_list /proc/1/status",
)
def allowed_cpus(found: Found) -> Verdict:
    allowed = _allowed(found, "Cpus_allowed_list")
    for worker in found.plan.workers:
        placement = worker.placement
        planned = number_list(placement.cpus) if placement and placement.cpus else frozenset()
        said = f"Cpus_allowed_list: {spell_number_list(allowed)}"
        if planned and not planned & allowed:
            return error(
                f"{worker.name} is to run on CPUs {spell_number_list(planned)}, this host lets systemd use "
                f"{spell_number_list(allowed)}",
                "widen the cpuset (container or virtual machine), or give the server GPUs on another node",
                said,
            )
        if not planned <= allowed:
            return warning(
                f"{len(planned - allowed)} of {len(planned)} CPUs of {worker.name} are closed to it",
                "widen the cpuset (container or virtual machine)",
                said,
            )
    return healthy(f"CPUs {spell_number_list(allowed)}")


@check(
    "numa/cpuset/memory",
    "plan",
    judges="systemd may use the memory of the servers' NUMA nodes (Mems_allowed)",
    source="sglang#27368, #26983",
    ask="grep Mems_allowed_list /proc/1/status",
)
def allowed_memory(found: Found) -> Verdict:
    allowed, wanted = _allowed(found, "Mems_allowed_list"), frozenset(_gpus_of_node(found))
    said = f"Mems_allowed_list: {spell_number_list(allowed)}"
    if not wanted <= allowed:
        return error(
            f"servers are bound to the memory of node {spell_number_list(wanted - allowed)}, "
            f"this host lets systemd use node {spell_number_list(allowed)}",
            "widen the cpuset (container or virtual machine), or give the servers GPUs on other nodes",
            said,
        )
    return healthy(f"memory of node {spell_number_list(allowed)}", said)


@check(
    "numa/binding/works",
    "plan",
    judges="`numactl ... true` succeeds for every binding; judged once numactl is installed",
    source="sglang#27368, #26983: numactl kills a worker without a word",
    ask="numactl --cpunodebind=NODE --membind=NODE true",
)
def binding(found: Found) -> Verdict:
    bindings = found.plan.bindings
    for command in bindings:
        answer = found.answers.get(f"binding {command}")
        if answer is not None and answer.status == NO_SUCH_TOOL:
            raise Later("numactl is not there yet, this run installs it")
        if answer is not None and answer.status not in (0, 124, 137):
            said = answer.text.strip().splitlines() or ["without a word"]
            return error(
                f"`{command} true` fails: {said[-1]}", "give the servers GPUs on a node that takes them", *said
            )
        if answer is None or answer.status != 0:
            raise Unreadable(f"`{command} true` gave no answer")
    return healthy("; ".join(bindings) or "no server is bound to a node")
