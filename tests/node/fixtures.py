"""Pytest fixtures for tests that need a host: `from tests.node.fixtures import bare_node` in a conftest."""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.node.node import DEFAULT_HARDWARE, Node

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def bare_node() -> Iterator[Callable[..., Node]]:
    """A function that makes a bare node, bare_node(hardware=...); all that it made are taken away with the module."""
    made: list[Node] = []

    def make(hardware: str = DEFAULT_HARDWARE) -> Node:
        node = Node(f"test-{os.getpid()}-{next(_numbers)}", hardware)
        made.append(node)
        node.up()
        return node

    try:
        yield make
    finally:
        for node in made:
            node.down()


@pytest.fixture(scope="module")
def node(bare_node: Callable[..., Node]) -> Iterator[Node]:
    """One bare node for a module; what was asked of its hardware, its recording answers."""
    made = bare_node()
    yield made
    assert made.unrecorded() == []
