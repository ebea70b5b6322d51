"""A host that died and was rebuilt with the same name: new host key, empty disk."""

from __future__ import annotations

import subprocess

from tests.node.asking import answers, out, states
from tests.node.deploying import deploy, plain_user, provisioned, without_plain_user
from tests.node.node import Node


def test_the_two_documented_commands_bring_a_rebuilt_host_back(served: Node) -> None:
    served.rebuild()
    assert served.run("ls /opt/sglang-pd").returncode != 0, "an empty disk"

    changed_key = deploy(served, "-y")
    assert changed_key.status != 0
    assert "Traceback" not in changed_key.output
    assert "key" in changed_key.output.lower(), changed_key.output

    subprocess.run(["ssh-keygen", "-R", served.address, "-f", str(served.known_hosts)], check=True, capture_output=True)
    assert len(provisioned(served, *plain_user(served)).changed) > 30
    without_plain_user(served)
    assert states(served) == ["active"] * 3
    assert answers(served)
    assert deploy(served, "-y").changed == []
    assert out(served, "readlink /opt/sglang-pd/current").startswith("/opt/sglang-pd/releases/sglang-0.5.20-cpu")
