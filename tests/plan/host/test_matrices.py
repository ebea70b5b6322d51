"""What `nvidia-smi topo` prints, in every layout that hosts and people send, and cut short."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.host.matrices import (
    TopologyError,
    number_list,
    parse_p2p_matrix,
    parse_topo_matrix,
    spell_number_list,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"


def text_of(name: str) -> str:
    return (FIXTURES / name).read_text()


def cpus(name: str) -> list[str]:
    return [spell_number_list(gpu.cpus) for gpu in parse_topo_matrix(text_of(name)).gpus]


# ---- texts of known shapes


def test_tabs_and_escape_codes() -> None:
    matrix = parse_topo_matrix(text_of("topo-tabs-two-sockets.txt"))
    assert [gpu.numa for gpu in matrix.gpus] == [(0,), (0,), (1,), (1,)]
    assert (matrix.link(0, 1), matrix.link(1, 2), matrix.link(3, 3)) == ("PIX", "SYS", "X")
    assert matrix.nics == ()
    assert cpus("topo-tabs-two-sockets.txt") == ["0-31,64-95"] * 2 + ["32-63,96-127"] * 2


def test_a_header_that_starts_with_an_escape_code_and_nics_by_number() -> None:
    matrix = parse_topo_matrix(text_of("topo-tabs-escape-nic.txt"))
    assert matrix.nics == ("NIC0", "NIC1")
    assert [gpu.numa for gpu in matrix.gpus] == [(0,), (0,), (1,), (1,)]
    assert matrix.link(2, 3) == "PXB"


def test_nics_by_device_name_and_no_numa_column() -> None:
    matrix = parse_topo_matrix(text_of("topo-tabs-named-nics.txt"))
    assert matrix.nics == ("mlx5_0", "ibp4s0")
    assert [gpu.numa for gpu in matrix.gpus] == [(), ()]
    assert cpus("topo-tabs-named-nics.txt") == ["0-15", "16-31"]
    assert matrix.link(0, 1) == "NV6"


def test_na_is_no_numa_node() -> None:
    matrix = parse_topo_matrix(text_of("topo-spaces-old.txt"))
    assert [gpu.numa for gpu in matrix.gpus] == [(), ()]
    assert cpus("topo-spaces-old.txt") == ["0-15", "0-15"]


def test_nic_rows_are_no_gpus() -> None:
    matrix = parse_topo_matrix(text_of("topo-spaces-nics.txt"))
    assert [gpu.index for gpu in matrix.gpus] == [0, 1, 2]
    assert [gpu.numa for gpu in matrix.gpus] == [(0,), (0,), (1,)]


def test_several_numa_nodes_in_a_cell_and_titles_run_together() -> None:
    matrix = parse_topo_matrix(text_of("topo-spaces-range.txt"))
    assert [gpu.numa for gpu in matrix.gpus] == [(0, 1), (0, 1)]
    assert matrix.nics == ("NIC0", "NIC1", "NIC10")


def test_an_empty_column_shifts_nothing() -> None:
    first, second = parse_topo_matrix(text_of("topo-tabs-empty-affinity.txt")).gpus
    assert (first.cpus, first.numa, first.gpu_numa_id) == (frozenset(), (0,), None)
    assert (second.cpus, second.numa, second.gpu_numa_id) == (frozenset(), (), None)


def test_one_gpu_with_a_numa_node_of_its_own() -> None:
    (gpu,) = parse_topo_matrix(text_of("topo-single.txt")).gpus
    assert (spell_number_list(gpu.cpus), gpu.numa, gpu.gpu_numa_id) == ("0-71", (0,), 4)


def test_gpus_of_which_only_some_are_visible_keep_their_numbers() -> None:
    matrix = parse_topo_matrix(text_of("topo-tabs-some-visible.txt"))
    assert [(gpu.index, gpu.numa) for gpu in matrix.gpus] == [(0, (0,)), (2, (0,)), (5, (1,))]
    assert (matrix.link(0, 2), matrix.link(5, 2), matrix.nics) == ("PXB", "SYS", ("NIC0",))


def test_ten_gpus() -> None:
    matrix = parse_topo_matrix(text_of("topo-spaces-ten.txt"))
    assert [gpu.numa for gpu in matrix.gpus] == [(0,)] * 5 + [(1,)] * 5
    assert [matrix.link(9, b) for b in range(10)] == ["SYS"] * 5 + ["NODE"] * 3 + ["PIX", "X"]
    assert (matrix.link(3, 8), cpus("topo-spaces-ten.txt")[9]) == ("NV4", "16-31,48-63")


def test_a_sentence_about_a_gpu_is_no_header() -> None:
    text = "GPU0 needs a reset\n" + text_of("topo-tabs-some-visible.txt")
    assert parse_topo_matrix(text) == parse_topo_matrix(text_of("topo-tabs-some-visible.txt"))


@pytest.mark.parametrize("kept", ["GPU5\tSYS\tSYS\t X \tSYS", "GPU5\tSYS\tSYS\t X \tSYS\t24-47"])
def test_cut_short_behind_the_links_of_the_last_row(kept: str) -> None:
    text = text_of("topo-tabs-some-visible.txt")
    with pytest.raises(TopologyError, match="cut short in its last row: 'GPU5"):
        parse_topo_matrix(text[: text.index(kept)] + kept)


def test_rows_are_kept_for_messages() -> None:
    assert parse_topo_matrix(text_of("topo-tabs-two-sockets.txt")).rows[2].startswith("GPU2\tSYS\tSYS")


def test_spaces_hide_which_column_is_empty_so_nothing_is_read_from_it() -> None:
    text = "     GPU0 GPU1  CPU Affinity  NUMA Affinity  GPU NUMA ID\nGPU0  X   SYS  1  N/A\nGPU1 SYS   X   1  N/A\n"
    assert [(gpu.cpus, gpu.numa) for gpu in parse_topo_matrix(text).gpus] == [(frozenset(), ())] * 2


# ---- texts that cannot be read: the message quotes what it saw

HEADER = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
ROWS = "GPU0\t X \tSYS\t0-15\t0\nGPU1\tSYS\t X \t16-31\t1\n"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "an empty answer"),
        ("\n \n", "an empty answer"),
        ("No devices were found\n", "No devices were found"),
        (ROWS, "no header of a topology matrix"),
        (HEADER, "no row for GPU0"),
        (HEADER + "GPU0\t X \tSYS\t0-15\t0\n", "no row for GPU1"),
        (HEADER + "GPU0\t X \n", "GPU0\\t X"),
        (HEADER + ROWS.replace("X \tSYS", "X \tSYZ"), "SYZ"),
        (HEADER + ROWS + "GPU2\tSYS\tSYS\t0-15\t0\n", "GPU2\\tSYS"),
        (HEADER + ROWS + ROWS, "GPU0\\t X"),
        (HEADER + ROWS.replace("0-15", "a-15"), "a-15"),
        (HEADER + ROWS.replace("\t1\n", "\tone\n"), "'one'"),
        (HEADER + ROWS.replace("X \tSYS", "X \tX"), "only they"),
        (HEADER + ROWS.replace(" X ", "NODE"), "only they"),
    ],
)
def test_a_matrix_that_cannot_be_read(text: str, quoted: str) -> None:
    with pytest.raises(TopologyError) as error:
        parse_topo_matrix(text)
    assert quoted in str(error.value)
    assert "\n" not in str(error.value)


# ---- generated matrices


@dataclass(frozen=True)
class Row:
    cpus: str
    numa: str
    own: str


@dataclass(frozen=True)
class Matrix:
    """A topology matrix before it is printed."""

    rows: tuple[Row, ...]
    nics: tuple[str, ...]
    links: dict[tuple[int, int], str]  # of GPUs, and of NICs behind them
    columns: int  # of CPU Affinity, NUMA Affinity, GPU NUMA ID, the first ones

    def cells(self, index: int) -> list[str]:
        return ["X" if index == other else self.links[tuple(sorted((index, other)))] for other in range(self.size)]

    @property
    def size(self) -> int:
        return len(self.rows) + len(self.nics)

    @property
    def names(self) -> list[str]:
        return [f"GPU{index}" for index in range(len(self.rows))] + list(self.nics)

    @property
    def titles(self) -> list[str]:
        return ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][: self.columns]

    def affinity(self, index: int) -> list[str]:
        row = self.rows[index]
        return [row.cpus, row.numa, row.own][: self.columns]


def with_tabs(matrix: Matrix) -> list[str]:
    lines = ["\t" + "\t".join([*matrix.names, *matrix.titles])]
    for index, name in enumerate(matrix.names):
        near = matrix.affinity(index) if index < len(matrix.rows) else [""] * matrix.columns
        if len(near) == 3:
            near.insert(2, "")  # as the driver prints it
        lines.append("\t".join([name, *(f" {c} " if c == "X" else c for c in matrix.cells(index)), *near]))
    return lines


def with_spaces(matrix: Matrix) -> list[str]:
    def line(name: str, cells: list[str]) -> str:
        return f"{name:<8}" + "".join(f"{cell:<14}  " for cell in cells).rstrip()

    lines = [line("", [*matrix.names, *matrix.titles])]
    for index, name in enumerate(matrix.names):
        lines.append(line(name, [*matrix.cells(index), *(matrix.affinity(index) if index < len(matrix.rows) else [])]))
    return lines


PREAMBLES = st.sampled_from(["", "\n", "# nvidia-smi topo -m\n", "Mon Nov 10 09:12:44 2025\nsome warning: GPU0\n"])
LEGENDS = st.sampled_from(
    ["", "\nLegend:\n\n  X    = Self\n  NV#  = a set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"]
)
LINKS = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", "NV1", "NV4", "NV18"])
NUMBERS = st.frozensets(st.integers(0, 255), min_size=1, max_size=12).map(spell_number_list)
NODES = st.frozensets(st.integers(0, 7), min_size=1, max_size=3).map(spell_number_list)


@st.composite
def matrices(draw: st.DrawFn, empty: bool) -> Matrix:
    """empty: whether affinity columns may be empty, not only N/A."""
    absent = st.sampled_from(["N/A", ""] if empty else ["N/A"])
    row = st.builds(Row, cpus=NUMBERS | absent, numa=NODES | absent, own=st.integers(0, 9).map(str) | absent)
    rows = draw(st.lists(row, min_size=1, max_size=10))
    numbered = st.integers(0, 3).map(lambda count: tuple(f"NIC{i}" for i in range(count)))
    named = st.lists(st.sampled_from(["mlx5_0", "mlx5_1", "rocep49s0", "ibp4s0"]), max_size=3, unique=True).map(tuple)
    nics = draw(numbered | named)
    size = len(rows) + len(nics)
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    links = draw(st.lists(LINKS, min_size=len(pairs), max_size=len(pairs)))
    return Matrix(tuple(rows), nics, dict(zip(pairs, links, strict=True)), draw(st.integers(1, 3)))


@st.composite
def printed(draw: st.DrawFn) -> tuple[Matrix, list[str]]:
    """A matrix and its lines, without what stands before and after."""
    tabs = draw(st.booleans())
    matrix = draw(matrices(empty=tabs))
    lines = with_tabs(matrix) if tabs else with_spaces(matrix)
    if draw(st.booleans()):
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        lines[0] = f"{draw(st.sampled_from([indent, '']))}\x1b[4m{lines[0].lstrip()}\x1b[0m"
    return matrix, lines


@given(printed(), PREAMBLES, LEGENDS)
def test_what_was_printed_is_what_is_read(drawn: tuple[Matrix, list[str]], preamble: str, legend: str) -> None:
    matrix, lines = drawn
    found = parse_topo_matrix(preamble + "\n".join(lines) + "\n" + legend)
    assert found.nics == matrix.nics
    assert [gpu.index for gpu in found.gpus] == list(range(len(matrix.rows)))
    for a in range(len(matrix.rows)):
        assert [found.link(a, b) for b in range(len(matrix.rows))] == matrix.cells(a)[: len(matrix.rows)]
    for gpu in found.gpus:
        near = [cell if cell != "N/A" else "" for cell in matrix.affinity(gpu.index)]
        cpus, numa, own = [*near, "", ""][:3]
        assert spell_number_list(gpu.cpus) == cpus
        assert spell_number_list(frozenset(gpu.numa)) == numa
        assert gpu.gpu_numa_id == (int(own) if own else None)


@given(printed(), PREAMBLES, st.data())
def test_cut_short_at_any_row(drawn: tuple[Matrix, list[str]], preamble: str, data: st.DataObject) -> None:
    matrix, lines = drawn
    kept = data.draw(st.integers(0, len(matrix.rows)), label="lines kept")
    with pytest.raises(TopologyError) as error:
        parse_topo_matrix(preamble + "".join(f"{line}\n" for line in lines[:kept]))
    if kept:
        assert f"no row for GPU{kept - 1}" in str(error.value)
    else:
        assert "no header" in str(error.value)


@given(printed(), st.data())
def test_cut_short_inside_the_links_of_a_row(drawn: tuple[Matrix, list[str]], data: st.DataObject) -> None:
    matrix, lines = drawn
    row = data.draw(st.integers(1, len(matrix.rows)), label="row")
    links = data.draw(st.integers(0, matrix.size - 1), label="links kept")
    part = "\t".join([f"GPU{row - 1}", *matrix.cells(row - 1)[:links]])
    with pytest.raises(TopologyError) as error:
        parse_topo_matrix("\n".join([*lines[:row], part]))
    assert (repr(part) if links else f"no row for GPU{row - 1}") in str(error.value)


@given(st.text(max_size=300))
def test_any_other_text_is_an_error_of_its_own_kind(text: str) -> None:
    with pytest.raises(TopologyError):
        parse_topo_matrix(text)
    with pytest.raises(TopologyError):
        parse_p2p_matrix(text)


# ---- peer to peer


def test_p2p_with_tabs_and_a_legend() -> None:
    matrix = parse_p2p_matrix(text_of("p2p-tabs.txt"))
    assert len(matrix.statuses) == 3 * 3
    assert [matrix.status(1, b) for b in range(3)] == ["OK", "X", "CNS"]


def test_p2p_indented_with_spaces() -> None:
    assert parse_p2p_matrix(text_of("p2p-indented.txt")).status(0, 1) == "GNS"


def test_p2p_of_which_only_some_gpus_are_visible() -> None:
    matrix = parse_p2p_matrix(text_of("p2p-some-visible.txt"))
    assert len(matrix.statuses) == 3 * 3
    assert (matrix.status(0, 5), matrix.status(5, 2), matrix.status(2, 0)) == ("U", "TNS", "OK")


def test_p2p_of_a_single_gpu() -> None:
    matrix = parse_p2p_matrix(" \tGPU0\t\n GPU0\tX\t\n")
    assert matrix.statuses == {(0, 0): "X"}


def test_p2p_cut_short_quotes_the_row() -> None:
    with pytest.raises(TopologyError, match=r"'GPU2 +CNS +CNS +X'"):
        parse_p2p_matrix(text_of("p2p-cut.txt"))


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "an empty answer"),
        ('Option "-p2p" is missing its value.\n', "missing its value"),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n", "no row for GPU1"),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tFINE\t\n GPU1\tOK\tX\t\n", "FINE"),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU7\tOK\tX\t\n", "GPU7"),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU0\tX\tOK\t\n", "announce"),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tX\t\n GPU1\tOK\tX\t\n", "only they"),
    ],
)
def test_p2p_that_cannot_be_read(text: str, quoted: str) -> None:
    with pytest.raises(TopologyError) as error:
        parse_p2p_matrix(text)
    assert quoted in str(error.value)


STATUSES = st.sampled_from(["OK", "NS", "GNS", "CNS", "TNS", "U", "DR"])


@st.composite
def p2p_matrices(draw: st.DrawFn) -> list[list[str]]:
    size = draw(st.integers(1, 10))
    cells = draw(st.lists(STATUSES, min_size=size * size, max_size=size * size))
    return [["X" if a == b else cells[a * size + b] for b in range(size)] for a in range(size)]


def p2p_lines(matrix: list[list[str]], tabs: bool) -> list[str]:
    cells = [[f"GPU{i}" for i in range(len(matrix))], *([f"GPU{i}", *row] for i, row in enumerate(matrix))]
    return [
        f" {'' if i else chr(9)}" + ("\t" if tabs else "    ").join(row) + "\t" * tabs for i, row in enumerate(cells)
    ]


@given(p2p_matrices(), st.booleans(), PREAMBLES, LEGENDS)
def test_p2p_reads_what_was_printed(matrix: list[list[str]], tabs: bool, preamble: str, legend: str) -> None:
    found = parse_p2p_matrix(preamble + "\n".join(p2p_lines(matrix, tabs)) + "\n" + legend)
    assert [[found.status(a, b) for b in range(len(matrix))] for a in range(len(matrix))] == matrix


@given(p2p_matrices(), st.booleans(), st.data())
def test_p2p_cut_short_at_any_row(matrix: list[list[str]], tabs: bool, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(matrix)), label="lines kept")
    with pytest.raises(TopologyError, match=f"no row for GPU{kept - 1}" if kept else "no header"):
        parse_p2p_matrix("\n".join(p2p_lines(matrix, tabs)[:kept]))


def test_p2p_tells_each_pair_its_own_status() -> None:
    matrix = parse_p2p_matrix(text_of("p2p-tabs.txt"))
    assert [matrix.status(*pair) for pair in ((0, 1), (0, 2), (1, 2))] == ["OK", "NS", "CNS"]


# ---- lists of the kernel


@given(st.frozensets(st.integers(0, 70000)))
def test_a_number_list_survives_its_spelling(numbers: frozenset[int]) -> None:
    assert number_list(spell_number_list(numbers)) == numbers


@pytest.mark.parametrize(
    ("text", "spelt"),
    [("", ""), ("0", "0"), ("30000,30001,8998", "8998,30000-30001"), ("0-3,2-5\n", "0-5"), ("0-1,", "0-1")],
)
def test_the_kernels_spelling(text: str, spelt: str) -> None:
    assert spell_number_list(number_list(text)) == spelt


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1-2-3", "0x1", "1;2"])
def test_what_is_no_number_list(text: str) -> None:
    with pytest.raises(ValueError):
        number_list(text)
