"""A model fetched from a hub onto a provisioned host, by the playbook's own operation, as the service user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bin.test_pd_model import FIRST, REPO, REVISION, Hub, hub
from tests.node.asking import out
from tests.node.deploying import INVENTORY, environment
from tests.node.node import REPOSITORY, Node
from tests.node.reach import within_reach

__all__ = ["hub"]

DIRECTORY = "/var/lib/sglang-pd/models/tiny"


def fetch(node: Node, hub: Hub) -> tuple[int, str]:
    """`pyinfra -y INVENTORY tasks.operations.model.fetched ...`: the operation alone."""
    arguments = {
        "directory": DIRECTORY, "owner": "sglang", "home": "/var/lib/sglang-pd", "repository": REPO,
        "revision": REVISION, "hub": hub.url, "tool": "/opt/sglang-pd/bin/pd-model",
        "python": "/opt/sglang-pd/current/env/bin/python",
    }  # fmt: skip
    line = [str(Path(sys.executable).with_name("pyinfra")), "-y", INVENTORY, "tasks.operations.model.fetched"]
    ran = subprocess.run(
        [*line, *(f"{name}={value}" for name, value in arguments.items())], cwd=REPOSITORY, env=environment(node),
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return ran.returncode, ran.stderr + ran.stdout


def test_a_fetch_that_breaks_off_is_gone_on_with_and_then_changes_nothing(served: Node, hub: Hub) -> None:
    with within_reach(served, hub.url, hub.store):
        hub.status = {f"/store/{FIRST}": [404]}
        status, said = fetch(served, hub)
        assert status != 0 and "Traceback" not in said, said
        assert served.run(f"test -e {DIRECTORY}/.pd-model.json").returncode != 0, "not whole, so not recorded"

        status, said = fetch(served, hub)
        assert status == 0, said
        for name, content in hub.files.items():
            size, owner = out(served, f"stat -c '%s %U' {DIRECTORY}/{name}").split()
            assert (int(size), owner) == (len(content), "sglang")

        asked = len(hub.asked)
        status, said = fetch(served, hub)
        assert status == 0 and "No changes" in said, said
        assert len(hub.asked) == asked, "a model that is whole asks nothing of the hub"
    served.run(f"rm -r {DIRECTORY}")
