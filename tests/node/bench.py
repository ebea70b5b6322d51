"""python -m tests.node.bench: seconds and remote commands on a simulated host. Printed as a table and as JSON.

1. bare to verified, and where the seconds go, phase by phase
2. a run with nothing to change: seconds and commands on the host
3. from the start of the services to verified, by the playbook and by hand in one go, in turn; the ratio is what counts
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict

from tests.node.deploying import command_line, environment
from tests.node.node import REPOSITORY, Node

NAME = "bench"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
OPERATION = re.compile(r"Starting operation: ([A-Za-z]+)(?: \||:)")

# The three processes as a careful engineer would start them by hand: both workers at once, each polled, the router
# as soon as both are ready, then one right answer. Same scripts, same environment, same user; no units, no gates.
BY_HAND = r"""
set -eu
run() { systemd-run -q --unit "$1" -p User=sglang -p LimitMEMLOCK=infinity -p Environment=HOME=/var/lib/sglang-pd "/etc/sglang-pd/$2.sh"; }
run hand-prefill prefill; run hand-decode decode
python3 - <<'P'
import time, urllib.request
def good(url):
    try:
        return urllib.request.urlopen(url, timeout=2).status == 200
    except OSError:
        return False
for url in ("http://127.0.0.1:30000/health", "http://127.0.0.1:30001/health"):
    while not good(url):
        time.sleep(0.2)
P
run hand-router router
python3 - <<'P'
import time, urllib.request
while True:
    try:
        if urllib.request.urlopen("http://127.0.0.1:8000/readiness", timeout=2).status == 200:
            break
    except OSError:
        pass
    time.sleep(0.2)
P
/opt/sglang-pd/bin/pd-verify --config /etc/sglang-pd/verify.json >/dev/null
"""
STOP_BY_HAND = (
    "systemctl stop hand-router hand-prefill hand-decode 2>/dev/null; systemctl reset-failed 'hand-*' 2>/dev/null; true"
)
STOP = "systemctl stop sglang-pd-router sglang-pd-prefill sglang-pd-decode; rm -f /run/sglang-pd/proof.json"


def timed_run(node: Node, *arguments: str) -> tuple[float, dict[str, float], int]:
    """Seconds of a whole run, seconds by phase, and commands on the host (with --debug only)."""
    started = time.monotonic()
    process = subprocess.Popen(
        command_line("-y", *arguments), cwd=REPOSITORY, env=environment(node), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    phases: dict[str, float] = defaultdict(float)
    commands, phase, since, said = 0, "Preflight", started, []
    for line in process.stderr:
        said.append(line)
        commands += "Running command on" in line
        if found := OPERATION.search(line):
            now = time.monotonic()
            phases[phase] += now - since
            phase, since = found[1], now
    phases[phase] += time.monotonic() - since
    if process.wait():
        sys.exit("the deploy failed:\n" + "".join(said[-20:]))
    return time.monotonic() - started, dict(phases), commands


def seconds_of(node: Node, command: str) -> float:
    started = time.monotonic()
    ran = node.run(command)
    if ran.returncode:
        sys.exit(f"on the node: {ran.stderr}")
    return time.monotonic() - started


def main() -> int:
    node = Node(NAME)
    node.down()
    result: dict[str, object] = {}
    try:
        node.up()
        seconds, first, _ = timed_run(node)
        result["bare_to_verified_s"] = {"all": seconds, **first}
        idle = [timed_run(node)[0] for _ in range(ROUNDS)]
        result["nothing_to_change_s"] = idle
        result["nothing_to_change_commands"] = timed_run(node, "--debug")[2]
        pairs = []
        for _ in range(ROUNDS):
            node.run(STOP)
            _, phases, _ = timed_run(node)
            ours = phases["Services"] + phases["Verify"]
            node.run(STOP)
            hand = seconds_of(node, BY_HAND)
            node.run(STOP_BY_HAND)
            pairs.append({"playbook_s": ours, "by_hand_s": hand, "ratio": ours / hand})
        result["services_to_verified"] = pairs
    finally:
        node.down()
    print(json.dumps(result, indent=2))
    print(f"bare to verified: {seconds:.0f} s")
    for phase, part in sorted(first.items(), key=lambda item: -item[1]):
        print(f"  {phase}: {part:.0f} s")
    print(
        f"nothing to change: {statistics.median(idle):.1f} s (median of {ROUNDS}), "
        f"{result['nothing_to_change_commands']} commands on the host"
    )
    ratios = [pair["ratio"] for pair in pairs]
    print(f"services to verified, playbook against by hand: ratio {statistics.median(ratios):.2f} (median of {ROUNDS})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
