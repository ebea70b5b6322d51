"""The wheels of the CPU release and of both routers, for tests that are their own package source."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.node.group_data.rehearsal import release, torch_wheel
from tests.node.node import STORE, Node
from tests.node.process import command


def of(node: Node) -> Path:
    """A folder with every wheel for the node's Python, by make wheelhouse; kept below .node for the next time."""
    folder = STORE / "wheels"
    python = node.run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").stdout.strip()
    for router in ("sglang-router", "smg"):
        line = [sys.executable, "-m", "tools.wheelhouse", release, python, "--dest", str(folder), "--router", router]
        command(*line, "--torch-wheel", torch_wheel)
    return folder
