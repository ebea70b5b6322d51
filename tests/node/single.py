"""One server alone beside a service on the same host: what the service's answers are compared with."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tasks.plan.service.paths import ROUND_LOCK
from tests.node.asking import CONFIG, out
from tests.node.found import PROXIES
from tests.node.node import Node
from tests.node.waiting import until

PORT = 31000
UNIT = "single-server"
READ = 'import urllib.request as u; print(u.urlopen("{url}", timeout=5).read().decode())'


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


@contextmanager
def single_server(node: Node) -> Iterator[int]:
    """Its port: the same model, arguments and environment as the host's prefill server has, without PD."""
    script = out(node, f"cat {CONFIG}/prefill.sh")
    lines = [
        line
        for line in script.splitlines()
        if not re.match(r"\s+--(disaggregation|dist-init-addr|enable-metrics)", line)
    ]
    text = re.sub(r"--port \d+", f"--port {PORT}", "\n".join(lines)) + "\n"
    text = re.sub(r"--host \S+", "--host 127.0.0.1", text)
    node.run("cat >/run/single.sh && chmod 755 /run/single.sh", text=text)
    own = f"-p User=sglang -p Environment=HOME=/var/lib/sglang-pd -p UnsetEnvironment={shlex.quote(PROXIES)}"
    out(node, f"systemd-run -q --unit {UNIT} {own} /run/single.sh")
    try:
        health = f"python3 -c '{READ.format(url=f'http://127.0.0.1:{PORT}/health')}'"
        until(lambda: node.run(health).returncode == 0, "the single server is ready", 300)
        yield PORT
    finally:
        node.run(f"systemctl stop {UNIT}")


@contextmanager
def unwatched(*nodes: Node) -> Iterator[None]:
    """No watchdog of these hosts asks anything meanwhile: servers would count its questions among a test's."""
    with ExitStack() as held:
        for node in nodes:
            held.enter_context(_unwatched(node))
        yield


@contextmanager
def _unwatched(node: Node) -> Iterator[None]:
    hold = f"flock {ROUND_LOCK} sh -c 'echo held; exec cat'"
    process = subprocess.Popen([*node.ssh_command(), hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    try:
        assert process.stdout.readline() == "held\n", f"the lock of the watchdog's rounds on {node.name} is not held"
        yield
    finally:
        process.stdin.close()
        process.wait()


def counters(node: Node) -> dict[str, dict[str, float]]:
    """Role -> worker's /metrics -> the counter there that grows by one for every answer whose KV cache moved.

    Asked on the node of the router, of every worker that the service has.
    """
    config = json.loads(out(node, f"cat {CONFIG}/verify.json"))
    return {
        role: {url: _counter(node, url, config["transfer_metrics"][role]) for url in urls}
        for role, urls in config["metrics"].items()
    }


def _counter(node: Node, url: str, name: str) -> float:
    text = out(node, f"python3 -c '{READ.format(url=url)}'")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def grown(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> dict[str, dict[str, int]]:
    """Role -> worker -> by how much its counter grew."""
    return {
        role: {url: int(value - before[role][url]) for url, value in workers.items()} for role, workers in after.items()
    }
