"""A host that an earlier commit deployed is taken over: nothing of it is foreign, nothing is fetched or built again."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.node import earlier
from tests.node.asking import CONFIG, answer, out, states
from tests.node.deploying import command_line, deploy, environment, provisioned
from tests.node.node import Node
from tests.node.process import NodeError

pytestmark = pytest.mark.serving
# What took long to get: the release and its wheels, the uv environment, the models.
BIN = "/opt/sglang-pd/bin"
KEPT = "stat -c '%n %i %Y' /opt/sglang-pd/releases/* /opt/sglang-pd/cache/uv /var/lib/sglang-pd/models/*"


@pytest.fixture(scope="module")
def taken_over() -> Iterator[Node]:
    yield from earlier_host("earlier")


@pytest.fixture
def another() -> Iterator[Node]:
    yield from earlier_host("another")


def earlier_host(name: str) -> Iterator[Node]:
    """A host as commit 7060253 left it, with its servers running."""
    node = Node(f"{name}-{os.getpid()}")
    try:
        try:
            kept = earlier.deployed(earlier.FIRST)
        except earlier.NoSuchCommit as fault:
            pytest.skip(str(fault))
        node.up(kept)
        yield node
    except NodeError as fault:
        pytest.fail(str(fault))
    finally:
        node.down()


@pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make test-faults")
def test_the_first_upgrade_is_taken_back_where_it_fails(another: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """That commit kept nothing of what passed: it comes back as it was found, its tools and its API key included."""
    node, changes = another, {"decode_arguments": '["--tokenizer-path", "/nowhere"]'}
    monkeypatch.setenv("PD_TEST_KEY", "of-an-earlier-commit")
    keyed = command_line("-y", router_api_key_env="PD_TEST_KEY")
    ran = subprocess.run(
        keyed, cwd=earlier.source(earlier.FIRST), env=environment(node), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    lying = "find /etc/sglang-pd /etc/systemd/system /opt/sglang-pd/bin -type f ! -name probe-stale ! -name '*.pyc'"
    files = f"{lying} | sort | xargs sha256sum; readlink /opt/sglang-pd/current"
    before = out(node, files)
    assert "api-key.env" in before

    failed = deploy(node, "-y", router_api_key_env="PD_TEST_KEY", **changes)

    assert failed.status != 0
    assert "the change failed and is taken back: the service runs as it last passed" in failed.output, failed.output
    assert out(node, files) == before
    assert states(node) == ["active"] * 3
    asked = f"{BIN}/pd-verify --config {CONFIG}/verify.json --json"
    assert json.loads(out(node, asked))["ok"] is True, "the router of before takes its key"

    good = provisioned(node, router_api_key_env="PD_TEST_KEY")
    assert node.run("ls /etc/sglang-pd/api-key.env").returncode != 0
    assert good.output.index("Services | Running: router") < good.output.index("api-key.env: an earlier run left it")
    provisioned(node)


def test_a_host_of_an_earlier_commit_converges(taken_over: Node) -> None:
    node = taken_over
    assert states(node) == ["active"] * 3, "it serves, as that commit left it"
    assert out(node, "stat -c %U /run/sglang-pd/decode") == "sglang", "marks were the service user's then"
    kept = out(node, KEPT)

    first = provisioned(node)

    assert "refused" not in first.output and "foreign" not in first.output
    assert "ends and goes" not in first.output, "no unit of that commit is left over"
    assert out(node, KEPT) == kept
    assert states(node) == ["active"] * 3
    assert answer(node, "Repeat: xyz123") == "xyz123"
    assert out(node, "stat -c %U /run/sglang-pd/decode /run/sglang-pd/decode/fingerprint.json").split() == ["root"] * 2
    second = deploy(node, "-y")
    assert second.status == 0, second.output
    assert second.changed == [], "and it has converged"


def test_what_is_recorded_of_the_start_is_what_runs(taken_over: Node) -> None:
    left = json.loads(out(taken_over, "cat /run/sglang-pd/decode/fingerprint.json"))
    invocation = out(taken_over, "systemctl show -p InvocationID --value sglang-pd-decode.service")
    assert left["invocation"] == invocation


def test_a_checkout_without_that_commit_says_what_to_do() -> None:
    with pytest.raises(
        earlier.NoSuchCommit, match=r"has no commit 0{40}.*git fetch --unshallow.*or unpack that commit"
    ):
        earlier.source("0" * 40)
