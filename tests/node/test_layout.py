"""From prefill + decode to one whole server and back, on one host: what is not needed goes, answers stay the same."""

from __future__ import annotations

import pytest

from tests.node.asking import CONFIG, UNITS, answer, answers, out, states
from tests.node.deploying import deploy
from tests.node.node import Node

SERVER, WATCHDOG = "sglang-pd-server.service", "sglang-pd-watchdog.service"
PROMPTS = ["Repeat: layouts", "What is 17*23? Answer with the number only.", "Repeat: " + "abc 123 " * 40]


def unit_files(node: Node) -> list[str]:
    return out(node, "cd /etc/systemd/system && ls sglang-pd-*.service").split()


@pytest.fixture(scope="module")
def pair(served: Node) -> Node:
    assert deploy(served, "-y").status == 0
    return served


def test_to_one_server_and_back_with_the_same_answers(pair: Node) -> None:
    apart = [answer(pair, prompt) for prompt in PROMPTS]
    assert len(set(apart)) == len(PROMPTS)

    planned = deploy(pair, "--dry", layout="single").planned
    assert planned.index("Services | Units that no instance needs") < planned.index("Services | Running: server")
    assert planned.index("Services | Running: server") < planned.index("Services | Running: router")
    assert states(pair) == ["active"] * 3, "a dry run touches nothing"

    single = deploy(pair, "-y", layout="single")
    assert single.status == 0, single.output
    assert "sglang-pd-decode.service: ends and goes" in single.output
    assert unit_files(pair) == ["sglang-pd-router.service", SERVER, WATCHDOG]
    assert states(pair) == ["inactive", "inactive", "active"]
    assert pair.run(f"ls {CONFIG}/prefill.sh {CONFIG}/decode.env").returncode != 0
    assert "--disaggregation" not in out(pair, f"cat {CONFIG}/server.sh")
    assert answers(pair), "the questions are answered through the router, on the port of before"
    assert [answer(pair, prompt) for prompt in PROMPTS] == apart
    assert deploy(pair, "--dry", layout="single").planned == []

    back = deploy(pair, "-y")
    assert back.status == 0, back.output
    assert "Topology | Peer copies, all_reduce and KV path proved" not in back.changed, "the proof of before holds"
    assert unit_files(pair) == sorted([*UNITS, WATCHDOG])
    assert [answer(pair, prompt) for prompt in PROMPTS] == apart
