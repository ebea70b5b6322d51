"""Which GPUs, CPUs and memory each server gets, derived from the measured topology."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations

from tasks.plan.errors import PlanError
from tasks.plan.findings import Finding, Level
from tasks.plan.host.answers import Hardware
from tasks.plan.host.matrices import spell_number_list
from tasks.plan.settings.roles import PAIR, ROLES, Role

# Farthest first (legend of `nvidia-smi topo -m`), SOCKET between two NUMA nodes of one socket; NVLink beats them all.
LINKS = ("SYS", "SOCKET", "NODE", "PHB", "PXB", "PIX")
ONE_SWITCH = ("PIX", "PXB")  # links that stay below one host bridge
# SLIT below which two nodes share a socket: ACPI's default for a remote node is 20; NPS4 says 12 inside, 32 outside.
REMOTE_SOCKET = 20
# Assignments looked at, the nearest first: 8 GPUs need fewer than 2,000; 16 of odd links would need millions.
MOST_STEPS = 10_000

Gpus = tuple[int, ...]
Distance = tuple[
    int, ...
]  # links by kind as in LINKS, then the NVLinks, negated; compared from the left, less is nearer


@dataclass(frozen=True)
class Placement:
    """One server's share of the host. `rule` says why it got it."""

    role: str
    number: int  # 0 for the first server of the role
    name: str  # of the server: prefill; prefill-0, prefill-1 where there are several
    gpus: Gpus
    numa_nodes: tuple[int, ...]  # several where no node holds all of them; () where the host names none: nothing bound
    cpus: str  # kernel list of the nodes' CPUs, "" without a node
    rule: str

    @property
    def contiguous(self) -> bool:
        return list(self.gpus) == list(range(self.gpus[0], self.gpus[0] + len(self.gpus)))

    @property
    def nodes(self) -> str:
        """The nodes in the kernel's and numactl's spelling: "0", "0-3"; "" without one."""
        return spell_number_list(frozenset(self.numa_nodes))

    @property
    def where(self) -> str:
        """For people: "GPU 0-3, NUMA node 0"."""
        nodes = f"NUMA node{'s' * (len(self.numa_nodes) > 1)} {self.nodes}" if self.numa_nodes else "no NUMA node known"
        return f"{_indices(self.gpus)}, {nodes}"


@dataclass(frozen=True)
class _Server:
    """A server to be placed: how many GPUs, and the node that a setting asks for."""

    role: str
    number: int
    name: str
    size: int
    node: int | None = None


def place(roles: Mapping[str, Role], hardware: Hardware) -> tuple[Placement, ...]:
    """A placement for every server of the roles, in their order.

    Settings that name GPUs are kept and checked. The rest is the best assignment, judged in this order: a server on
    one NUMA node, else on nodes of one socket or joined by NVLink, on others only where the host has none of these that
    is large enough (a virtual machine may make its nodes up: see `near`); roles on nodes of their own; each role on few
    nodes; GPUs of a server close to each other; no write collapse (see `write_collapse`); prefill close to decode; low
    indices. Raises PlanError that shows the row of the matrix which contradicts.
    """
    host = _Host(hardware)
    known = {gpu.index for gpu in hardware.gpus}
    _check_counts(roles, hardware, known)
    fixed: dict[_Server, Gpus] = {}
    wanted: list[_Server] = []
    for role in roles.values():
        for number in range(role.instances):
            server = _Server(role.name, number, role.server(number), role.tensor_parallel)
            if role.gpus is not None:
                first = number * server.size
                fixed[server] = tuple(sorted(role.gpus[first : first + server.size]))
                _check_named(role, fixed[server], host)
            elif role.numa_node is not None and role.numa_node not in {node.index for node in hardware.nodes}:
                raise PlanError(
                    f"setting {role.name}_numa_node = {role.numa_node}, this host has NUMA nodes "
                    f"{', '.join(str(node.index) for node in hardware.nodes) or 'none'}"
                )
            else:
                wanted.append(replace(server, node=role.numa_node))
    host.apart = any(
        next(host.candidates(one, frozenset(host.gpus)), None) is None for one in wanted if one.node is None
    )
    found = _best(wanted, fixed, host)
    if found is None:
        raise _refusal(wanted, fixed, host)
    order = list(roles)
    every = sorted({**fixed, **found}.items(), key=lambda one: (order.index(one[0].role), one[0].number))
    return tuple(
        _placement(server, gpus, hardware, f"{server.role}_gpus names them")
        if server in fixed
        else _placement(server, gpus, hardware, _rule(server, gpus, dict(every), host))
        for server, gpus in every
    )


def _check_counts(roles: Mapping[str, Role], hardware: Hardware, known: set[int]) -> None:
    for role in roles.values():
        absent = sorted(set(role.gpus or []) - known)
        if absent:
            raise PlanError(
                f"setting {role.name}_gpus names GPU {absent[0]}, this host has {_indices(known)} "
                f"({hardware.gpus[0].name}); {_row(hardware, max(known))}"
            )
    wanted = sum(role.instances * role.tensor_parallel for role in roles.values())
    if wanted > len(known):
        asks = " + ".join(f"{role.instances} x {role.tensor_parallel} {role.name}" for role in roles.values())
        raise PlanError(
            f"the plan needs {wanted} GPUs ({asks}), this host has {len(known)}: "
            "lower *_tensor_parallel or *_instances; "
            f"{_row(hardware, max(known))}"
        )
    if hardware.topo is not None and set(hardware.topo.rows) != known:
        raise PlanError(
            f"nvidia-smi lists {_indices(known)}, but its matrix (topo -m) {_indices(hardware.topo.rows)}: a GPU has "
            "come or gone meanwhile; look for Xid 79 in `dmesg`, then run again"
        )


def _check_named(role: Role, gpus: Gpus, host: _Host) -> None:
    """Raises PlanError where named GPUs do not lie on the node that is asked for."""
    for other in gpus:
        if role.numa_node is not None and host.node[other] != role.numa_node:
            raise PlanError(
                f"setting {role.name}_numa_node = {role.numa_node}, but GPU {other} of {role.name}_gpus is on node "
                f"{host.node[other]}; {_row(host.hardware, other)}"
            )


class _Host:
    """The host's GPUs as the search asks for them."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.gpus: Gpus = tuple(sorted(gpu.index for gpu in hardware.gpus))
        self.node = {gpu.index: gpu.numa_node for gpu in hardware.gpus}
        self.inside = lru_cache(maxsize=None)(self._inside)
        self.apart = False  # whether one server may have GPUs that nothing joins

    def link(self, a: int, b: int) -> str:
        """A kind of LINKS or "NV4" and so on; "" where the host gave no matrix."""
        found = self.hardware.topo.links.get((a, b), "") if self.hardware.topo else ""
        return "SOCKET" if found == "SYS" and self.node[a] != self.node[b] and self._near(a, b) else found

    def one_socket(self, a: int, b: int) -> bool:
        """Whether SLIT or matrix put two GPUs into one socket."""
        if self.node[a] == self.node[b]:
            return True
        if self.node[a] is None or self.node[b] is None:
            return False
        return self.link(a, b) in LINKS[1:] or self._near(a, b)

    def together(self, a: int, b: int) -> bool:
        """Whether one server may have both."""
        return self.apart or self.joined(a, b)

    def joined(self, a: int, b: int) -> bool:
        """Whether two GPUs share a socket, or have NVLink between."""
        return self.one_socket(a, b) or (None not in (self.node[a], self.node[b]) and self.link(a, b).startswith("NV"))

    def _near(self, a: int, b: int) -> bool:
        first, second = self.node[a], self.node[b]
        distances = next((node.distances for node in self.hardware.nodes if node.index == first), {})
        return second is not None and distances.get(second, REMOTE_SOCKET) < REMOTE_SOCKET

    def distance(self, pairs: Iterable[tuple[int, int]]) -> Distance:
        links = [self.link(a, b) for a, b in pairs]
        bonds = sum(int(link[2:]) for link in links if link.startswith("NV"))
        return (*(links.count(kind) for kind in LINKS), -bonds)

    def _inside(self, gpus: Gpus) -> Distance:
        """Between the GPUs of one server."""
        return self.distance(combinations(gpus, 2))

    def spans(self, gpus: Gpus) -> bool:
        return len({self.node[gpu] for gpu in gpus}) > 1

    @cached_property
    def alike(self) -> dict[int, frozenset[int]]:
        """GPU -> those below it that it could be swapped with: same node, same link to every other one."""

        def same(a: int, b: int) -> bool:
            others = [gpu for gpu in self.gpus if gpu not in (a, b)]
            return self.node[a] == self.node[b] and all(self.link(a, c) == self.link(b, c) for c in others)

        return {a: frozenset(b for b in self.gpus if b < a and same(a, b)) for a in self.gpus}

    def candidates(self, server: _Server, free: frozenset[int]) -> Iterator[Gpus]:
        """Free GPUs that could serve it. Of GPUs that are alike only the lowest ones: the others are no better."""
        regions: list[list[int]] = []  # free GPUs that may go together
        for gpu in sorted(free):
            if server.node is not None and self.node[gpu] != server.node:
                continue
            home = next((region for region in regions if all(self.together(one, gpu) for one in region)), None)
            regions.append([gpu]) if home is None else home.append(gpu)
        for region in regions:
            for gpus in combinations(region, server.size):
                if all((self.alike[gpu] & free) <= set(gpus) for gpu in gpus):
                    yield gpus


def _best(
    wanted: list[_Server], fixed: dict[_Server, Gpus], host: _Host, first: str = "near"
) -> dict[_Server, Gpus] | None:
    """The best assignment, None where none fits. Branch and bound: a part that cannot become better is left.

    Of more than MOST_STEPS assignments the best of the first ones.

    first: "near" for the order of `place`, "collapse" to put freedom from write collapse before nearness.
    """
    every = frozenset(host.gpus) - {gpu for gpus in fixed.values() for gpu in gpus}
    least: list[Distance] = []  # by server, the nearest GPUs that any candidate has
    for server in wanted:
        ones = [host.inside(gpus) for gpus in host.candidates(server, every)]
        if not ones:
            return None
        least.append(min(ones))
    best: tuple[tuple[object, ...], dict[_Server, Gpus]] | None = None
    steps = 0

    def total(chosen: dict[_Server, Gpus], rest: Sequence[Distance]) -> tuple[object, ...]:
        parts = {**fixed, **chosen}
        nodes = [{host.node[gpu] for s, gpus in parts.items() if s.role == role for gpu in gpus} for role in ROLES]
        return (
            sum(host.spans(gpus) for gpus in parts.values()),
            len(nodes[0] & nodes[1]),
            sum(map(len, nodes)),
            _sum([*(host.inside(gpus) for gpus in chosen.values()), *rest]),
        )

    def descend(position: int, free: frozenset[int], chosen: dict[_Server, Gpus]) -> None:
        nonlocal best, steps
        steps += 1
        if position == len(wanted):
            parts = {**fixed, **chosen}
            writes = _writes(parts)
            near, collapse = total(chosen, ()), len(_collapses(parts, host))
            ranked = (*near[:3], collapse, *near[3:]) if first == "collapse" else (*near, collapse)
            cost = (*ranked, host.distance(writes), tuple(chosen.values()))
            if best is None or cost < best[0]:
                best = (cost, chosen)
            return
        server = wanted[position]
        before = wanted[position - 1] if position and wanted[position - 1].role == server.role else None
        for gpus in sorted(host.candidates(server, free), key=lambda one: (host.inside(one), one)):
            if best and steps > MOST_STEPS:
                return
            if before and gpus < chosen[before]:
                continue  # servers of one role are alike: in order of their GPUs
            more = {**chosen, server: gpus}
            bound = total(more, least[position + 1 :])
            known = 3 if first == "collapse" else 4
            if best is None or bound[:known] <= best[0][:known]:
                descend(position + 1, free - set(gpus), more)

    descend(0, every, {})
    return best[1] if best else None


def _sum(distances: Sequence[Distance]) -> Distance:
    return tuple(map(sum, zip(*distances, strict=True)))


def _writes(parts: dict[_Server, Gpus]) -> list[tuple[int, int]]:
    """(prefill GPU, decode GPU) for all that KV moves between."""
    pairs = []
    for source, sources in parts.items():
        for target, targets in parts.items():
            if (source.role, target.role) == PAIR:
                pairs += by_rank(sources, targets)
    return pairs


def by_rank(sources: Gpus, targets: Gpus) -> list[tuple[int, int]]:
    """Every GPU with those that hold its share of the KV heads on the other side, shared out where ranks are uneven."""
    most = max(len(sources), len(targets))
    return [(sources[i * len(sources) // most], targets[i * len(targets) // most]) for i in range(most)]


def kv_writes(placements: Iterable[Placement]) -> list[tuple[int, int]]:
    """(prefill GPU, decode GPU) for all that KV moves between."""
    return _writes({_Server(p.role, p.number, p.name, len(p.gpus)): p.gpus for p in placements})


def sockets(hardware: Hardware) -> list[list[int]]:
    """GPUs by socket as far as SLIT and matrix tell, each in the order of node and index."""
    host = _Host(hardware)
    found: list[list[int]] = []
    for gpu in sorted(host.gpus, key=lambda gpu: (-1 if host.node[gpu] is None else host.node[gpu], gpu)):
        home = next((socket for socket in found if host.one_socket(socket[0], gpu)), None)
        found.append([gpu]) if home is None else home.append(gpu)
    return found


def _collapses(parts: dict[_Server, Gpus], host: _Host) -> list[tuple[int, int, int, int]]:
    """(a, b, c, d): prefill GPUs a and b behind one switch write to c and d behind two roots."""
    writes = [(a, c) for a, c in _writes(parts) if not host.link(a, c).startswith((*ONE_SWITCH, "NV"))]
    return [
        (a, b, c, d)
        for (a, c), (b, d) in combinations(writes, 2)
        if a != b and c != d and host.link(a, b) in ONE_SWITCH and host.link(c, d) not in (*ONE_SWITCH, "")
    ]


def _rule(server: _Server, gpus: Gpus, every: dict[_Server, Gpus], host: _Host) -> str:
    """What decided, for people."""
    if server.node is not None:
        return f"{server.role}_numa_node names the node"
    links = sorted({host.link(a, b) for a, b in combinations(gpus, 2)} - {""}, key=_nearness)
    shown = ", ".join("SYS inside the socket" if link == "SOCKET" else link for link in links)
    close = f", as close as the host allows ({shown})" if links else ""
    nodes = {host.node[gpu] for gpu in gpus}
    if nodes == {None}:
        return f"the host names no NUMA node, nothing is bound{close}"
    if len(nodes) > 1:
        bond = "joined by NVLink" if all(link.startswith("NV") for link in links) else "of one socket"
        bond = bond if all(host.joined(a, b) for a, b in combinations(gpus, 2)) else "that nothing joins"
        return f"no NUMA node has {server.size} GPUs for it, so nodes {bond}{close}"
    others = {host.node[gpu] for other, theirs in every.items() if other.role != server.role for gpu in theirs}
    if not others:
        return f"one NUMA node{close}"
    apart = "both roles on it, no layout keeps them apart" if nodes & others else "roles apart"
    return f"one NUMA node, {apart}{close}"


def _nearness(link: str) -> tuple[int, str]:
    return (-LINKS.index(link) if link in LINKS else -len(LINKS), link)


def _refusal(wanted: list[_Server], fixed: dict[_Server, Gpus], host: _Host) -> PlanError:
    """Why no assignment fits: the first server that finds no room, with the GPUs that are free then."""
    free = frozenset(host.gpus) - {gpu for gpus in fixed.values() for gpu in gpus}
    server = wanted[0]
    for server in wanted:
        gpus = min(
            host.candidates(server, free), key=lambda one: (host.spans(one), host.inside(one), one), default=None
        )
        if gpus is None:
            break
        free -= set(gpus)
    by_node: dict[int | None, list[int]] = {}
    for gpu in sorted(free):
        if server.node in (None, host.node[gpu]):
            by_node.setdefault(host.node[gpu], []).append(gpu)
    have = ", ".join(
        f"{_indices(gpus)} on node {'unknown' if node is None else node}" for node, gpus in by_node.items()
    )
    last = max((gpu for gpus in by_node.values() for gpu in gpus), default=host.gpus[-1])
    alone = all(other.role == server.role for other in (*wanted, *fixed))
    share = f"{server.role}_instances" if alone else "the other role's share"
    return PlanError(
        f"{server.role} needs {server.size} GPUs on one NUMA node, {f'only {have} left' if have else 'none is left'}: "
        f"lower {server.role}_tensor_parallel, or {share}, or name GPUs that lie apart in {server.role}_gpus, which is "
        f"slow; {_row(host.hardware, last)}"
    )


def _placement(server: _Server, gpus: Gpus, hardware: Hardware, rule: str) -> Placement:
    cpus_of = {node.index: node.cpus for node in hardware.nodes}
    nodes = {gpu.numa_node for gpu in hardware.gpus if gpu.index in gpus}
    bound = tuple(sorted(node for node in nodes if node is not None and cpus_of.get(node)))
    if len(bound) < len(nodes):  # a node without CPUs, or one that nobody knows: better unbound than half bound
        bound = ()
    cpus = spell_number_list(frozenset().union(*(cpus_of[node] for node in bound)))
    return Placement(server.role, server.number, server.name, gpus, bound, cpus, rule)


# ---- what deserves a word about a placement


def near(placements: tuple[Placement, ...], hardware: Hardware) -> Finding:
    """GPUs of one server that neither a socket nor NVLink joins (id gpu/placement/near).

    In a virtual machine the nodes and their distances may be made up (sglang#17680): nothing is refused for them.
    """
    about, host = "gpu/placement/near", _Host(hardware)
    for placement in placements:
        for a, b in combinations(placement.gpus, 2):
            if not host.joined(a, b):
                return Finding(
                    about,
                    Level.WARNING,
                    f"GPU {a} (NUMA node {host.node[a]}) and GPU {b} (node {host.node[b]}) of {placement.name} share "
                    f"neither socket nor NVLink ({host.link(a, b) or 'no matrix'}): their collectives cross the "
                    "sockets, 13 to 37 GB/s were measured over PCIe",
                    tuple(" ".join(hardware.topo.rows[gpu].split()) for gpu in (a, b)) if hardware.topo else (),
                    f"name GPUs of one node in {placement.role}_gpus where there are enough; a virtual machine may "
                    "make its nodes up: what the proof measures decides",
                )
    return Finding(about, Level.HEALTHY, "the GPUs of each server share a socket or NVLink")


def write_collapse(placements: tuple[Placement, ...], hardware: Hardware) -> Finding:
    """Two prefill GPUs behind one PCIe switch that write to decode GPUs behind two roots (id gpu/writes/collapse).

    Published for RTX PRO 6000 behind such switches: 37 GB/s fall to 2.7. The advice names a layout without it where
    there is one.
    """
    about = "gpu/writes/collapse"
    host = _Host(hardware)
    parts = {_Server(p.role, p.number, p.name, len(p.gpus)): p.gpus for p in placements}
    if hardware.topo is None and len(hardware.gpus) > 1:
        return Finding(
            about, Level.INCOMPLETE, "the host gave no topology matrix: which GPUs share a switch is unknown",
            advice="run `nvidia-smi topo -m` on the host", required=False,
        )  # fmt: skip
    shapes = _collapses(parts, host)
    if not shapes:
        return Finding(about, Level.HEALTHY, "no two prefill GPUs behind one switch write to GPUs behind two roots")
    a, b, c, d = shapes[0]
    better = _best(list(parts), {}, host, first="collapse")
    if better and not _collapses(better, host):
        layout = ", ".join(
            f"{role}_gpus = {[gpu for s, gpus in better.items() if s.role == role for gpu in gpus]}" for role in PAIR
        )
        advice = f"a layout without it: {layout}"
    else:
        advice = "no layout of these servers avoids it: trust only what the probe measures with all pairs at once"
    return Finding(
        about,
        Level.WARNING,
        f"GPU {a} and {b} share a PCIe switch ({host.link(a, b)}) and write KV to GPU {c} and {d} behind two roots "
        f"({host.link(c, d)}): 37 GB/s were seen to fall to 2.7 that way",
        tuple(" ".join(hardware.topo.rows[gpu].split()) for gpu in (a, b, c, d)) if hardware.topo else (),
        advice,
    )


def _indices(gpus: Iterable[int]) -> str:
    return f"GPU {spell_number_list(frozenset(gpus))}"


def _row(hardware: Hardware, index: int) -> str:
    if hardware.topo is None or index not in hardware.topo.rows:
        return "the host gave no topology matrix"
    return f"topo -m says {' '.join(hardware.topo.rows[index].split())!r}"
