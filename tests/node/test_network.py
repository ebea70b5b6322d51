"""Who can reach what the servers open, seen from the host and from its network, and what clients cannot ask for."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import socket
from collections.abc import Iterator

import pytest

from tests.node.asking import UNITS, answer, out
from tests.node.deploying import deploy
from tests.node.found import PROXIES
from tests.node.node import Node
from tests.node.waiting import until

STORES = {30335: "prefill", 30435: "decode"}  # torch.distributed's: on every address, whatever it is told
NO_ANSWER = 2.0  # seconds; what a filter drops gets none


def listeners(node: Node) -> set[tuple[str, str, int]]:
    """Unit, address and port of each socket that any process of our units listens on."""
    units = {
        pid: unit for unit in UNITS for pid in out(node, f"cat /sys/fs/cgroup/system.slice/{unit}/cgroup.procs").split()
    }
    found = set()
    for line in out(node, "ss -Hltunp").splitlines():
        local = line.split()[4].replace("*:", "[::]:")
        address, _, port = local.rpartition(":")
        for pid in re.findall(r"pid=([0-9]+)", line):
            if pid in units:
                found.add((units[pid], address.strip("[]").partition("%")[0], int(port)))
    return found


def is_reached(node: Node, port: int) -> bool:
    """Whether this machine, another host for the node, gets a connection."""
    try:
        socket.create_connection((node.address, port), timeout=NO_ANSWER).close()
    except OSError:
        return False
    return True


def test_every_socket_of_every_process_is_on_loopback_but_for_the_stores(served: Node) -> None:
    found = listeners(served)
    assert {unit for unit, _, _ in found} == set(UNITS)
    assert len(found) > 20, "NIXL and gloo alone open as many"
    wide = {(unit, port) for unit, address, port in found if not ipaddress.ip_address(address).is_loopback}
    assert wide == {(f"sglang-pd-{name}.service", port) for port, name in STORES.items()}


def test_what_is_open_wider_is_closed_by_the_filter_and_reachable_without_it(served: Node) -> None:
    unit = UNITS[0]
    assert is_reached(served, 22)
    assert [port for port in STORES if is_reached(served, port)] == []
    out(served, "bash -c '</dev/tcp/127.0.0.1/30335'")
    out(served, f"systemctl set-property --runtime {unit} IPAddressDeny= IPAddressAllow=")
    try:
        assert [port for port in STORES if is_reached(served, port)] == [30335]
    finally:
        out(served, f"systemctl set-property --runtime {unit} IPAddressDeny=any IPAddressAllow=localhost")
        out(served, f"rm -r /run/systemd/system.control/{unit}.d && systemctl daemon-reload")
    assert not is_reached(served, 30335)


# as systemd does where it has no BPF: it takes the option, and nothing comes of it
IGNORES = """#!/bin/bash
for word; do [ "$word" = --property=IPAddressDeny=any ] || kept+=("$word"); done
exec /usr/bin/systemd-run "${kept[@]}"
"""


def test_a_host_that_ignores_filters_is_told_of_and_what_others_can_reach_there_ends_the_run(served: Node) -> None:
    out(served, "test -x /usr/bin/systemd-run && ! test -e /usr/local/bin/systemd-run")
    served.run("cat >/usr/local/bin/systemd-run && chmod 755 /usr/local/bin/systemd-run", text=IGNORES)
    try:
        result = deploy(served, "-y")
    finally:
        out(served, "rm /usr/local/bin/systemd-run")
    assert result.status != 0 and "Traceback" not in result.output
    assert "host/filter/enforced: not enforced: systemd ignores IPAddressDeny here" in result.output
    faults = [line for line in result.output.splitlines() if "listens on" in line and "[rehearsal]" in line]
    assert len(faults) == len(STORES), faults
    for port, name in STORES.items():
        (line,) = [line for line in faults if f"{name}: pid " in line]
        assert f"listens on every address, port {port}/tcp ({name}_dist_init_port); planned is 127.0.0.1" in line
        assert line.endswith("the address filter of its unit is not enforced on this host")
    assert deploy(served, "-y").changed == []


def test_a_process_of_a_unit_reaches_no_other_host(served: Node) -> None:
    """The very filters of the units, in units beside them."""
    gateway = str(served.network.gateway)
    for unit in UNITS:
        shown = out(served, f"systemctl show -p IPAddressDeny,IPAddressAllow {unit}").splitlines()
        words = " ".join(f"--property='{line}'" for line in shown)
        send = f"systemd-run -q --wait --pipe --collect {words} bash -c 'echo >/dev/udp/{{}}/9'"
        assert served.run(send.format("127.0.0.1")).returncode == 0
        assert "Operation not permitted" in served.run(send.format(gateway)).stderr
        assert "Operation not permitted" in served.run(send.format(served.address)).stderr


# ---- limits

FEW = "few-requests.service"  # a router with the planned options, its ports and one limit aside
BURST = """
import collections, json, sys, threading, urllib.error, urllib.request
said = collections.Counter()
def ask():
    request = urllib.request.Request("http://127.0.0.1:8011/v1/chat/completions", sys.argv[1].encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            said[answer.status] += 1
    except urllib.error.HTTPError as error:
        said[error.code] += 1
threads = [threading.Thread(target=ask) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(said))
"""


@pytest.fixture
def few(served: Node) -> Iterator[Node]:
    """A host with a second router, at port 8011, that answers two requests at once."""
    changed = "s/--max-concurrent-requests 1024/--max-concurrent-requests 2/; s/ 8000 / 8011 /; s/ 29001 / 29011 /"
    out(served, f"sed '{changed}' /etc/sglang-pd/router.sh >/run/few.sh")
    own = f"-p User=sglang -p UnsetEnvironment={shlex.quote(PROXIES)}"
    out(served, f"systemd-run -q --unit={FEW} {own} bash /run/few.sh")
    ready = (
        "bash -c 'exec 3<>/dev/tcp/127.0.0.1/8011 && printf \"GET /readiness HTTP/1.0\\r\\n\\r\\n\" >&3 && head -1 <&3'"
    )
    try:
        until(lambda: " 200 " in served.run(ready).stdout, "the second router is ready", 120)
        yield served
    finally:
        served.run(f"systemctl stop {FEW}; rm -f /run/few.sh")


def test_a_client_that_asks_for_too_much_at_once_gets_429_and_others_are_served_after_it(few: Node) -> None:
    body = json.dumps({"model": "rehearsal", "messages": [{"role": "user", "content": "Count"}], "max_tokens": 100,
                       "ignore_eos": True})  # fmt: skip
    ran = few.run(f"python3 - '{body}'", text=BURST)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said.keys() == {"200", "429"} and said["200"] >= 2, said
    assert "391" in answer(few, "What is 17*23? Answer with the number only.", port=8011)


HOSTILE = """
import http.client, socket
HEAD = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n"
unfinished = [socket.create_connection(("127.0.0.1", 8000)) for _ in range(200)]
for one in unfinished:
    one.sendall(HEAD % 100 + b"{")
large = socket.create_connection(("127.0.0.1", 8000), timeout=60)
large.sendall(HEAD % (16 * 1024 * 1024 + 1))
print(large.recv(12).decode().split()[1])
polite = http.client.HTTPConnection("127.0.0.1", 8000, timeout=60)
polite.request("POST", "/v1/completions", '{"model": "rehearsal", "prompt": "1, 2,", "max_tokens": 2}',
               {"Content-Type": "application/json"})
print(polite.getresponse().status)
"""


def test_a_request_that_is_too_large_is_refused_and_those_that_never_end_hold_up_nobody(served: Node) -> None:
    ran = served.run("python3 -", text=HOSTILE)
    assert ran.stdout.split() == ["413", "200"], ran.stderr
