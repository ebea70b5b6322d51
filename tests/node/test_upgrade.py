"""A host that an earlier commit deployed is taken over: nothing of it is foreign, nothing is fetched or built again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.node import earlier
from tests.node.asking import answer, out, states
from tests.node.deploying import deploy, provisioned
from tests.node.node import Node
from tests.node.process import NodeError

pytestmark = pytest.mark.serving
# What took long to get: the release and its wheels, the uv environment, the models.
KEPT = "stat -c '%n %i %Y' /opt/sglang-pd/releases/* /opt/sglang-pd/cache/uv /var/lib/sglang-pd/models/*"


@pytest.fixture(scope="module")
def taken_over() -> Iterator[Node]:
    """A host as commit 7060253 left it, with its servers running."""
    node = Node(f"earlier-{os.getpid()}")
    try:
        try:
            kept = earlier.deployed(earlier.FIRST)
        except earlier.NoSuchCommit as fault:
            pytest.skip(str(fault))
        node.up(kept)
        yield node
    except NodeError as fault:
        pytest.fail(str(fault))
    finally:
        node.down()


def test_a_host_of_an_earlier_commit_converges(taken_over: Node) -> None:
    node = taken_over
    assert states(node) == ["active"] * 3, "it serves, as that commit left it"
    assert out(node, "stat -c %U /run/sglang-pd/decode") == "sglang", "marks were the service user's then"
    kept = out(node, KEPT)

    first = provisioned(node)

    assert "refused" not in first.output and "foreign" not in first.output
    assert "ends and goes" not in first.output, "no unit of that commit is left over"
    assert out(node, KEPT) == kept
    assert states(node) == ["active"] * 3
    assert answer(node, "Repeat: xyz123") == "xyz123"
    assert out(node, "stat -c %U /run/sglang-pd/decode /run/sglang-pd/decode/fingerprint.json").split() == ["root"] * 2
    second = deploy(node, "-y")
    assert second.status == 0, second.output
    assert second.changed == [], "and it has converged"


def test_what_is_recorded_of_the_start_is_what_runs(taken_over: Node) -> None:
    left = json.loads(out(taken_over, "cat /run/sglang-pd/decode/fingerprint.json"))
    invocation = out(taken_over, "systemctl show -p InvocationID --value sglang-pd-decode.service")
    assert left["invocation"] == invocation


def test_a_checkout_without_that_commit_says_what_to_do() -> None:
    with pytest.raises(
        earlier.NoSuchCommit, match=r"has no commit 0{40}.*git fetch --unshallow.*or unpack that commit"
    ):
        earlier.source("0" * 40)
