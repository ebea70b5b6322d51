"""Which GPUs, CPUs and memory each server gets, derived from the measured topology."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.host import Hardware
from tasks.plan.settings import Settings
from tasks.plan.topology import spell_number_list

ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Placement:
    """One server's share of the host. `rule` says why it got it."""

    role: str
    number: int  # 0 for the first server of the role
    gpus: tuple[int, ...]
    numa_node: int | None  # None: the host does not say, so nothing is bound
    cpus: str  # kernel list of the node's CPUs, "" without a node
    rule: str

    @property
    def contiguous(self) -> bool:
        return list(self.gpus) == list(range(self.gpus[0], self.gpus[0] + len(self.gpus)))


def place(settings: Settings, hardware: Hardware) -> tuple[Placement, ...]:
    """A placement for every prefill and decode server, prefill first.

    Settings that name GPUs are kept and checked; the rest is derived: one NUMA node per server, each role on a node
    of its own where the host has one. Raises PlanError that shows the row of the matrix which contradicts.
    """
    known = {gpu.index for gpu in hardware.gpus}
    named = {role: settings.of_role(role, "gpus") for role in ROLES}
    for role in ROLES:
        absent = sorted(set(named[role] or []) - known)
        if absent:
            raise PlanError(
                f"setting {role}_gpus names GPU {absent[0]}, this host has {_indices(known)} "
                f"({hardware.gpus[0].name}); {_row(hardware, max(known))}"
            )
    wanted = sum(settings.of_role(role, "instances") * settings.of_role(role, "tensor_parallel") for role in ROLES)
    if wanted > len(known):
        asks = " + ".join(
            f"{settings.of_role(r, 'instances')} x {settings.of_role(r, 'tensor_parallel')} {r}" for r in ROLES
        )
        raise PlanError(
            f"the plan needs {wanted} GPUs ({asks}), this host has {len(known)}: "
            "lower *_tensor_parallel or *_instances; "
            f"{_row(hardware, max(known))}"
        )
    free = known - {gpu for gpus in named.values() for gpu in gpus or []}
    placed: list[Placement] = []
    for role in sorted(ROLES, key=lambda r: named[r] is None):  # what is named stands, what is derived goes around it
        parallel = settings.of_role(role, "tensor_parallel")
        for number in range(settings.of_role(role, "instances")):
            if named[role] is not None:
                gpus = tuple(sorted(named[role])[number * parallel : (number + 1) * parallel])
                placed.append(_given(role, number, gpus, settings, hardware))
            else:
                placed.append(_derived(role, number, parallel, free, placed, settings, hardware))
                free -= set(placed[-1].gpus)
    return tuple(sorted(placed, key=lambda p: (ROLES.index(p.role), p.number)))


def _given(role: str, number: int, gpus: tuple[int, ...], settings: Settings, hardware: Hardware) -> Placement:
    nodes = {gpu.numa_node for gpu in hardware.gpus if gpu.index in gpus}
    if len(nodes) > 1:
        first = next(gpu for gpu in hardware.gpus if gpu.index in gpus)
        other = next(gpu for gpu in hardware.gpus if gpu.index in gpus and gpu.numa_node != first.numa_node)
        raise PlanError(
            f"setting {role}_gpus = {list(gpus)} spans NUMA nodes: GPU {first.index} is on node {first.numa_node}, "
            f"GPU {other.index} on node {other.numa_node}; {_row(hardware, other.index)}"
        )
    node = nodes.pop()
    asked = settings.of_role(role, "numa_node")
    if asked is not None and asked != node:
        raise PlanError(
            f"setting {role}_numa_node = {asked}, but GPU {gpus[0]} of {role}_gpus is on node {node}; "
            f"{_row(hardware, gpus[0])}"
        )
    return _placement(role, number, gpus, node, hardware, f"{role}_gpus names them")


def _derived(
    role: str,
    number: int,
    parallel: int,
    free: set[int],
    placed: list[Placement],
    settings: Settings,
    hardware: Hardware,
) -> Placement:
    by_node: dict[int | None, list[int]] = {}
    for gpu in hardware.gpus:
        if gpu.index in free:
            by_node.setdefault(gpu.numa_node, []).append(gpu.index)
    asked = settings.of_role(role, "numa_node")
    if asked is not None:
        if asked not in {node.index for node in hardware.nodes}:
            raise PlanError(
                f"setting {role}_numa_node = {asked}, this host has NUMA nodes "
                f"{', '.join(str(node.index) for node in hardware.nodes) or 'none'}"
            )
        by_node = {asked: by_node.get(asked, [])}
    roomy = [node for node, gpus in by_node.items() if len(gpus) >= parallel]
    if not roomy:
        have = ", ".join(
            f"{_indices(set(gpus))} on node {'unknown' if node is None else node}"
            for node, gpus in by_node.items()
            if gpus
        )
        last = (
            max(gpu for gpus in by_node.values() for gpu in gpus)
            if any(by_node.values())
            else max(gpu.index for gpu in hardware.gpus)
        )
        raise PlanError(
            f"{role} needs {parallel} GPUs on one NUMA node, free are {have or 'none'}: "
            f"lower {role}_tensor_parallel or name {role}_gpus; {_row(hardware, last)}"
        )

    def preference(node: int | None) -> tuple[int, int, int]:
        others = sum(p.numa_node == node and p.role != role for p in placed)
        own = sum(p.numa_node == node and p.role == role for p in placed)
        return (others, -own, -1 if node is None else node)

    node = min(roomy, key=preference)
    gpus = tuple(sorted(by_node[node])[:parallel])
    rule = f"{role}_numa_node names the node" if asked is not None else "first NUMA node with room, roles apart"
    return _placement(role, number, gpus, node, hardware, rule)


def _placement(
    role: str, number: int, gpus: tuple[int, ...], node: int | None, hardware: Hardware, rule: str
) -> Placement:
    cpus = next((spell_number_list(n.cpus) for n in hardware.nodes if n.index == node), "")
    return Placement(role, number, gpus, node if cpus else None, cpus, rule)


def _indices(gpus: set[int]) -> str:
    return f"GPU {spell_number_list(frozenset(gpus))}"


def _row(hardware: Hardware, index: int) -> str:
    if hardware.topo is None or index not in hardware.topo.rows:
        return "the host gave no topology matrix"
    return f"topo -m says {' '.join(hardware.topo.rows[index].split())!r}"
