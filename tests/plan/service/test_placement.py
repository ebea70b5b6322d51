"""Which GPUs, CPUs and memory each server gets, and overrides that the hardware contradicts."""

import dataclasses
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.errors import PlanError
from tasks.plan.findings import Finding, Level
from tasks.plan.host.answers import Answer
from tasks.plan.service.placement import Placement, near, place, write_collapse
from tests.plan.builders import TWO_SOCKETS, cpus_of_node, hardware, p2p_text, settings, topo_text


def placed(nodes: list[int], **changes: object) -> tuple[Placement, ...]:
    return place(settings(**changes).roles, hardware(nodes))


def shares(nodes: list[int], **changes: object) -> list[tuple[str, int, tuple[int, ...], int | None]]:
    """Of servers on one node each."""
    found = placed(nodes, **changes)
    assert all(len(p.numa_nodes) < 2 for p in found)
    return [(p.role, p.number, p.gpus, *(p.numa_nodes or (None,))) for p in found]


def gpus(
    nodes: list[int], links: dict[tuple[int, int], str] | None = None, slit: str = "", **changes: object
) -> list[tuple[int, ...]]:
    return [p.gpus for p in place(settings(**changes).roles, hardware(nodes, links=links or {}, distances=slit))]


def placed_with(links: dict[tuple[int, int], str], **changes: object) -> tuple[Placement, ...]:
    return place(settings(**changes).roles, hardware(TWO_SOCKETS, links=links))


def refused(nodes: list[int], **changes: object) -> str:
    with pytest.raises(PlanError) as error:
        placed(nodes, **changes)
    (line,) = error.value.lines
    assert "\n" not in line
    return line


ONE_EACH = {"prefill_tensor_parallel": 1, "decode_tensor_parallel": 1}
TWO_EACH = {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2}


# ---- derived from the topology


def test_eight_gpus_on_two_nodes() -> None:
    assert shares(TWO_SOCKETS) == [("prefill", 0, (0, 1, 2, 3), 0), ("decode", 0, (4, 5, 6, 7), 1)]


def test_a_server_gets_the_cpus_of_its_node() -> None:
    assert [p.cpus for p in placed(TWO_SOCKETS)] == [cpus_of_node(0), cpus_of_node(1)]


def test_two_gpus_on_one_node_each() -> None:
    assert shares([0, 1], **ONE_EACH) == [("prefill", 0, (0,), 0), ("decode", 0, (1,), 1)]


def test_one_node_serves_both_roles() -> None:
    assert shares([0, 0], **ONE_EACH) == [("prefill", 0, (0,), 0), ("decode", 0, (1,), 0)]


def test_six_and_two_with_three_prefill_servers() -> None:
    assert shares([0] * 6 + [1] * 2, prefill_instances=3, **TWO_EACH) == [
        ("prefill", 0, (0, 1), 0),
        ("prefill", 1, (2, 3), 0),
        ("prefill", 2, (4, 5), 0),
        ("decode", 0, (6, 7), 1),
    ]


def test_the_nodes_may_be_interleaved() -> None:
    assert shares([0, 1] * 4) == [("prefill", 0, (0, 2, 4, 6), 0), ("decode", 0, (1, 3, 5, 7), 1)]


def test_gpus_that_are_left_over_stay_free() -> None:
    assert shares(TWO_SOCKETS, **TWO_EACH) == [("prefill", 0, (0, 1), 0), ("decode", 0, (4, 5), 1)]


def test_a_node_that_is_asked_for() -> None:
    assert shares(TWO_SOCKETS, prefill_numa_node=1) == [("prefill", 0, (4, 5, 6, 7), 1), ("decode", 0, (0, 1, 2, 3), 0)]


def test_both_roles_on_one_node_where_that_is_asked_for() -> None:
    asked = {"prefill_numa_node": 1, "decode_numa_node": 1}
    assert shares(TWO_SOCKETS, **TWO_EACH, **asked) == [("prefill", 0, (4, 5), 1), ("decode", 0, (6, 7), 1)]


def test_unknown_nodes_are_not_bound() -> None:
    assert shares([-1] * 8) == [("prefill", 0, (0, 1, 2, 3), None), ("decode", 0, (4, 5, 6, 7), None)]
    assert [p.cpus for p in placed([-1] * 8)] == ["", ""]


def test_a_node_without_cpus_is_not_bound() -> None:
    found = dataclasses.replace(hardware([0, 1]), nodes=())
    assert [p.numa_nodes for p in place(settings(**ONE_EACH).roles, found)] == [(), ()]


def test_the_same_host_gives_the_same_placement() -> None:
    assert placed(TWO_SOCKETS) == placed(TWO_SOCKETS)


def test_no_gpu_is_given_twice() -> None:
    found = placed(TWO_SOCKETS, prefill_instances=2, decode_instances=2, **TWO_EACH)
    gpus = [gpu for placement in found for gpu in placement.gpus]
    assert sorted(gpus) == list(range(8))


# ---- the best of all assignments


def sizes(prefill: int, decode: int, prefill_instances: int = 1, decode_instances: int = 1) -> dict[str, object]:
    return {
        "prefill_tensor_parallel": prefill,
        "decode_tensor_parallel": decode,
        "prefill_instances": prefill_instances,
        "decode_instances": decode_instances,
    }


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (sizes(2, 6), [(6, 7), (0, 1, 2, 3, 4, 5)]),
        (sizes(6, 2), [(0, 1, 2, 3, 4, 5), (6, 7)]),
        (sizes(2, 2, 1, 3), [(6, 7), (0, 1), (2, 3), (4, 5)]),
        (sizes(2, 2), [(0, 1), (6, 7)]),
        (sizes(1, 1), [(0,), (6,)]),
        (sizes(4, 2), [(0, 1, 2, 3), (6, 7)]),
    ],
)
def test_six_and_two_in_whichever_way_fits(wanted: dict[str, object], expected: list[tuple[int, ...]]) -> None:
    assert gpus([0] * 6 + [1] * 2, **wanted) == expected


def test_two_and_six() -> None:
    assert gpus([0] * 2 + [1] * 6, **sizes(6, 2)) == [(2, 3, 4, 5, 6, 7), (0, 1)]


def test_gpus_of_a_server_are_as_close_as_the_host_allows() -> None:
    links = {(0, 3): "PIX", (1, 2): "PXB", (4, 5): "PHB", (6, 7): "PIX"}
    assert gpus(TWO_SOCKETS, links, **TWO_EACH) == [(0, 3), (6, 7)]


def test_nvlink_pairs_stay_together() -> None:
    links = {(0, 2): "NV4", (1, 3): "NV4", (0, 1): "PHB", (2, 3): "PHB"}
    assert gpus([0] * 4, links, **TWO_EACH) == [(0, 2), (1, 3)]


def test_more_nvlinks_are_nearer() -> None:
    links = {(a, b): "NV1" for a in range(4) for b in range(a + 1, 4)} | {(0, 3): "NV2", (1, 2): "NV2"}
    assert gpus([0] * 4, links, **TWO_EACH) == [(0, 3), (1, 2)]


def test_prefill_lies_close_to_decode_where_nothing_else_decides() -> None:
    assert gpus([0] * 4, {(0, 1): "PIX", (2, 3): "PIX"}, **ONE_EACH) == [(0,), (1,)]


def test_a_layout_without_write_collapse_is_taken_where_it_costs_nothing() -> None:
    links = {(0, 1): "PIX", (2, 3): "PXB", (4, 6): "PIX", (5, 7): "PIX"}
    found = placed_with(links, **sizes(2, 2, 1, 1))
    assert [p.gpus for p in found] == [(0, 1), (4, 6)]


def test_gpus_alike_are_taken_from_the_lowest() -> None:
    assert gpus([0] * 8 + [1] * 8, **sizes(2, 2, 4, 4)) == [(i, i + 1) for i in range(0, 16, 2)]


def test_sixteen_gpus_of_odd_links_get_some_placement() -> None:
    kinds = ["PIX", "NODE", "PHB", "PXB"]
    links = {(a, b): kinds[(a * 7 + b * 3) % 4] for a in range(16) for b in range(a + 1, 16)}
    found = gpus([0] * 16, links, **sizes(2, 2, 4, 4))
    assert sorted(gpu for one in found for gpu in one) == list(range(16))
    assert all(links[one] == "PIX" for one in found)


# ---- the same against trying everything

KINDS = st.sampled_from(["NV2", "PIX", "PXB", "PHB", "NODE"])


@st.composite
def hosts(draw: st.DrawFn) -> tuple[list[int], dict[tuple[int, int], str], dict[str, object]]:
    """Nodes, links and sizes of at most 6 GPUs."""
    nodes = draw(st.lists(st.integers(-1, 2), min_size=2, max_size=6))
    links = {(a, b): draw(KINDS) for a, b in combinations(range(len(nodes)), 2) if nodes[a] == nodes[b]}
    wanted = sizes(*(draw(st.integers(1, 2)) for _ in range(4)))
    return nodes, links, wanted


def price(parts: list[tuple[str, tuple[int, ...]]], nodes: list[int], links: dict[tuple[int, int], str]) -> list[int]:
    """Shared nodes, nodes of each role, then links by kind from the farthest, then NVLinks: as docs/report.md says."""
    of_role = [
        {nodes[gpu] for role, gpus in parts if role == wanted for gpu in gpus} for wanted in ("prefill", "decode")
    ]
    inside = [links[pair] for _, gpus in parts for pair in combinations(sorted(gpus), 2)]
    kinds = [inside.count(kind) for kind in ("NODE", "PHB", "PXB", "PIX", "NV2")]
    return [len(of_role[0] & of_role[1]), sum(map(len, of_role)), *kinds]


def everything(
    servers: list[tuple[str, int]], free: frozenset[int], nodes: list[int]
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    if not servers:
        yield []
        return
    role, size = servers[0]
    for gpus in combinations(sorted(free), size):
        if len({nodes[gpu] for gpu in gpus}) == 1:
            for rest in everything(servers[1:], free - set(gpus), nodes):
                yield [(role, gpus), *rest]


@given(hosts())
def test_nothing_is_better_than_what_is_found(
    host: tuple[list[int], dict[tuple[int, int], str], dict[str, object]],
) -> None:
    nodes, links, wanted = host
    servers = [
        (role, wanted[f"{role}_tensor_parallel"])
        for role in ("prefill", "decode")
        for _ in range(wanted[f"{role}_instances"])  # type: ignore[call-overload]
    ]
    prices = [price(parts, nodes, links) for parts in everything(servers, frozenset(range(len(nodes))), nodes)]  # type: ignore[arg-type]
    try:
        found = place(settings(**wanted).roles, hardware(nodes, links=links))
    except PlanError:
        assert prices == []
        return
    taken = [gpu for one in found for gpu in one.gpus]
    assert len(set(taken)) == len(taken)
    assert price([(one.role, one.gpus) for one in found], nodes, links) == min(prices)


# ---- servers on several nodes

NPS4 = "\n".join(
    f"{a} " + " ".join("10" if a == b else "12" if a // 4 == b // 4 else "32" for b in range(8)) for a in range(8)
)
NPS2 = "0 10 12 32 32\n1 12 10 32 32\n2 32 32 10 12\n3 32 32 12 10"


def test_eight_nodes_of_one_gpu_bind_to_the_nodes_of_a_socket() -> None:
    prefill, decode = place(settings().roles, hardware(list(range(8)), distances=NPS4))
    assert (prefill.gpus, prefill.nodes, decode.gpus, decode.nodes) == ((0, 1, 2, 3), "0-3", (4, 5, 6, 7), "4-7")
    assert "no NUMA node has 4 GPUs for it, so nodes of one socket" in prefill.rule
    assert prefill.where == "GPU 0-3, NUMA nodes 0-3"


def test_two_gpus_on_each_of_four_nodes() -> None:
    found = place(settings().roles, hardware([0, 0, 1, 1, 2, 2, 3, 3], distances=NPS2))
    assert [(p.gpus, p.numa_nodes) for p in found] == [((0, 1, 2, 3), (0, 1)), ((4, 5, 6, 7), (2, 3))]


def test_a_server_that_fits_on_one_node_stays_there() -> None:
    found = place(settings(**TWO_EACH).roles, hardware([0, 0, 1, 1, 2, 2, 3, 3], distances=NPS2))
    assert [p.numa_nodes for p in found] == [(0,), (1,)]


def test_the_matrix_tells_a_socket_where_there_are_no_distances() -> None:
    links = {(a, b): "NODE" for a in range(4) for b in range(a + 1, 4)}
    assert gpus([0, 1, 2, 3, 4, 4, 4, 4], links) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_sockets_are_mixed_only_where_none_is_large_enough() -> None:
    found = hardware([0, 0, 0, 1, 2, 2, 2, 3], distances=NPS2)
    assert [p.gpus for p in place(settings().roles, found)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    prefill, decode = place(settings(**sizes(6, 2)).roles, found)
    assert len(prefill.gpus) == 6 and len({gpu // 4 for gpu in decode.gpus}) == 1
    assert near((prefill, decode), found).level is Level.WARNING


def test_nvlink_joins_sockets() -> None:
    links = {(a, b): "NV18" for a in range(8) for b in range(a + 1, 8)}
    prefill, decode = place(settings(**sizes(6, 2)).roles, hardware(TWO_SOCKETS, links=links))
    assert (prefill.numa_nodes, decode.numa_nodes) == ((0, 1), (1,))
    assert "nodes joined by NVLink" in prefill.rule


def test_named_gpus_may_lie_on_nodes_of_one_socket() -> None:
    wanted = settings(prefill_gpus=[4, 5, 6, 7])
    assert [p.nodes for p in place(wanted.roles, hardware(list(range(8)), distances=NPS4))] == ["4-7", "0-3"]


# ---- named by settings


def test_named_gpus_are_kept() -> None:
    named = {"prefill_gpus": [7, 6, 5, 4], "decode_gpus": [0, 1, 2, 3]}
    assert shares(TWO_SOCKETS, **named) == [("prefill", 0, (4, 5, 6, 7), 1), ("decode", 0, (0, 1, 2, 3), 0)]


def test_what_one_role_names_the_other_leaves_alone() -> None:
    assert shares(TWO_SOCKETS, decode_gpus=[0, 1, 2, 3]) == [
        ("prefill", 0, (4, 5, 6, 7), 1),
        ("decode", 0, (0, 1, 2, 3), 0),
    ]


def test_a_derived_role_keeps_away_from_the_node_of_a_named_one() -> None:
    assert shares(TWO_SOCKETS, decode_gpus=[0, 1], **TWO_EACH) == [
        ("prefill", 0, (4, 5), 1),
        ("decode", 0, (0, 1), 0),
    ]


def test_named_gpus_are_shared_out_among_the_servers_of_a_role() -> None:
    named = {"prefill_gpus": [0, 1, 4, 5], "prefill_instances": 2, **TWO_EACH}
    assert shares(TWO_SOCKETS, **named)[:2] == [("prefill", 0, (0, 1), 0), ("prefill", 1, (4, 5), 1)]


def test_named_gpus_go_to_the_servers_in_the_order_named() -> None:
    named = {"prefill_gpus": [0, 2, 3, 1], "prefill_instances": 2, **TWO_EACH}
    assert shares(TWO_SOCKETS, **named)[:2] == [("prefill", 0, (0, 2), 0), ("prefill", 1, (1, 3), 0)]


@pytest.mark.parametrize(("gpus", "contiguous"), [([0, 1], True), ([2, 3], True), ([0, 2], False), ([1, 3], False)])
def test_whether_gpus_lie_side_by_side(gpus: list[int], contiguous: bool) -> None:
    assert placed(TWO_SOCKETS, prefill_gpus=gpus, **TWO_EACH)[0].contiguous is contiguous


def test_a_rule_is_given_for_each_kind() -> None:
    rules = [
        placed(TWO_SOCKETS)[0].rule,
        placed(TWO_SOCKETS, prefill_numa_node=0)[0].rule,
        placed(TWO_SOCKETS, prefill_gpus=[0, 1, 2, 3])[0].rule,
    ]
    assert rules[1:] == ["prefill_numa_node names the node", "prefill_gpus names them"]
    assert len(set(rules)) == 3


# ---- contradicted by the hardware: the line names the setting and shows the row


def test_named_gpus_that_lie_apart_are_taken_with_a_warning() -> None:
    """sglang#17680: a virtual machine with one card a node, and a model that needs two."""
    apart = [0, 1]
    with_both = placed(apart, layout="single", server_gpus=[0, 1], server_tensor_parallel=2)
    assert [(p.gpus, p.numa_nodes) for p in with_both] == [((0, 1), (0, 1))]
    said = near(with_both, hardware(apart))
    assert said.level is Level.WARNING
    assert "GPU 0 (NUMA node 0) and GPU 1 (node 1) of server share neither socket nor NVLink (SYS)" in said.line
    assert "server_gpus" in said.advice
    nvlink = hardware(apart, links={(0, 1): "NV4"})
    assert near(with_both, nvlink).level is Level.HEALTHY


def test_a_host_whose_cards_nothing_joins_serves_all_the_same() -> None:
    [server] = placed([0, 1], layout="single", server_tensor_parallel=2)
    assert server.gpus == (0, 1) and "nodes that nothing joins" in server.rule
    assert near((server,), hardware([0, 1])).level is Level.WARNING
    by_node = placed([0, 0, 1, 1, 2, 2, 3, 3])
    assert [p.gpus for p in by_node] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_named_gpu_that_is_not_there() -> None:
    line = refused([0, 1], prefill_gpus=[2], **ONE_EACH)
    assert "prefill_gpus names GPU 2, this host has GPU 0-1" in line
    assert "'GPU1 SYS X" in line


def test_more_gpus_than_there_are() -> None:
    line = refused([0, 1])
    assert "needs 8 GPUs (1 x 4 prefill + 1 x 4 decode), this host has 2" in line
    assert "'GPU1 SYS X" in line


def test_the_second_role_finds_no_node_with_room() -> None:
    line = refused([0] * 5 + [1] * 3)
    assert "decode needs 4 GPUs on one NUMA node, only GPU 4 on node 0, GPU 5-7 on node 1 left" in line
    assert "or name GPUs that lie apart in decode_gpus" in line and "'GPU7 " in line


def test_a_node_that_the_host_lacks() -> None:
    assert "decode_numa_node = 2, this host has NUMA nodes 0, 1" in refused(TWO_SOCKETS, decode_numa_node=2)


def test_a_node_asked_for_that_is_full() -> None:
    line = refused(TWO_SOCKETS, prefill_numa_node=0, decode_numa_node=0)
    assert "decode needs 4 GPUs on one NUMA node, none is left" in line


def test_a_node_asked_for_on_a_host_that_names_none() -> None:
    assert "this host has NUMA nodes none" in refused([-1] * 8, prefill_numa_node=0)


def test_gpus_and_node_that_disagree_name_both_settings() -> None:
    line = refused(TWO_SOCKETS, prefill_gpus=[0, 1, 2, 3], prefill_numa_node=1)
    assert "prefill_numa_node = 1, but GPU 0 of prefill_gpus is on node 0" in line
    assert "'GPU0 X NODE" in line


def test_without_a_matrix_the_line_says_so() -> None:
    found = dataclasses.replace(hardware([0, 1]), topo=None)
    with pytest.raises(PlanError, match="the host gave no topology matrix"):
        place(settings().roles, found)


def test_a_matrix_of_other_gpus_than_the_list() -> None:
    found = hardware(TWO_SOCKETS, topo=Answer(0, topo_text(TWO_SOCKETS[:7])))
    with pytest.raises(PlanError, match=r"nvidia-smi lists GPU 0-7, but its matrix \(topo -m\) GPU 0-6"):
        place(settings(**TWO_EACH).roles, found)


# ---- findings


def judged(
    links: dict[tuple[int, int], str] | None = None, nodes: list[int] = TWO_SOCKETS, p2p: str = "", **changes: object
) -> dict[str, Finding]:
    found = hardware(nodes, links=links or {}, p2p=Answer(0, p2p or p2p_text(len(nodes))))
    finding = write_collapse(place(settings(**changes).roles, found), found)
    return {finding.id: finding}


def test_a_healthy_placement() -> None:
    assert judged()["gpu/writes/collapse"].level is Level.HEALTHY
    [prefill, decode] = place(settings().roles, hardware(TWO_SOCKETS))
    assert (prefill.where, decode.where) == ("GPU 0-3, NUMA node 0", "GPU 4-7, NUMA node 1")
    assert "one NUMA node, roles apart" in prefill.rule


PAIRS = {(0, 1): "PIX", (2, 3): "PIX", (4, 5): "PIX", (6, 7): "PIX"}


def test_pairs_behind_switches_on_both_sides_do_not_collapse() -> None:
    assert judged(PAIRS)["gpu/writes/collapse"].level is Level.HEALTHY


ONE_SIDE = {(0, 1): "PIX", (2, 3): "PIX"}  # switches on the first node only


def test_a_derived_placement_swaps_the_roles_rather_than_collapse() -> None:
    assert [p.gpus for p in placed_with(ONE_SIDE, **TWO_EACH)] == [(4, 5), (0, 1)]


def test_write_collapse_quotes_the_rows_and_offers_another_layout() -> None:
    finding = judged(ONE_SIDE, prefill_gpus=[0, 1], **TWO_EACH)["gpu/writes/collapse"]
    assert finding.level is Level.WARNING
    assert "GPU 0 and 1 share a PCIe switch (PIX) and write KV to GPU 4 and 5 behind two roots (NODE)" in finding.line
    assert [row.split()[0] for row in finding.evidence] == ["GPU0", "GPU1", "GPU4", "GPU5"]
    assert finding.advice == "a layout without it: prefill_gpus = [4, 5], decode_gpus = [0, 1]"


def test_the_layout_that_is_offered_has_no_write_collapse() -> None:
    found = judged(ONE_SIDE, prefill_gpus=[4, 5], decode_gpus=[0, 1], **TWO_EACH)
    assert found["gpu/writes/collapse"].level is Level.HEALTHY


def test_write_collapse_that_no_layout_avoids() -> None:
    found = judged(PAIRS, **sizes(1, 1, 4, 4))["gpu/writes/collapse"]
    assert found.level is Level.WARNING
    assert "no layout of these servers avoids it" in found.advice


def test_writes_over_nvlink_do_not_collapse() -> None:
    nvlink = {(a, b): "NV18" for a in range(4) for b in range(4, 8)}
    assert judged({(0, 1): "PIX", **nvlink}, **TWO_EACH)["gpu/writes/collapse"].level is Level.HEALTHY


def test_uneven_ranks_write_to_the_ranks_that_share_their_part() -> None:
    named = {"prefill_gpus": [0, 1], "decode_gpus": [4, 5, 6, 7]}
    same_root = judged({(0, 1): "PIX", (4, 5): "PIX", (6, 7): "PIX"}, **sizes(2, 4), **named)
    assert "GPU 0 and 1" in same_root["gpu/writes/collapse"].line
    assert "GPU 4 and 6" in same_root["gpu/writes/collapse"].line


def test_without_a_matrix_it_is_incomplete_and_stops_nothing() -> None:
    found = dataclasses.replace(hardware(TWO_SOCKETS), topo=None, p2p=None)
    finding = write_collapse(place(settings().roles, found), found)
    assert (finding.level, finding.stops) == (Level.INCOMPLETE, False)
