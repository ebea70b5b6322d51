"""Revisions of a fetched model on a served host: one that an earlier version fetched is renamed, another one lies beside
it until it has answered, and a crash in between loads the one that was serving.

Several restarts of both servers: run with `make test-faults`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tasks.support.catalogue import MODELS
from tests.bin.test_pd_model import REPO, REVISION, Hub, hub, sha256
from tests.node.asking import UNITS, answer, out, pids, states
from tests.node.deploying import broken_off, deploy, provisioned
from tests.node.node import Node
from tests.node.reach import within_reach
from tests.node.waiting import until

__all__ = ["hub"]

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="several restarts: make test-faults")
FOLDER, NAME, OTHER = "/var/lib/sglang-pd/models", "from-a-hub", "f" * 40
FIRST, SECOND = f"{NAME}-{REVISION[:12]}", f"{NAME}-{OTHER[:12]}"


@pytest.fixture
def settings(served: Node, hub: Hub, tmp_path: Path) -> Iterator[dict[str, object]]:
    """The rehearsal's model, from a hub that has it in two revisions: the second has another file of no weight."""
    profile = yaml.safe_load((MODELS / "rehearsal-qwen2.yaml").read_text())
    profile |= {"name": NAME, "source": {"hub": REPO, "revision": REVISION}}
    (tmp_path / f"{NAME}.yaml").write_text(yaml.safe_dump(profile))
    hub.files = {path.name: path.read_bytes() for path in (MODELS / "rehearsal-qwen2").iterdir()}
    hub.revisions.append(OTHER)
    with within_reach(served, hub.url, hub.store):
        yield {"model": NAME, "model_profiles": tmp_path, "model_hub": hub.url, "minimum_free_disk_gb": 0.1}
        assert deploy(served, "-y").status == 0
    out(served, f"rm -rf {FOLDER}/{NAME}*")


def fetched_by_an_earlier_version(node: Node, hub: Hub) -> None:
    """As pd-model left it: a folder named after the model alone, and the record in it."""
    files = {name: {"size": len(content), "sha256": sha256(content)} for name, content in hub.files.items()}
    record = json.dumps({"repo": REPO, "revision": REVISION, "files": files})
    out(node, f"cp -r /opt/sglang-pd/models/rehearsal-qwen2 {FOLDER}/{NAME}")
    node.run(f"cat >{FOLDER}/{NAME}/.pd-model.json", text=record)
    out(node, f"chown -R sglang: {FOLDER}/{NAME} && chmod 750 {FOLDER}/{NAME}")


def there(node: Node) -> list[str]:
    return out(node, f"ls -F {FOLDER}").split()


def loaded(node: Node) -> set[str]:
    """The folders that both servers were started with."""
    lines = [out(node, f"tr '\\0' '\\n' </proc/{pids(node)[unit]}/cmdline | grep {FOLDER}") for unit in UNITS[:2]]
    return {line.rpartition("/")[2] for line in lines}


def test_each_revision_has_its_folder_until_the_next_has_answered(
    served: Node, hub: Hub, settings: dict[str, object]
) -> None:
    fetched_by_an_earlier_version(served, hub)
    inode = out(served, f"stat -c %i {FOLDER}/{NAME}/model.safetensors")
    first = provisioned(served, **settings)
    assert f"{FOLDER}/{NAME} becomes {FOLDER}/{FIRST}: nothing of it is fetched again" in first.output
    assert there(served) == [f"{FIRST}/"] and loaded(served) == {FIRST}
    assert out(served, f"stat -c %i {FOLDER}/{FIRST}/model.safetensors") == inode
    assert not [asked for asked in hub.asked if "/resolve/" in asked.path]
    assert deploy(served, "-y", **settings).changed == []

    hub.files["README.md"] = b"a newer revision\n"
    settings = {**settings, "model_revision": OTHER}
    dry = deploy(served, "--dry", **settings)
    assert "decode: restarts, it was started with another launch script" in dry.output
    broken_off(served, "Starting operation: Topology", signal.SIGKILL, **settings)
    assert there(served) == [f"{FIRST}/", f"{SECOND}/"]
    killed = pids(served)[UNITS[1]]
    out(served, f"systemctl kill -s KILL {UNITS[1]}")
    until(lambda: pids(served)[UNITS[1]] not in (0, killed) and states(served) == ["active"] * 3, "it is back", 300)
    assert loaded(served) == {FIRST}, "what served before comes back, not a mixture"

    second = provisioned(served, **settings)
    assert f"{FOLDER}/{FIRST}: no server loads it any more" in second.output
    assert there(served) == [f"{SECOND}/"] and loaded(served) == {SECOND}
    assert out(served, f"stat -c %i {FOLDER}/{SECOND}/model.safetensors") == inode, "shared, not fetched"
    assert "391" in answer(served, "What is 17*23? Answer with the number only.")
    assert deploy(served, "-y", **settings).changed == []
