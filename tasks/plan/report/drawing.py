"""The placement as a picture: boxes, labels and lines with their coordinates, for a template to write down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tasks.plan.host.matrices import number_list, spell_number_list

CARD_WIDTH, CARD_HEIGHT, CARD_GAP = 162, 46, 15
PAD, TITLE, GUTTER, EDGE = 8, 22, 72, 4  # inside a node, its title, between sockets, around everything
COLUMN = CARD_WIDTH + 4 * PAD
ARC = 60  # room beside the last column for lines that come back to it
MOST_LABELS = 16  # lines that still carry their GB/s


@dataclass(frozen=True)
class Card:
    """One GPU: its box, and who uses it."""

    x: float
    y: float
    width: float
    height: float
    gpu: int
    bus_id: str
    name: str
    role: str  # "prefill", "decode", "server", "idle"
    letter: str  # P, D, S, P1, ...: the role without colour
    server: str


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class Line:
    """A path of SVG with a label at (x, y)."""

    path: str
    x: float
    y: float
    label: str
    title: str


@dataclass
class Drawing:
    width: float = 0
    height: float = 0
    sockets: list[Box] = field(default_factory=list)
    nodes: list[Box] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    switches: list[Line] = field(default_factory=list)  # GPUs behind one PCIe switch
    writes: list[Line] = field(default_factory=list)  # KV from prefill to decode


def draw(
    hardware: Mapping[str, Any],
    placement: Sequence[Mapping[str, Any]],
    writes: Sequence[tuple[int, int]],
    gbps: Mapping[tuple[int, int], float | None],
) -> Drawing:
    """A column for each socket, a box for each NUMA node, a card for each GPU.

    hardware, placement, writes: as in tasks.plan.report.data. gbps: measured KV speed of (prefill GPU, decode GPU).
    """
    picture = Drawing()
    gpus = {gpu["index"]: gpu for gpu in hardware["gpus"]}
    users = {gpu: server for server in placement for gpu in server["gpus"]}
    cpus = {node["index"]: len(number_list(node["cpus"])) for node in hardware["nodes"]}
    cards: dict[int, Card] = {}
    columns: dict[int, int] = {}
    for column, socket in enumerate(hardware["sockets"]):
        x, y = EDGE + column * (COLUMN + GUTTER), float(EDGE + TITLE)
        by_node: dict[int | None, list[int]] = {}
        for gpu in socket:
            by_node.setdefault(gpus[gpu]["numa_node"], []).append(gpu)
        for node, unordered in by_node.items():
            members = _switch_mates_side_by_side(unordered, hardware["links"], list(gpus))
            height = TITLE + len(members) * (CARD_HEIGHT + CARD_GAP) - CARD_GAP + PAD
            title = "NUMA node unknown" if node is None else f"NUMA node {node} · {cpus.get(node, 0)} CPUs"
            picture.nodes.append(Box(x + PAD, y, CARD_WIDTH + 2 * PAD, height, title))
            for position, gpu in enumerate(members):
                top = y + TITLE + position * (CARD_HEIGHT + CARD_GAP)
                cards[gpu] = _card(x + 2 * PAD, top, gpus[gpu], users.get(gpu))
                columns[gpu] = column
            picture.switches += _switches(members, cards, hardware["links"], list(gpus))
            y += height + PAD
        picture.sockets.append(Box(x, EDGE, COLUMN, y - EDGE, _socket(by_node)))
        picture.height = max(picture.height, y + EDGE)
    picture.cards = list(cards.values())
    arcs = False
    for source, target in writes:
        speed = gbps.get((source, target))
        label = f"{speed:.0f}" if speed is not None and len(writes) <= MOST_LABELS else ""
        said = "not measured" if speed is None else f"{speed:.1f} GB/s"
        title = f"KV from GPU {source} to GPU {target}: {said}"
        same = columns[source] == columns[target]
        arcs = arcs or (same and columns[source] == len(hardware["sockets"]) - 1)
        picture.writes.append(_line(cards[source], cards[target], same, label, title))
    picture.width = len(hardware["sockets"]) * (COLUMN + GUTTER) - GUTTER + 2 * EDGE + (ARC if arcs else 0)
    return picture


def _socket(nodes: Iterable[int | None]) -> str:
    known = frozenset(node for node in nodes if node is not None)
    return f"Socket of node{'s' * (len(known) > 1)} {spell_number_list(known)}" if known else "Socket unknown"


def _card(x: float, y: float, gpu: Mapping[str, Any], server: Mapping[str, Any] | None) -> Card:
    role, name = (server["role"], server["name"]) if server else ("idle", "not used")
    number = name.rpartition("-")[2] if server and "-" in name else ""
    letter = f"{role[0].upper()}{number}" if server else "-"
    return Card(x, y, CARD_WIDTH, CARD_HEIGHT, gpu["index"], gpu["bus_id"], gpu["name"], role, letter, name)


def _switch(a: int, b: int, links: Sequence[Sequence[str | None]] | None, order: list[int]) -> str | None:
    """PIX or PXB where two GPUs share a PCIe switch."""
    link = links[order.index(a)][order.index(b)] if links else None
    return link if link in ("PIX", "PXB") else None


def _switch_mates_side_by_side(
    members: Sequence[int], links: Sequence[Sequence[str | None]] | None, order: list[int]
) -> list[int]:
    found: list[int] = []
    for gpu in members:
        mates = [position for position, other in enumerate(found) if _switch(other, gpu, links, order)]
        found.insert(mates[-1] + 1 if mates else len(found), gpu)
    return found


def _switches(
    members: Sequence[int], cards: Mapping[int, Card], links: Sequence[Sequence[str | None]] | None, order: list[int]
) -> list[Line]:
    """A bracket between neighbours of a node that share a PCIe switch."""
    found = []
    for above, below in pairwise(members):
        link = _switch(above, below, links, order)
        if link:
            first, second = cards[above], cards[below]
            x, top, bottom = first.x + first.width - 14, first.y + first.height, second.y
            path = f"M{x:g} {top:g}V{bottom:g}"
            found.append(Line(path, x - 15, (top + bottom) / 2 + 3.5, link, f"GPU {above} and {below}: {link}"))
    return found


def _line(source: Card, target: Card, same_column: bool, label: str, title: str) -> Line:
    from_y, to_y = source.y + source.height / 2, target.y + target.height / 2
    if same_column:
        x = source.x + source.width
        bulge = x + PAD + ARC * 0.9
        path = f"M{x:g} {from_y:g}C{bulge:g} {from_y:g} {bulge:g} {to_y:g} {x:g} {to_y:g}"
        return Line(path, x + PAD + ARC * 0.55, (from_y + to_y) / 2 + 4, label, title)
    right = source.x < target.x
    start = source.x + source.width if right else source.x
    end = target.x if right else target.x + target.width
    middle = (start + end) / 2
    path = f"M{start:g} {from_y:g}C{middle:g} {from_y:g} {middle:g} {to_y:g} {end:g} {to_y:g}"
    at = 0.5 if from_y == to_y else 0.28  # lines that cross are labelled near their start
    eased = at * at * (3 - 2 * at)
    return Line(path, start + (end - start) * at, from_y + (to_y - from_y) * eased + 4, label, title)
