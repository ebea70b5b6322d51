"""Which GPUs, CPUs and memory each server gets, and overrides that the hardware contradicts."""

import dataclasses

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.placement import Placement, place
from tests.plan.builders import TWO_SOCKETS, cpus_of_node, hardware, settings


def placed(nodes: list[int], **changes: object) -> tuple[Placement, ...]:
    return place(settings(**changes), hardware(nodes))


def shares(nodes: list[int], **changes: object) -> list[tuple[str, int, tuple[int, ...], int | None]]:
    return [(p.role, p.number, p.gpus, p.numa_node) for p in placed(nodes, **changes)]


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
    assert [p.numa_node for p in place(settings(**ONE_EACH), found)] == [None, None]


def test_the_same_host_gives_the_same_placement() -> None:
    assert placed(TWO_SOCKETS) == placed(TWO_SOCKETS)


def test_no_gpu_is_given_twice() -> None:
    found = placed(TWO_SOCKETS, prefill_instances=2, decode_instances=2, **TWO_EACH)
    gpus = [gpu for placement in found for gpu in placement.gpus]
    assert sorted(gpus) == list(range(8))


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


def test_named_gpus_that_span_nodes() -> None:
    line = refused(TWO_SOCKETS, decode_gpus=[3, 4, 5, 6])
    assert "decode_gpus = [3, 4, 5, 6] spans NUMA nodes: GPU 3 is on node 0, GPU 4 on node 1" in line
    assert "'GPU4 SYS SYS SYS SYS X NODE NODE NODE 64-127,192-255 1 N/A'" in line


def test_a_named_gpu_that_is_not_there() -> None:
    line = refused([0, 1], prefill_gpus=[2], **ONE_EACH)
    assert "prefill_gpus names GPU 2, this host has GPU 0-1" in line
    assert "'GPU1 SYS X" in line


def test_more_gpus_than_there_are() -> None:
    line = refused([0, 1])
    assert "needs 8 GPUs (1 x 4 prefill + 1 x 4 decode), this host has 2" in line
    assert "'GPU1 SYS X" in line


def test_enough_gpus_but_not_on_one_node() -> None:
    line = refused([0, 0, 1, 1, 2, 2, 3, 3])
    assert "prefill needs 4 GPUs on one NUMA node, free are GPU 0-1 on node 0, GPU 2-3 on node 1" in line
    assert "'GPU7 " in line


def test_the_second_role_finds_no_node_with_room() -> None:
    line = refused([0] * 5 + [1] * 3)
    assert "decode needs 4 GPUs on one NUMA node, free are GPU 4 on node 0, GPU 5-7 on node 1" in line


def test_a_node_that_the_host_lacks() -> None:
    assert "decode_numa_node = 2, this host has NUMA nodes 0, 1" in refused(TWO_SOCKETS, decode_numa_node=2)


def test_a_node_asked_for_that_is_full() -> None:
    line = refused(TWO_SOCKETS, prefill_numa_node=0, decode_numa_node=0)
    assert "decode needs 4 GPUs on one NUMA node, free are none" in line


def test_a_node_asked_for_on_a_host_that_names_none() -> None:
    assert "this host has NUMA nodes none" in refused([-1] * 8, prefill_numa_node=0)


def test_gpus_and_node_that_disagree_name_both_settings() -> None:
    line = refused(TWO_SOCKETS, prefill_gpus=[0, 1, 2, 3], prefill_numa_node=1)
    assert "prefill_numa_node = 1, but GPU 0 of prefill_gpus is on node 0" in line
    assert "'GPU0 X NODE" in line


def test_without_a_matrix_the_line_says_so() -> None:
    found = dataclasses.replace(hardware([0, 1]), topo=None)
    with pytest.raises(PlanError, match="the host gave no topology matrix"):
        place(settings(), found)
