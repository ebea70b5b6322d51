"""Hosts as an earlier commit of this repository left them: what every change must take over without a fault.

The commit is deployed once in a checkout, by its own code, and its disk kept; a node that begins with it boots in
seconds, with that commit's servers running.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

from tests.node.deploying import command_line, environment
from tests.node.node import REPOSITORY, STORE, Node
from tests.node.process import NodeError, locked, remove_tree


class NoSuchCommit(NodeError):
    """This checkout has no history; the message says what to do."""


FIRST = "70602539043f837287d3f66889907f4f798ae864"  # the last one that trusted what servers write


def deployed(commit: str) -> str:
    """Name of the kept disk of a host that `commit` was deployed to, for Node.up(). Raises NoSuchCommit, NodeError."""
    name = f"deployed-{commit}"
    with locked(STORE / f"{name}.lock"):
        if not (STORE / name).exists():
            code = source(commit)
            node = Node(f"earlier-{os.getpid()}")
            try:
                node.up()
                ran = subprocess.run(
                    command_line("-y"), cwd=code, env=environment(node), stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )  # fmt: skip
                if ran.returncode:
                    raise NodeError(f"commit {commit} could not be deployed:\n{ran.stdout[-4000:]}")
                node.keep(name)
            finally:
                node.down()
    return name


def source(commit: str) -> Path:
    """The tree of a commit, unpacked below .node. Raises NoSuchCommit."""
    folder = STORE / f"commit-{commit}"
    if folder.exists():
        return folder
    packed = subprocess.run(["git", "archive", commit], cwd=REPOSITORY, capture_output=True)
    if packed.returncode:
        raise NoSuchCommit(missing(commit, folder))
    part = folder.with_name(f"{folder.name}.part")
    if part.exists():
        remove_tree(part)
    part.mkdir()
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(part, filter="data")
    (part / ".node").symlink_to(STORE)  # its inventory finds our nodes there
    part.rename(folder)
    return folder


def missing(commit: str, folder: Path) -> str:
    """What to do in a checkout without that commit."""
    return (
        f"this checkout has no commit {commit}, so nobody knows whether a host that it left is taken over: "
        f"`git fetch --unshallow`, or unpack that commit into {folder.relative_to(REPOSITORY)} with a link .node to {STORE}"
    )
