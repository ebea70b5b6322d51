"""PCIe links, what stands in the way of peer copies, and the driver's matrices."""

from __future__ import annotations

import re

from tasks.plan.checks.gpus import LOST, health, warned
from tasks.plan.checks.registry import NO_SUCH_TOOL, Found, Later, Unreadable, Verdict, check, error, healthy, warning
from tasks.plan.host.matrices import parse_p2p_matrix, parse_topo_matrix
from tasks.plan.service.instances import kv_pairs
from tasks.plan.service.placement import near, write_collapse

DEVICE = re.compile(r"^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f] ")


@check(
    "pcie/width/full",
    "plan",
    judges="each link is as wide as card and slot allow",
    source="local-inference-lab/rtx6kpro: idle cards narrow their speed, never their width",
    ask="nvidia-smi --query-gpu=index,pcie.link.width.current,pcie.link.width.max --format=csv",
    of_gpu=True,
)
def width(found: Found) -> Verdict:
    cards = [card for card in health(found) if not card.silent("pcie.link.width.max")]
    narrow = [c for c in cards if c.number("pcie.link.width.current") < c.number("pcie.link.width.max")]
    said = [
        f"GPU {c.gpu.index}: x{c.number('pcie.link.width.current')} of x{c.number('pcie.link.width.max')}"
        for c in narrow
    ]
    if any(c.gpu.index in found.wanted for c in narrow):
        return error(f"narrow PCIe links: {', '.join(said)}", "reseat card and riser, look at the slot's wiring", *said)
    if narrow:
        return warning(f"narrow PCIe links: {', '.join(said)} (no server gets it)", "reseat card and riser", *said)
    widths = ", ".join(sorted({f"x{card.cells['pcie.link.width.current']}" for card in cards}))
    return healthy(f"{len(cards)} links at full width ({widths})" if cards else "no PCIe link is shown")


@check(
    "pcie/generation/load",
    "plan",
    judges="a card under load runs its link at full speed; idle cards at Gen1 are healthy and not judged",
    source="local-inference-lab/rtx6kpro: healthy idle cards show Gen1",
    settings=("gpu_load_percent",),
    ask="nvidia-smi --query-gpu=index,utilization.gpu,pcie.link.gen.current,pcie.link.gen.max --format=csv",
    required=False,
    of_gpu=True,
)
def generation(found: Found) -> Verdict:
    cards = [card for card in health(found) if not card.silent("pcie.link.gen.max")]
    loaded = [c for c in cards if not c.silent("utilization.gpu")]
    loaded = [c for c in loaded if c.number("utilization.gpu") >= found.settings.gpu_load_percent]
    slow = [c for c in loaded if c.number("pcie.link.gen.current") < c.number("pcie.link.gen.max")]
    said = [
        f"GPU {c.gpu.index}: Gen{c.number('pcie.link.gen.current')} of Gen{c.number('pcie.link.gen.max')} "
        f"at {c.number('utilization.gpu')} %"
        for c in slow
    ]
    if said:
        return warning(
            f"slow PCIe links under load: {', '.join(said)}", "look at riser, slot and BIOS link speed", *said
        )
    idle = len(cards) - len(loaded)
    return healthy(f"{len(loaded)} cards under load at full speed, {idle} idle ones are not judged")


@check(
    "pcie/acs/off",
    "hardware",
    judges="no PCIe bridge redirects peer requests (ACS ReqRedir+); one that does is a warning",
    source="nccl#2079, vllm#33041: ACS makes collectives hang; the measured bandwidth decides",
    ask="lspci -vv | grep -E '^[0-9a-f]|ACSCtl' | grep -B1 ReqRedir+",
    required=False,
    of_gpu=True,
)
def acs(found: Found) -> Verdict:
    answer = found.answers.get("acs")
    if answer is not None and answer.status == NO_SUCH_TOOL:
        raise Later("lspci is not there yet, this run installs it: judged by the next one")
    bridge, controls, redirecting = "", 0, []
    for line in found.rows("acs"):
        if DEVICE.match(line):
            bridge = line.strip()
        if "ACSCtl:" not in line:
            continue
        controls += 1
        if "ReqRedir+" in line:
            redirecting.append(bridge)
    if not bridge:
        raise Unreadable("it names no device", found.rows("acs")[0])
    if redirecting:
        return warning(
            f"{len(redirecting)} of {controls} PCIe bridges redirect peer requests (ReqRedir+)",
            "switch ACS off in the BIOS, or on the bridges with setpci; the measured bandwidth decides",
            *redirecting[:4],
        )
    return healthy(f"none of {controls} PCIe bridges with access control redirects peer requests")


@check(
    "pcie/iommu/off",
    "hardware",
    judges="the IOMMU is off or passes through; one that translates the cards' DMA is a warning",
    source="nccl#2079, vllm#33041; sources disagree whether iommu=pt is enough, so the measured bandwidth decides",
    ask="cat /proc/cmdline; ls /sys/class/iommu; cat /sys/bus/pci/devices/*/iommu_group/type",
    required=False,
    of_gpu=True,
)
def iommu(found: Found) -> Verdict:
    rows = [line.partition(" ") for line in found.rows("iommu")]
    words = [word for key, _, rest in rows if key == "cmdline" for word in rest.split()]
    if not words:
        raise Unreadable("no kernel command line in it")
    options = [word for word in words if "iommu" in word]
    units = [rest for key, _, rest in rows if key == "unit"]
    groups = {bus: kind for key, _, rest in rows if key == "group" for bus, _, kind in [rest.partition(" ")]}
    translated = sorted(bus for bus, kind in groups.items() if kind.startswith("DMA"))
    said = f"kernel command line: {' '.join(options) or 'no word about an IOMMU'}; {len(units)} IOMMUs in use"
    if translated or (units and not groups and "iommu=pt" not in options):
        return warning(
            f"the IOMMU translates the DMA of {len(translated) or 'all'} cards",
            "add iommu=pt (or amd_iommu=off, intel_iommu=off) to the kernel command line; "
            "the measured bandwidth decides",
            said,
            *(f"{bus}: {groups[bus]}" for bus in translated[:4]),
        )
    return healthy("the IOMMU passes through" if units else "no IOMMU in use", said)


@check(
    "gpu/topology/matrix",
    "plan",
    judges="`nvidia-smi topo -m` can be read, where there is more than one GPU",
    source="placement reads distances from it",
    ask="nvidia-smi topo -m",
    of_gpu=True,
)
def matrix(found: Found) -> Verdict:
    if len(found.gpus) == 1:
        return healthy("one GPU, nothing to compare")
    lost = warned(found, LOST)
    if lost and found.hardware and found.hardware.topo is None:
        return warning(
            "the driver gives no matrix beside a card that it has lost: links between the others are unknown",
            "power the host off and on, or name GPUs that belong together in the settings *_gpus",
            *lost[:2],
        )
    read = parse_topo_matrix(found.text("topo"))
    missing = {gpu.index for gpu in found.gpus} - set(read.rows)
    if missing:
        raise Unreadable(f"no row for GPU{min(missing)}", *read.rows.values())
    return healthy(f"distances between {len(read.rows)} GPUs", *read.rows.values())


@check(
    "gpu/topology/numa",
    "plan",
    judges="every server's NUMA node is known, on a host with more than one; an unknown one is a warning",
    source="field reports: affinity is empty inside a cpuset; CPUs and memory of another node are slow",
    ask="cat /sys/bus/pci/devices/*/numa_node; nvidia-smi topo -m",
    required=False,
    of_gpu=True,
)
def numa(found: Found) -> Verdict:
    unknown = [w.name for w in found.plan.workers if w.placement and not w.placement.numa_nodes]
    if unknown and len(found.hardware.nodes) > 1:
        return warning(
            f"no NUMA node is known for {', '.join(unknown)}: nothing is bound",
            "the host hides it (a virtual machine?); name prefill_numa_node and decode_numa_node where you know it",
            *(f"{gpu.bus_id}: numa_node {gpu.numa_node}" for gpu in found.gpus if gpu.index in found.wanted),
        )
    return healthy("one NUMA node" if len(found.hardware.nodes) < 2 else "the node of every server is known")


@check(
    "gpu/placement/near",
    "plan",
    judges="the GPUs of one server share a socket or NVLink; others, which only a user names, are a warning",
    source="sglang#17680; published NCCL measurements on 8x RTX PRO 6000, PCIe only: 13 to 37 GB/s across sockets",
    settings=("prefill_gpus", "decode_gpus", "server_gpus"),
    ask="nvidia-smi topo -m",
    required=False,
    of_gpu=True,
)
def close(found: Found) -> Verdict:
    placements = tuple(worker.placement for worker in found.plan.workers if worker.placement)
    said = near(placements, found.hardware)
    return Verdict(said.level, said.line, said.advice, said.evidence)


@check(
    "gpu/writes/collapse",
    "plan",
    judges="two prefill GPUs behind one PCIe switch do not write KV to GPUs behind two roots; that shape is a warning",
    source="rtx6kpro collapse report: 37 GB/s fell to 2.7",
    settings=("prefill_gpus", "decode_gpus"),
    ask="nvidia-smi topo -m",
    required=False,
    of_gpu=True,
)
def collapse(found: Found) -> Verdict:
    placements = tuple(worker.placement for worker in found.plan.workers if worker.placement)
    shape = write_collapse(placements, found.hardware)
    return Verdict(shape.level, shape.line, shape.advice, shape.evidence)


def _refused(found: Found, pairs: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Those of the pairs that the driver's matrix does not call OK, with its status. Raises Unreadable."""
    read = parse_p2p_matrix(found.text("p2p"))
    try:
        statuses = [(a, b, read.status(a, b)) for a, b in pairs]
    except KeyError as absent:
        raise Unreadable(f"no entry for GPU {absent}") from None
    return [entry for entry in statuses if entry[2] != "OK"]


@check(
    "gpu/p2p/group",
    "plan",
    judges="the driver allows peer copies between the GPUs of one server; a refusal is a warning",
    source="NCCL then goes through host memory; an OK proves nothing, that is measured",
    ask="nvidia-smi topo -p2p rw",
    required=False,
    of_gpu=True,
)
def group(found: Found) -> Verdict:
    pairs = [(a, b) for worker in found.plan.workers for a in worker.gpus for b in worker.gpus if a != b]
    if not pairs:
        return healthy("one GPU a server, no peer inside")
    refused = _refused(found, pairs)
    if refused:
        return warning(
            f"no peer copies between {len(refused)} of {len(pairs)} pairs inside a server "
            f"(topo -p2p: {_statuses(refused)})",
            "NCCL goes through host memory; look at BIOS, ACS and IOMMU, or at the virtual machine's chipset",
            *(f"GPU {a} to GPU {b}: {status}" for a, b, status in refused[:4]),
        )
    return healthy(f"allowed between all {len(pairs)} pairs inside a server")


@check(
    "gpu/p2p/transfer",
    "plan",
    judges="the driver allows peer copies from prefill's GPUs to decode's",
    source="measured: without cuda_ipc the KV cache moves at 0.4 GB/s instead of 280-390, and nothing says so",
    ask="nvidia-smi topo -p2p rw",
    of_gpu=True,
)
def transfer(found: Found) -> Verdict:
    moves = kv_pairs(found.plan.workers)
    pairs = [(a, b) for prefill, decode in moves for a in prefill.gpus for b in decode.gpus]
    if not pairs:
        return healthy("whole servers: no KV cache moves between them")
    refused = _refused(found, pairs)
    if refused:
        return error(
            f"no peer copies for {len(refused)} of {len(pairs)} pairs from prefill to decode "
            f"(topo -p2p: {_statuses(refused)}): the KV cache would move through host memory",
            "look at BIOS, ACS and IOMMU, or at the virtual machine's chipset",
            *(f"GPU {a} to GPU {b}: {status}" for a, b, status in refused[:4]),
        )
    return healthy(f"allowed for all {len(pairs)} pairs from prefill to decode; what they carry is measured")


STATUSES = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "U": "unknown",
    "DR": "disabled by a registry key",
}


def _statuses(refused: list[tuple[int, int, str]]) -> str:
    found = sorted({status for *_, status in refused})
    return "; ".join(f"{status}, {STATUSES.get(status, 'without a legend')}" for status in found)
