"""The picture of a placement: everything has its place, and nothing lies on top of something else."""

from itertools import combinations

import pytest

from tasks.plan.host.answers import Hardware
from tasks.plan.proof.judgement import NONE
from tasks.plan.report.data import build
from tasks.plan.report.drawing import Box, Card, Drawing, draw
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware
from tests.plan.report.test_data import NOW
from tests.plan.service.test_placement import NPS4

PIX = {(0, 1): "PIX", (2, 3): "PXB", (4, 6): "PIX"}


def drawn(found: Hardware, speeds: dict[tuple[int, int], float | None] | None = None, **settings: object) -> Drawing:
    data = build("gpu-1", catalogue_plan(settings, found), (), None, NONE, NOW)
    return draw(data["hardware"], data["placement"], data["writes"], speeds or {})


def sizes(prefill: int, decode: int, instances: int = 1) -> dict[str, object]:
    return {"prefill_tensor_parallel": prefill, "decode_tensor_parallel": decode, "prefill_instances": instances}


HOSTS = [
    (hardware(TWO_SOCKETS, links=PIX), {}),
    (hardware(list(range(8)), distances=NPS4), {}),
    (hardware([0] * 6 + [1] * 2), sizes(2, 2, 3)),
    (hardware([0] * 4), sizes(2, 2)),
    (hardware([-1] * 2), sizes(1, 1)),
    (hardware([0, 1, 2, 3]), sizes(1, 1)),
    (hardware([0] * 8 + [1] * 8), sizes(4, 8, 2)),
]


def inside(inner: Box | Card, outer: Box) -> bool:
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.width <= outer.x + outer.width
        and inner.y + inner.height <= outer.y + outer.height
    )


def overlap(a: Box | Card, b: Box | Card) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


@pytest.mark.parametrize(("found", "settings"), HOSTS)
def test_every_gpu_lies_in_one_node_and_on_no_other(found: Hardware, settings: dict[str, object]) -> None:
    picture = drawn(found, **settings)
    assert sorted(card.gpu for card in picture.cards) == [gpu.index for gpu in found.gpus]
    whole = Box(0, 0, picture.width, picture.height, "")
    assert all(inside(socket, whole) for socket in picture.sockets)
    assert all(sum(inside(node, socket) for socket in picture.sockets) == 1 for node in picture.nodes)
    assert all(sum(inside(card, node) for node in picture.nodes) == 1 for card in picture.cards)
    assert not any(overlap(a, b) for a, b in combinations(picture.cards, 2))
    assert not any(overlap(a, b) for a, b in combinations(picture.nodes, 2))


@pytest.mark.parametrize(("found", "settings"), HOSTS)
def test_lines_and_their_labels_stay_inside(found: Hardware, settings: dict[str, object]) -> None:
    picture = drawn(found, **settings)
    assert picture.writes
    assert all(0 <= line.x <= picture.width and 0 <= line.y <= picture.height for line in picture.writes)


def test_roles_have_letters() -> None:
    cards = {card.gpu: card for card in drawn(hardware([0] * 6 + [1] * 3), **sizes(2, 2, 3)).cards}
    assert [cards[gpu].letter for gpu in range(9)] == ["P0", "P0", "P1", "P1", "P2", "P2", "D", "D", "-"]
    assert (cards[2].server, cards[8].server, cards[8].role) == ("prefill-1", "not used", "idle")


def test_a_column_for_each_socket_a_box_for_each_node() -> None:
    picture = drawn(hardware(list(range(8)), distances=NPS4))
    assert [node.title for node in picture.nodes][:2] == ["NUMA node 0 · 128 CPUs", "NUMA node 1 · 128 CPUs"]
    assert len(picture.nodes) == 8
    assert [socket.title for socket in picture.sockets] == ["Socket of nodes 0-3", "Socket of nodes 4-7"]
    assert len({node.x for node in picture.nodes}) == 2


def test_gpus_behind_one_switch_lie_side_by_side_and_are_joined() -> None:
    picture = drawn(hardware(TWO_SOCKETS, links=PIX))
    assert [(line.title) for line in picture.switches] == ["GPU 0 and 1: PIX", "GPU 2 and 3: PXB", "GPU 4 and 6: PIX"]
    assert [card.gpu for card in picture.cards] == [0, 1, 2, 3, 4, 6, 5, 7]


def test_writes_carry_what_was_measured() -> None:
    lines = drawn(hardware(TWO_SOCKETS), {(0, 4): 52.6, (1, 5): None}).writes
    assert [line.label for line in lines] == ["53", "", "", ""]
    assert lines[0].title == "KV from GPU 0 to GPU 4: 52.6 GB/s"
    assert lines[1].title == "KV from GPU 1 to GPU 5: not measured"
