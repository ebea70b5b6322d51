"""Ctrl-C at any point leaves no mount, process, network or half a tree behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node import traces
from tests.node.node import REPOSITORY, Node

INTERRUPTED = 130


def reach(process: subprocess.Popen[bytes], point: Callable[[], bool], limit: float = 120) -> None:
    """Wait, looking often, until a running process has come to a point."""
    end = time.monotonic() + limit
    while not point():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < end, f"it has not come so far in {limit:.0f} s"
        time.sleep(0.002)


def number_of(node: Node) -> int | None:
    """The network number that a node has, once it has one."""
    try:
        return int(json.loads((node.folder / "node.json").read_text())["number"])
    except FileNotFoundError:
        return None


POINTS: dict[str, Callable[[Node], bool]] = {
    "folder made": lambda node: node.folder.exists(),
    "network claimed": lambda node: number_of(node) is not None,
    "disk half filled": lambda node: (node.folder / "layer/etc/hostname").exists(),
    "booting": lambda node: (node.folder / "pid").exists(),
}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("point", POINTS)
def test_up(point: str, sent: signal.Signals) -> None:
    node = Node(f"test-{os.getpid()}-interrupted")
    up = subprocess.Popen([sys.executable, "-m", "tests.node", "up", "--name", node.name], cwd=REPOSITORY)
    try:
        reach(up, lambda: POINTS[point](node))
        number = number_of(node)
        up.send_signal(sent)
        assert up.wait() == (INTERRUPTED if sent == signal.SIGINT else 143)
        assert traces.of_node(node, number) == []
    finally:
        up.kill()
        node.down()


def test_building_the_base(tmp_path: Path) -> None:
    program = "import sys, pathlib; from tests.node import debian; "
    program += "debian.base_tree(debian.this_release(), pathlib.Path(sys.argv[1]))"
    build = subprocess.Popen([sys.executable, "-c", program, tmp_path], cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        # debootstrap has its own /proc mounted and runs programs of the new tree
        reach(build, lambda: any(tmp_path.glob("base-*.part/usr/bin/dpkg")))
        assert any(str(tmp_path) in trace and ": " in trace for trace in traces.of_folder(tmp_path))
        build.send_signal(signal.SIGINT)
        assert build.wait() != 0
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
        assert traces.of_folder(tmp_path) == [str(tmp_path)]
    finally:
        build.kill()


def test_rehearsal_in_the_middle_of_the_deploy(tmp_path: Path) -> None:
    node = Node("rehearsal")
    if node.folder.exists():
        pytest.skip("a node named rehearsal is kept on this machine")
    deploy = tmp_path / "deploy.py"
    deploy.write_text(
        "from pyinfra.operations import server\n"
        "server.shell(name='endless', commands=['touch /root/reached; sleep infinity'])\n"
    )
    line = [sys.executable, "-m", "tests.node.rehearse", "--deploy", str(deploy)]
    rehearsal = subprocess.Popen(line, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        reach(rehearsal, lambda: (node.folder / "layer/root/reached").exists())
        number = number_of(node)
        rehearsal.send_signal(signal.SIGINT)
        assert rehearsal.wait() == INTERRUPTED
        assert traces.of_node(node, number) == []
        assert traces.of_folder(tmp_path) == [str(tmp_path)]
    finally:
        rehearsal.kill()
        node.down()
