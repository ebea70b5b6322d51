"""The wheels of the CPU release and of both routers, for tests that are their own package source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tasks.plan.host.answers import PYTHON_OF
from tests.node.node import STORE, Node
from tests.node.process import command
from tests.node.settings import RELEASE, TORCH_WHEEL


def python(node: Node) -> str:
    """The node's Python, "3.11"."""
    system = dict(
        line.split("=", 1) for line in node.run("grep = /etc/os-release").stdout.replace('"', "").splitlines()
    )
    return PYTHON_OF[system["ID"], system["VERSION_ID"]]


def of(node: Node, *routers: str, name: str = RELEASE) -> Path:
    """A folder with every wheel of a release for the node's Python, by make wheelhouse; kept below .node for later."""
    folder = STORE / f"wheels-{name}"
    for router in routers:
        line = [sys.executable, "-m", "tools.wheelhouse", name, python(node), "--dest", str(folder)]
        line += ["--router", router]
        command(*line, "--torch-wheel", TORCH_WHEEL)
    return folder


def copy(node: Node, folder: Path, path: str) -> None:
    """What is in a folder of this machine into one of the node, over ssh."""
    packed = subprocess.Popen(["tar", "-C", str(folder), "-cf", "-", "."], stdout=subprocess.PIPE)
    line = f"mkdir -p {path} && tar -C {path} --no-same-owner -xf -"
    subprocess.run([*node.ssh_command(), line], stdin=packed.stdout, check=True)
    assert packed.wait() == 0
