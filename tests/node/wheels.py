"""The wheels of the CPU release and of both routers, for tests that are their own package source."""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.plan.host.answers import PYTHON_OF
from tests.node.group_data.rehearsal import release, torch_wheel
from tests.node.node import STORE, Node
from tests.node.process import command


def of(node: Node) -> Path:
    """A folder with every wheel for the node's Python, by make wheelhouse; kept below .node for the next time."""
    folder = STORE / "wheels"
    system = dict(
        line.split("=", 1) for line in node.run("grep = /etc/os-release").stdout.replace('"', "").splitlines()
    )
    python = PYTHON_OF[system["ID"], system["VERSION_ID"]]
    for router in ("sglang-router", "smg"):
        line = [sys.executable, "-m", "tools.wheelhouse", release, python, "--dest", str(folder), "--router", router]
        command(*line, "--torch-wheel", torch_wheel)
    return folder
