"""Fixtures that tests on simulated hosts share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.node import found
from tests.node.deploying import plain_user, provisioned, without_plain_user
from tests.node.fixtures import bare_node, node
from tests.node.node import Node

__all__ = ["bare_node", "node", "served"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that a served host answers: `-m serving`, `-m "not serving"`."""
    for item in items:
        if "served" in getattr(item, "fixturenames", ()):
            item.add_marker("serving")


@pytest.fixture(scope="session")
def served() -> Iterator[Node]:
    """A host provisioned once for all tests; what a test breaks, it or the next run of the playbook mends."""
    node = Node(f"served-{os.getpid()}")
    try:
        node.up()
        made = node.run(found.SCRIPT)
        assert made.returncode == 0, made.stderr
        as_plain = plain_user(node, password="not so secret")
        first = provisioned(node, *as_plain)  # nor does anybody log in as root: sudo, with a password
        without_plain_user(node)
        assert len(first.changed) > 30, "a bare host is made from almost every operation"
        yield node
        assert node.unrecorded() == []
    finally:
        node.down()
