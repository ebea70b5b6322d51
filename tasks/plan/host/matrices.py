"""What `nvidia-smi topo` says, read once into typed matrices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LINK = re.compile(r"^(X|PIX|PXB|PHB|NODE|SYS|NV[0-9]+)$")
P2P_STATUS = ("OK", "NS", "GNS", "CNS", "TNS", "U", "DR")
DEVICE = re.compile(r"GPU[0-9]+|NIC[0-9]+")
CPU_LIST = re.compile(r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*,?$")


class TopologyError(ValueError):
    """A matrix that cannot be read; the message quotes the line."""


@dataclass(frozen=True)
class GpuAffinity:
    """One GPU's row: CPUs and NUMA nodes near it, empty where the host says nothing."""

    index: int
    cpus: frozenset[int]
    numa: tuple[int, ...]
    gpu_numa_id: int | None


@dataclass(frozen=True)
class TopoMatrix:
    """`nvidia-smi topo -m`."""

    gpus: tuple[GpuAffinity, ...]
    nics: tuple[str, ...]
    links: dict[tuple[int, int], str]
    rows: dict[int, str]  # the text of each GPU's row, for messages

    def link(self, a: int, b: int) -> str:
        """'X', 'PIX', 'PXB', 'PHB', 'NODE', 'SYS' or 'NV18' and so on, between two GPU indices."""
        return self.links[(a, b)]


@dataclass(frozen=True)
class P2PMatrix:
    """`nvidia-smi topo -p2p`."""

    statuses: dict[tuple[int, int], str]

    def status(self, a: int, b: int) -> str:
        """'OK', 'NS', 'GNS', 'CNS', 'TNS', 'U' between two GPU indices; 'X' for a GPU and itself."""
        return self.statuses[(a, b)]


HIGHEST = 1 << 20  # Linux knows fewer CPUs and nodes, TCP fewer ports: whoever says more makes no list of it


def number_list(text: str) -> frozenset[int]:
    """CPUs, nodes or ports of a kernel list such as '0-63,128-191'. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in text.strip().strip(",").split(","):
        if part:
            low, dash, high = part.partition("-")
            first, last = int(low), int(high if dash else low)
            if last > HIGHEST:
                raise ValueError(f"no list of the kernel: {part}")
            found.update(range(first, last + 1))
    return frozenset(found)


def spell_number_list(numbers: frozenset[int]) -> str:
    """The kernel's spelling of a set of numbers: {0, 1, 2, 5} is '0-2,5'."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_topo_matrix(text: str) -> TopoMatrix:
    """Read `nvidia-smi topo -m`: escape codes, tabs or spaces, NICs by number or name, missing columns.

    Raises TopologyError that quotes the line that cannot be read.
    """
    lines = [ESCAPE.sub("", line).rstrip() for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise TopologyError(f"no header of a topology matrix in {_quote(text)}")
    header = lines[start]
    devices = re.split(r"CPU Affinity|NUMA Affinity", header)[0].split()
    gpus = [int(name[3:]) for name in devices if re.fullmatch(r"GPU[0-9]+", name)]
    nics = tuple(name for name in devices if not re.fullmatch(r"GPU[0-9]+", name))
    links: dict[tuple[int, int], str] = {}
    affinities: list[GpuAffinity] = []
    rows: dict[int, str] = {}
    for index, text_of_cells, line in _rows(lines[start + 1 :], gpus):
        cells = text_of_cells.split()
        if len(cells) < len(devices) or not all(LINK.match(cell) for cell in cells[: len(devices)]):
            raise TopologyError(f"a row cut short or with an unknown link: {line.strip()!r}")
        for name, cell in zip(devices, cells, strict=False):
            if re.fullmatch(r"GPU[0-9]+", name):
                links[(index, int(name[3:]))] = cell
        affinities.append(_affinity(index, header, text_of_cells, cells[len(devices) :], line))
        rows[index] = line.strip()
    missing = [index for index in gpus if index not in rows]
    if missing:
        raise TopologyError(f"the matrix is cut short: header {header.strip()!r}, no row for GPU{missing[0]}")
    _check_diagonal(links, rows)
    _check_last_row(text, rows)
    return TopoMatrix(tuple(sorted(affinities, key=lambda gpu: gpu.index)), nics, links, rows)


def _rows(lines: Iterable[str], gpus: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """Index, what follows it, and the line of each GPU's row. Raises TopologyError for one that is not of `gpus`, or
    comes twice."""
    seen: set[int] = set()
    for line in lines:
        row = re.match(r"^\s*GPU([0-9]+)\s+(.*)$", line)
        if not row:
            continue
        index = int(row[1])
        if index not in gpus or index in seen:
            raise TopologyError(f"a row that the header does not announce: {line.strip()!r}")
        seen.add(index)
        yield index, row[2], line


def _is_header(line: str) -> bool:
    """Whether a line names the columns: it starts with a GPU, and holds the titles or nothing but devices."""
    words = line.split()
    return bool(words and re.fullmatch(r"GPU[0-9]+", words[0])) and (
        "Affinity" in line or all(DEVICE.fullmatch(word) for word in words[1:])
    )


def _check_diagonal(cells: dict[tuple[int, int], str], rows: dict[int, str]) -> None:
    for (a, b), cell in cells.items():
        if (cell == "X") != (a == b):
            raise TopologyError(f"a GPU and itself must be X, and only they: {rows[a]!r}")


def _check_last_row(text: str, rows: dict[int, str]) -> None:
    """A text that ends in a GPU's row with fewer columns than the rows above was cut there."""

    def width(line: str) -> int:
        return line.count("\t") if "\t" in line else len(line.split())

    raw = [ESCAPE.sub("", line) for line in text.splitlines() if line.strip()]
    widths = [width(line) for line in raw if line.strip() in rows.values()]
    if raw[-1].strip() in rows.values() and widths[-1] < max(widths):
        raise TopologyError(f"the matrix is cut short in its last row: {raw[-1].strip()!r}")


def _affinity(index: int, header: str, text: str, rest: list[str], line: str) -> GpuAffinity:
    """CPUs, NUMA nodes and GPU NUMA id of a row. An empty column shifts nothing: tabs keep their place."""
    named = [name for name in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID") if name in header]
    if "\t" in text:
        cells = [cell.strip() for cell in text.split("\t")]
        devices = len(text.split()) - len(rest)
        seen = 0
        while cells and seen < devices:
            seen += bool(cells.pop(0))
        values = cells if len(cells) <= len(named) else cells[:2] + cells[3:]  # an empty one before GPU NUMA ID
    else:
        values = rest
    by_name = dict(zip(named, values, strict=False))
    cpus, numa, own = (by_name.get(name, "") for name in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))
    if "\t" not in text and len(values) < len(named):  # which one is empty, spaces do not tell
        cpus, numa, own = "", "", ""
    for cell in (cpus, numa):
        if cell not in ("", "N/A") and not CPU_LIST.match(cell):
            raise TopologyError(f"an affinity that is no list of numbers ({cell!r}): {line.strip()!r}")
    return GpuAffinity(
        index,
        number_list(cpus) if CPU_LIST.match(cpus) else frozenset(),
        tuple(sorted(number_list(numa))) if CPU_LIST.match(numa) else (),
        int(own) if own.isdecimal() else None,
    )


def parse_p2p_matrix(text: str) -> P2PMatrix:
    """Read `nvidia-smi topo -p2p`. Raises TopologyError that quotes the line that cannot be read."""
    lines = [ESCAPE.sub("", line).rstrip() for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if re.fullmatch(r"\s*GPU[0-9]+(\s+GPU[0-9]+)*", line)), None)
    if start is None:
        raise TopologyError(f"no header of a peer-to-peer matrix in {_quote(text)}")
    gpus = [int(name[3:]) for name in lines[start].split()]
    statuses: dict[tuple[int, int], str] = {}
    rows: dict[int, str] = {}
    for index, text_of_cells, line in _rows(lines[start + 1 :], gpus):
        cells = text_of_cells.split()
        if len(cells) != len(gpus) or any(c != "X" and c not in P2P_STATUS for c in cells):
            raise TopologyError(f"a row cut short or with an unknown status: {line.strip()!r}")
        statuses.update({(index, gpu): cell for gpu, cell in zip(gpus, cells, strict=True)})
        rows[index] = line.strip()
    missing = [gpu for gpu in gpus if gpu not in rows]
    if missing:
        raise TopologyError(f"the matrix is cut short: header {lines[start].strip()!r}, no row for GPU{missing[0]}")
    _check_diagonal(statuses, rows)
    return P2PMatrix(statuses)


def _quote(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return repr(first[:120]) if first else "an empty answer"
