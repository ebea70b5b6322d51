"""Hosts that serve together, of which one fails while the others are deployed to; several routers; IPv6 between them.

It takes minutes, and a machine without other load: make test-fleet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.node import network
from tests.node.asking import CONFIG, answer, answers, out
from tests.node.deploying import Result, built_once, deploy, provisioned
from tests.node.node import Node
from tests.node.single import counters, grown, unwatched
from tests.node.steady import steady
from tests.node.together import Service
from tests.node.waiting import until

WORKERS = f"{CONFIG}/workers.json"
DECODE = "sglang-pd-decode.service"
QUESTION = "What is 17*23? Answer with the number only."
LIMIT = 300.0  # seconds
SYSCTL = "/etc/sysctl.d"
ROLES = (("prefill", "router"), ("decode", "router"), ("decode",))
pytestmark = pytest.mark.skipif("FLEET" not in os.environ, reason="takes minutes: make test-fleet")


def service(name: str, *roles: tuple[str, ...]) -> Service:
    nodes = tuple(Node(f"{name}-{os.getpid()}-{number}") for number, _ in enumerate(roles, 1))
    return Service(nodes, {node.name: played for node, played in zip(nodes, roles, strict=True)})


@pytest.fixture(scope="module")
def built() -> Iterator[str]:
    with built_once() as disk:
        yield disk


@pytest.fixture(scope="module")
def fleet(built: str) -> Iterator[Service]:
    """Two routers: on the host of prefill and on that of a decode server; another decode server for itself."""
    made = service("members", *ROLES)
    try:
        for node in made.nodes:
            node.up(built)
        provisioned(made)
        yield made
    finally:
        for node in made.nodes:
            node.down()


def listed(node: Node) -> list[str]:
    return [worker["url"] for worker in json.loads(out(node, f"cat {WORKERS}"))["workers"]]


def back(node: Node) -> None:
    """A decode host that lost its sshd: it boots, and serves again."""
    node.power_cut()
    until(lambda: node.run(f"systemctl is-active -q {DECODE}").returncode == 0, "decode is back", LIMIT)


def went_on_without(result: Result, node: Node) -> str:
    """What the end of the run says of a host that was left out."""
    assert result.status != 0 and "Traceback" not in result.output, result.output
    assert f"service 'main' goes on without {node.name}" in result.output
    end = result.output[result.output.index("2 of 3 hosts are done") :]
    assert f"not done: {node.name} (" in end
    return end


def test_every_server_answers_through_each_router(fleet: Service) -> None:
    """As pd-verify does it, and as the servers count it."""
    assert len(fleet.of("router")) == 2
    for router in fleet.of("router"):
        assert len(listed(router)) == 3
        assert answers(router)
        with unwatched(*fleet.nodes):
            before = counters(router)
            for number in range(24):
                answer(router, f"Repeat: {chr(97 + number)} {number * 7919}", tokens=4)
            counted = grown(before, counters(router))
        assert all(count for of_role in counted.values() for count in of_role.values()), counted
    again = deploy(fleet, "-y")
    assert (again.status, again.changed) == (0, []), again.output


def test_servers_are_out_of_the_list_of_every_router_while_they_restart(fleet: Service) -> None:
    """One request through each router at any time: none meets a server that restarts."""
    one, other = fleet.of("router")
    changed = provisioned(fleet, decode_mem_fraction=0.61)
    assert "was away for" in changed.output
    for router in (one, other):
        assert len(listed(router)) == 3
        assert answer(router, QUESTION) == "391"
    provisioned(fleet)


def test_a_host_that_cannot_be_reached_is_left_out_and_keeps_its_requests(fleet: Service) -> None:
    """Its servers tell that they serve the same: no reason to take them from people."""
    lost = fleet.nodes[-1]
    out(lost, "systemctl stop ssh.socket ssh.service || systemctl stop ssh.service")
    try:
        ran = deploy(fleet, "-y", router_breaker_seconds=6)
        end = went_on_without(ran, lost)
        assert "was not reached" in end
        assert all(len(listed(router)) == 3 for router in fleet.of("router"))
    finally:
        back(lost)


def test_the_servers_of_a_host_that_is_gone_leave_the_lists_until_it_is_back(fleet: Service) -> None:
    lost = fleet.nodes[-1]
    out(lost, f"systemctl stop {DECODE}; systemctl stop ssh.socket ssh.service || systemctl stop ssh.service")
    try:
        went_on_without(deploy(fleet, "-y"), lost)
        for router in fleet.of("router"):
            assert len(listed(router)) == 2
            assert answers(router)
    finally:
        lost.power_cut()
    back = deploy(
        fleet, "-y", "--limit", lost.name, *(word for r in fleet.of("router") for word in ("--limit", r.name))
    )
    assert back.status == 0, back.output
    assert all(len(listed(router)) == 3 for router in fleet.of("router"))


def test_a_host_that_is_refused_is_left_out_and_named(fleet: Service) -> None:
    lost = fleet.nodes[-1]
    lost.hardware("driver-mismatch")
    try:
        end = went_on_without(deploy(fleet, "-y"), lost)
        assert "was refused" in end
        assert lost.run(f"systemctl is-active -q {DECODE}").returncode == 0
        assert all(len(listed(router)) == 3 for router in fleet.of("router"))
    finally:
        lost.hardware("rtx-pro-6000-x8")


def test_a_host_that_breaks_in_the_middle_is_left_out_and_serves_on(fleet: Service) -> None:
    lost = fleet.nodes[-1]
    pid = out(lost, f"systemctl show -p MainPID --value {DECODE}")
    out(lost, f"sed -i '1i # changed by hand' {SYSCTL}/*sglang* && mount --bind {SYSCTL} {SYSCTL}")
    out(lost, f"mount -o remount,ro,bind {SYSCTL}")
    try:
        ran = deploy(fleet, "-y", decode_mem_fraction=0.62)
        end = went_on_without(ran, lost)
        assert "failed at 'System | " in ran.output and "(failed)" in end
        assert out(lost, f"systemctl show -p MainPID --value {DECODE}") == pid
        assert "0.62" in out(fleet.nodes[1], "cat /etc/sglang-pd/decode.sh")
        assert all(len(listed(router)) == 3 for router in fleet.of("router")), "it serves the same KV"
    finally:
        out(lost, f"umount {SYSCTL}")
    provisioned(fleet)


def test_a_service_that_would_have_too_few_is_not_touched(fleet: Service) -> None:
    only = fleet.of("prefill")[0]
    before = [out(node, f"cat {CONFIG}/*.sh") for node in fleet.nodes]
    only.hardware("driver-mismatch")
    try:
        ran = deploy(fleet, "-y", decode_mem_fraction=0.63)
        assert ran.status != 0
        assert f"service 'main' needs 1 prefill (setting minimum_prefill); without {only.name} it has 0" in ran.output
        assert [out(node, f"cat {CONFIG}/*.sh") for node in fleet.nodes] == before
    finally:
        only.hardware("rtx-pro-6000-x8")


def test_a_limit_that_would_mix_what_is_served_is_refused(fleet: Service) -> None:
    lost = fleet.nodes[-1]
    words = [word for node in fleet.nodes[:2] for word in ("--limit", node.name)]
    ran = deploy(fleet, "-y", *words, context_length=512)
    assert ran.status != 0 and "Traceback" not in ran.output
    assert (
        f"--limit leaves out {lost.name}, and its decode serves another thing: context 1024, wanted is 512"
        in ran.output
    )
    dry = deploy(fleet, "--dry", *words)
    assert dry.status == 0 and "serves another thing" not in dry.output


def test_one_router_that_is_down_leaves_the_other_alone(fleet: Service) -> None:
    one, other = fleet.of("router")
    out(one, "systemctl stop sglang-pd-router.service")
    try:
        assert answer(other, QUESTION) == "391"
        ran = deploy(fleet, "-y")
        assert ran.status == 0, ran.output
    finally:
        out(one, "systemctl start sglang-pd-router.service")
    assert all(answers(router) for router in (one, other))


def test_two_hosts_serve_together_over_ipv6(monkeypatch: pytest.MonkeyPatch, built: str) -> None:
    made = service("ipv6", ("prefill", "router"), ("decode",))
    monkeypatch.setenv("WIRED", "1")
    try:
        for node in made.nodes:
            node.up(built)
        network.wire(*(node.network for node in made.nodes))
        provisioned(made)
        prefill, decode = made.nodes
        assert listed(prefill) == [
            f"http://[{prefill.network.address6}]:30000",
            f"http://[{decode.network.address6}]:30001",
        ]
        assert answer(prefill, QUESTION) == "391"
        peers = [line.split() for line in out(prefill, "ss -Htn state established | awk '{print $3, $4}'").splitlines()]
        crossing = [peer for _, peer in peers if peer.startswith(f"[{decode.network.address6}]:")]
        assert len(crossing) >= 2, "requests, and KV"
        assert not any(decode.address in peer for _, peer in peers)
        again = deploy(made, "-y")
        assert (again.status, again.changed) == (0, []), again.output
    finally:
        for node in made.nodes:
            node.down()


@pytest.fixture(scope="module")
def whole(built: str) -> Iterator[Service]:
    """A whole server on each of two hosts, the router on the first."""
    made = service("whole", ("server", "router"), ("server",))
    try:
        for node in made.nodes:
            node.up(built)
        provisioned(made, layout="single")
        yield made
    finally:
        for node in made.nodes:
            node.down()


def test_whole_servers_of_two_hosts_answer_behind_one_router(whole: Service) -> None:
    assert len(listed(whole.router)) == 2
    again = deploy(whole, "-y", layout="single")
    assert (again.status, again.changed) == (0, []), again.output
    assert answer(whole.router, QUESTION) == "391"


def test_whole_servers_restart_one_after_the_other_with_people_on_them(whole: Service) -> None:
    with steady(whole.router, rate=1) as client:
        client.answers_more()
        provisioned(whole, layout="single", server_mem_fraction=0.61)
        client.answers_more()
    assert not client.failed
    for node in whole.nodes:
        assert "--mem-fraction-static 0.61" in out(node, f"tr '\\n' ' ' <{CONFIG}/server.sh")
