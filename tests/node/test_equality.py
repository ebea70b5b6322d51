"""Prefill and decode apart give the answers of one server alone, on the same host in the same run."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.node.asking import answer, out
from tests.node.found import PROXIES
from tests.node.node import Node
from tests.node.waiting import until

SINGLE_PORT = 31000
UNIT = "single-server"
TRANSFERS = {  # port and counter of each worker that grows by one for every answer whose KV cache moved
    "prefill": (30000, "sglang:kv_transfer_latency_ms_count"),
    "decode": (30001, "sglang:num_requests_total"),
}


def prompts() -> list[str]:
    """24 prompts of 5 to about 700 tokens; the tokenizer works on bytes."""
    words = random.Random(7)
    lengths = [
        5,
        8,
        12,
        16,
        24,
        32,
        48,
        64,
        80,
        96,
        112,
        128,
        160,
        192,
        224,
        256,
        320,
        384,
        448,
        512,
        560,
        600,
        650,
        700,
    ]
    return ["Repeat: " + "".join(words.choice("abcdefghij 0123456789") for _ in range(length)) for length in lengths]


@pytest.fixture(scope="module")
def single(served: Node) -> Iterator[Node]:
    """The same model, arguments and environment in one server without PD."""
    script = out(served, "cat /etc/sglang-pd/prefill.sh")
    lines = [
        line
        for line in script.splitlines()
        if not re.match(r"\s+--(disaggregation|dist-init-addr|enable-metrics)", line)
    ]
    text = re.sub(r"--port \d+", f"--port {SINGLE_PORT}", "\n".join(lines)) + "\n"
    served.run("cat >/run/single.sh && chmod 755 /run/single.sh", text=text)
    own = f"-p User=sglang -p Environment=HOME=/var/lib/sglang-pd -p UnsetEnvironment={shlex.quote(PROXIES)}"
    out(served, f"systemd-run -q --unit {UNIT} {own} /run/single.sh")
    try:
        health = (
            f"python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{SINGLE_PORT}/health\", timeout=5)'"
        )
        until(lambda: served.run(health).returncode == 0, "the single server is ready", 300)
        yield served
    finally:
        served.run(f"systemctl stop {UNIT}")


def counters(node: Node) -> dict[str, float]:
    found = {}
    for role, (port, name) in TRANSFERS.items():
        text = out(
            node,
            f"python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:{port}/metrics\").read().decode())'",
        )
        found[role] = sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))
    return found


def test_answers_are_those_of_a_single_server(single: Node) -> None:
    asked = prompts()
    before = counters(single)
    apart = [answer(single, prompt) for prompt in asked]
    streamed = [answer(single, prompt, stream=True) for prompt in asked]
    grown = len(apart) + len(streamed)
    until(
        lambda: (
            {role: value - before[role] for role, value in counters(single).items()}
            == {"prefill": grown, "decode": grown}
        ),
        f"both workers count {grown} transfers",
        30,
    )
    together = [answer(single, prompt, port=SINGLE_PORT) for prompt in asked]
    assert apart == together
    assert streamed == together
    assert len(set(together)) > len(asked) // 2, "answers that hardly depend on the prompt would prove nothing"
