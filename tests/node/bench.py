"""python -m tests.node.bench [service|install]: figures of a simulated host, printed as JSON and in words.

service
1. bare to verified, and where the seconds go, phase by phase
2. a run with nothing to change: seconds and commands on the host
3. from the start of the services to verified, by the playbook and by hand in one go, in turn; the ratio is what counts
install
4. the runtime phase, by the playbook and by `uv pip sync` of the same locks from the same wheels, in turn, cold and warm
5. what two releases take on the disk that share most of their wheels
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict

from tests.node import wheels
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
STOP = "systemctl stop sglang-pd-router sglang-pd-prefill sglang-pd-decode; rm -f /run/sglang-pd/answered.json"


# Both environments of a release as somebody would install them who knows uv: same wheels, same locks, own cache.
SYNC_BY_HAND = """
set -eu
cd /opt/sglang-pd; rm -rf hand; uv="tools/uv/bin/uv --quiet --cache-dir $PWD/cache/hand"
for lock in locks/{release}.txt locks/{release}-router.txt; do
  place=hand/$(basename $lock .txt)
  $uv venv --python {python} $place
  $uv pip sync --no-index --find-links {wheels} --require-hashes --python $place/bin/python $lock
done
"""
WHEELS = "/srv/wheels"
BUILD = "tests/node/build.py"


def timed_run(
    node: Node, *arguments: str, operations: str = "deploy.py", **data: object
) -> tuple[float, dict[str, float], int]:
    """Seconds of a whole run, seconds by phase, and commands on the host (with --debug only)."""
    started = time.monotonic()
    process = subprocess.Popen(
        command_line("-y", *arguments, operations=operations, **data), cwd=REPOSITORY, env=environment(node), stdin=subprocess.DEVNULL,
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


def install(node: Node) -> None:
    """Prints how long the runtime phase takes beside uv alone, and what two releases take on the disk."""
    wheels.copy(node, wheels.of(node, "sglang-router", "smg"), WHEELS)
    timed_run(node, operations="tests/node/install.py", package_wheelhouse=WHEELS)
    release = node.run("basename $(readlink /opt/sglang-pd/current)").stdout.strip()
    python = release.split("-py")[1].split("-")[0]
    by_hand = SYNC_BY_HAND.format(release=release, python=python, wheels=WHEELS)
    gone = f"rm -rf /opt/sglang-pd/releases/{release}"
    seconds_of(node, by_hand)  # so that neither is the first to read the wheels
    rounds = []
    for _ in range(ROUNDS):
        each: dict[str, float] = {}
        for state, empty in (("cold", "rm -rf /opt/sglang-pd/cache/*"), ("warm", "true")):
            node.run(f"{gone} /opt/sglang-pd/hand; {empty}; sync")
            each[f"{state}_by_hand_s"] = seconds_of(node, by_hand)
            node.run(f"{gone} /opt/sglang-pd/hand; sync")
            _, phases, _ = timed_run(node, operations=BUILD, package_wheelhouse=WHEELS)
            each[f"{state}_playbook_s"] = phases["Runtime"]
        rounds.append(each)
    timed_run(node, operations=BUILD, package_wheelhouse=WHEELS, router="smg")
    used = [int(line.split()[0]) for line in node.run("du -sk /opt/sglang-pd/releases/sglang-*").stdout.splitlines()]
    result = {"install": rounds, "two_releases_kib": {"first": used[0], "second_more": used[1]}}
    print(json.dumps(result, indent=2))
    for state in ("cold", "warm"):
        ours, hand = (statistics.median(each[f"{state}_{who}_s"] for each in rounds) for who in ("playbook", "by_hand"))
        ratio = statistics.median(each[f"{state}_playbook_s"] / each[f"{state}_by_hand_s"] for each in rounds)
        print(
            f"runtime phase, {state} cache: {ours:.1f} s, uv by hand {hand:.1f} s, ratio {ratio:.2f} ({ROUNDS} rounds)"
        )
    print(f"first release {used[0] / 1024:.0f} MiB, a second with another router {used[1] / 1024:.0f} MiB more")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.node.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="?", choices=["service", "install"], help="default: both")
    part = parser.parse_args().part
    node = Node(NAME)
    node.down()
    try:
        node.up()
        if part != "install":
            service(node)
        if part != "service":
            install(node)
    finally:
        node.down()
    return 0


def service(node: Node) -> None:
    """Prints how long a deploy takes, with and without changes, and a start beside one by hand."""
    result: dict[str, object] = {}
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


if __name__ == "__main__":
    sys.exit(main())
