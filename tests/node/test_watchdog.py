"""The watchdog: what hangs is restarted, what is only busy, stopped or being changed is left alone.

The faults take minutes: make test-faults. One and the same setting is in force for all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.node import hanging
from tests.node.asking import CONFIG, UNITS, answers, out, pids, states
from tests.node.deploying import deploy
from tests.node.node import Node
from tests.node.waiting import until

WATCHDOG = "sglang-pd-watchdog.service"
LIMIT = 300.0  # seconds until it must be mended, on a machine that does other things meanwhile
SETTING = {"watchdog_limit": 30, "watchdog_interval": 5, "watchdog_restarts": 4}
LOAD_S = int(os.environ.get("LOAD_S", "600"))
PREFILL, DECODE, ROUTER = UNITS
long = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make test-faults")

# Many clients without end, each with its next request as soon as it has an answer: more than the router takes at once.
LOAD = """
import json, sys, threading, time, urllib.error, urllib.request
until, counts, lock = time.monotonic() + float(sys.argv[1]), {}, threading.Lock()
def client(number):
    while time.monotonic() < until:
        body = {"model": "rehearsal", "prompt": f"word {number} " * 60, "max_tokens": 400, "ignore_eos": True}
        request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=600).read()
            said = "200"
        except urllib.error.HTTPError as error:
            said = str(error.code)
            time.sleep(1)
        except Exception as error:
            said = type(error).__name__
        with lock:
            counts[said] = counts.get(said, 0) + 1
clients = [threading.Thread(target=client, args=(number,)) for number in range(int(sys.argv[2]))]
[one.start() for one in clients]
[one.join() for one in clients]
print(json.dumps(counts))
"""


def status(node: Node) -> str:
    return out(node, f"systemctl show -p StatusText --value {WATCHDOG}")


def invocations(node: Node) -> dict[str, str]:
    return {unit: out(node, f"systemctl show -p InvocationID --value {unit}") for unit in UNITS}


def said(node: Node) -> list[str]:
    """Every line of the watchdog so far."""
    return out(node, f"journalctl -u {WATCHDOG} -o cat --no-pager").splitlines()


def test_it_asks_as_another_user_and_root_waits_for_a_line(served: Node) -> None:
    assert out(served, f"systemctl is-active {WATCHDOG}") == "active"
    until(lambda: status(served) == "all is well", "it asks", 60)
    asking = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f | grep -q 'pd-watchdog ask$\\|pd-watchdog ask $' && "
    asking += "stat -c %U ${f%/cmdline}; done 2>/dev/null; true"
    until(lambda: out(served, asking) == "sglang", "a child of it asks, as the service user", 60)
    counter = "sglang:num_requests_total"
    count = f"python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:30001/metrics').read().decode())\" | grep '^{counter}' || true"
    before = out(served, count)
    until(lambda: out(served, count) != before, "its question goes through decode", 60)


def test_nobody_is_asked_while_verify_counts_answers(served: Node) -> None:
    """Whoever holds its lock is alone: pd-verify compares counters with the number of its own questions."""
    assert out(served, "stat -c '%a %U' /run/sglang-pd-watchdog /run/sglang-pd-watchdog/round").splitlines() == [
        "700 root",
        "600 root",
    ]
    assert answers(served)


# ---- faults, under one setting


@pytest.fixture(scope="module")
def watched(served: Node) -> Iterator[Node]:
    assert deploy(served, "-y", **SETTING).status == 0
    yield served
    after = deploy(served, "-y")
    assert after.status == 0, after.output


@pytest.fixture
def fresh(watched: Node) -> Node:
    """It serves, and no restart of before counts any more."""
    out(watched, f"systemctl reset-failed; systemctl restart {WATCHDOG}")
    until(lambda: states(watched) == ["active"] * 3 and answers(watched), "it serves", LIMIT)
    until(lambda: status(watched) == "all is well", "it asks", 60)
    return watched


FAULTS = {
    "decode's scheduler is frozen": (hanging.frozen("decode", "scheduler"), {DECODE, PREFILL}),
    "prefill's scheduler is frozen": (hanging.frozen("prefill", "scheduler"), {PREFILL}),
    "the router is frozen": (hanging.frozen("router"), {ROUTER}),
    "prefill's registration is lost": (hanging.registration_lost(), {PREFILL, DECODE}),
}


@long
@pytest.mark.parametrize("fault", FAULTS)
def test_what_hangs_is_restarted_and_said(fresh: Node, fault: str) -> None:
    command, restarted = FAULTS[fault]
    before, lines = invocations(fresh), len(said(fresh))
    out(fresh, command)
    until(lambda: any("restarts" in line for line in said(fresh)[lines:]), "it restarts something", LIMIT)
    until(lambda: states(fresh) == ["active"] * 3 and answers(fresh), "it answers again", LIMIT)
    after = invocations(fresh)
    assert {unit for unit in UNITS if after[unit] != before[unit]} == restarted, said(fresh)[lines:]
    (why,) = [line for line in said(fresh)[lines:] if "restarts" in line]
    print(why)
    assert " for " in why


@long
def test_a_load_with_queues_is_no_fault(fresh: Node) -> None:
    """Answers take longer than the limit, since most of the time goes into waiting."""
    running, lines = pids(fresh), len(said(fresh))
    loaded = fresh.run(f"python3 - {LOAD_S} 96", text=LOAD, timeout=LOAD_S + 900)
    assert loaded.returncode == 0, loaded.stderr
    counts = json.loads(loaded.stdout)
    print(counts)
    assert counts.get("200", 0) > 96
    assert [line for line in said(fresh)[lines:] if line.startswith("pd-watchdog")] == []
    assert pids(fresh) == running


@long
def test_what_an_operator_stopped_stays_stopped(fresh: Node) -> None:
    out(fresh, f"systemctl stop {ROUTER}")
    until(lambda: f"{ROUTER} is inactive, so each part is watched for itself" in status(fresh), "it sees that", 60)
    assert out(fresh, f"systemctl show -p ActiveState --value {ROUTER}") == "inactive"
    out(fresh, f"systemctl start {ROUTER}")
    until(lambda: status(fresh) == "all is well", "it goes on", LIMIT)


@long
def test_after_its_restarts_it_says_that_it_gives_up(watched: Node) -> None:
    """A router that hangs as soon as it runs."""
    assert deploy(watched, "-y", **{**SETTING, "watchdog_restarts": 1}).status == 0
    until(lambda: status(watched) == "all is well", "it asks", 60)
    for _ in range(2):
        until(lambda: states(watched) == ["active"] * 3 and status(watched) == "all is well", "it serves", LIMIT)
        out(watched, hanging.frozen("router"))
        until(lambda: states(watched) != ["active"] * 3 or "gave up" in status(watched), "it acts", LIMIT)
    assert any("gives up" in line for line in said(watched))
    out(watched, f"systemctl kill -s KILL {ROUTER}")
    until(lambda: answers(watched), "systemd starts what has died", LIMIT)


@long
def test_turned_off_it_goes(watched: Node) -> None:
    off = deploy(watched, "-y", watchdog=False)
    assert off.status == 0, off.output
    assert watched.run(f"ls /etc/systemd/system/{WATCHDOG} {CONFIG}/watchdog.json").stdout == ""
    assert watched.run(f"systemctl is-active {WATCHDOG}").returncode != 0
    assert deploy(watched, "--dry", watchdog=False).planned == []
    assert states(watched) == ["active"] * 3
