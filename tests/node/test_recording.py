"""A host is recorded and played: the simulated host then gives the same answers, and nothing changed on the first."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

import pytest

from tasks.facts.hardware import Hardware
from tasks.plan.host.answers import Answer
from tests.conftest import Checkout
from tests.node.node import REPOSITORY, Node

UUID = re.compile(r"GPU-[0-9a-f-]{36}")


def asked(node: Node) -> Mapping[str, Answer]:
    """What the fact Hardware brings."""
    ran = node.run("sh", text=Hardware().command())
    return Hardware().process(ran.stdout.splitlines())


def record(node: Node, checkout: Checkout) -> dict[str, bytes]:
    """`make record`, in a folder of its own: path in the recording -> content."""
    line = checkout.command("-y", inventory="tests/node/inventory.py", operations="tasks.record.hardware")
    environment = {**checkout.environment, "NODE": node.name}
    ran = subprocess.run(line, cwd=checkout.folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    folder = checkout.folder / "recordings" / "rehearsal"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed_since(node: Node, mark: str) -> list[str]:
    return node.run(f"find /etc /opt /usr /root /home /var -xdev -newer {mark} -type f").stdout.split()


def test_a_recorded_host_gives_the_same_answers(
    node: Node, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout.folder / "tests").symlink_to(REPOSITORY / "tests")
    node.run("touch /run/before")
    first = record(node, checkout)
    written = [path for path in changed_since(node, "/run/before") if not path.startswith("/var/log/")]
    assert written == [], "a recording changes nothing"

    before = asked(node)
    monkeypatch.chdir(checkout.folder)
    node.hardware("rehearsal")
    try:
        after = asked(node)
        again = record(node, checkout)
    finally:
        node.hardware("rtx-pro-6000-x8")
    different = {name for name in before if UUID.sub("", before[name].text) != UUID.sub("", after[name].text)}
    assert different <= {"iommu", "kernel", "memory", "shm"}, different
    assert len(set(UUID.findall(after["gpus"].text))) == len(UUID.findall(before["gpus"].text)) == 8
    assert re.findall(r"\S*iommu\S*", after["iommu"].text) == re.findall(r"\S*iommu\S*", before["iommu"].text)
    assert after["kernel"].text.split(" ", 1)[1:] and "Xid" not in after["kernel"].text
    assert again.keys() == first.keys()
    assert [
        path
        for path in first
        if path != "recording.json" and UUID.sub("", first[path].decode()) != UUID.sub("", again[path].decode())
    ] == []
