"""Several hosts that serve together: two of prefill, two of decode, and people on it while something happens.

It takes minutes, and a machine without other load: make test-fleet.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tasks.plan.service.paths import BOOT_ID, RESUME, UNITS
from tests.node import together, watching
from tests.node.asking import CONFIG, answer, out
from tests.node.deploying import (
    Result,
    broken_off,
    built_once,
    deploy,
    environment,
    plain_user,
    provisioned,
    without_plain_user,
)
from tests.node.node import REPOSITORY, Node
from tests.node.process import command
from tests.node.single import counters, grown, unwatched
from tests.node.steady import Steady, steady
from tests.node.test_take_back import FAILS
from tests.node.together import Service
from tests.node.waiting import until

HOSTS = int(os.environ.get("HOSTS", "4"))
LIMIT = 300.0  # seconds, on a machine that does other things meanwhile
FIGURES = 9469
WORKERS = f"{CONFIG}/workers.json"
ROUTER = "sglang-pd-router.service"
pytestmark = pytest.mark.skipif("FLEET" not in os.environ, reason="takes minutes: make test-fleet")
DECODE = "sglang-pd-decode.service"
CHANGED = {"prefill_mem_fraction": 0.55, "decode_mem_fraction": 0.55}  # of every server
QUESTION = "What is 17*23? Answer with the number only."


@dataclass(frozen=True)
class Grown:
    service: Service
    client: Steady  # what it saw while the last host joined


@pytest.fixture(scope="module")
def grown_fleet() -> Iterator[Grown]:
    """Hosts that serve together, the last of which joins while a client asks the others.

    The release is built once: all begin with the disk of the host that built it.
    """
    made = together.service(f"fleet-{os.getpid()}", HOSTS)
    with built_once() as kept, ExitStack() as after:
        for node in made.nodes:
            after.callback(node.down)
            node.up(kept)
        first = made if HOSTS == 2 else made.without(made.nodes[-1])
        provisioned(first)
        with steady(made.router) as client:
            client.answers_more()
            began = time.time()
            provisioned(made)
            client.answers_more()
        print(f"the last host joined in {time.time() - began:.0f} s: {client}")
        yield Grown(made, client)


@pytest.fixture
def fleet(grown_fleet: Grown) -> Service:
    return grown_fleet.service


def workers(fleet: Service) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = json.loads(out(fleet.router, f"cat {WORKERS}"))["workers"]
    return listed


def retried(fleet: Service) -> int:
    """Requests that the router sent once more, since it started."""
    text = out(
        fleet.router,
        "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:29001/metrics\").read().decode())'",
    )
    counted = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("smg_worker_retries_total"))
    return sum(int(float(count)) for name, count in counted if 'worker_type="decode"' in name)


def is_active(node: Node, unit: str) -> bool:
    return node.run(f"systemctl is-active -q {unit}").returncode == 0


def is_reached(node: Node, address: str, port: int) -> bool:
    return node.run(f"timeout 3 bash -c '</dev/tcp/{address}/{port}'").returncode == 0


def part(fleet: Service, name: str, node: Node, *arguments: str, **data: object) -> Result:
    """As make calls it."""
    return deploy(fleet, "-y", "--limit", node.name, *arguments, operations=f"tasks.{name}", **data)


def unchanged(fleet: Service, **data: object) -> None:
    again = deploy(fleet, "-y", **data)
    assert (again.status, again.changed) == (0, []), again.output


def processes(fleet: Service) -> dict[str, str]:
    """Host and unit -> pid, of every server and the router."""
    shown = "for unit in $(cd /etc/systemd/system && ls sglang-pd-{prefill,decode,router}.service 2>/dev/null); do "
    shown += 'echo "$unit $(systemctl show -p MainPID --value $unit)"; done'
    lines = {node: out(node, f"bash -c {shlex.quote(shown)}").splitlines() for node in fleet.nodes}
    return {f"{node.name} {line.split()[0]}": line.split()[1] for node, every in lines.items() for line in every}


@contextmanager
def as_plain_user(*nodes: Node) -> Iterator[tuple[str, ...]]:
    """pyinfra's arguments for somebody who uses sudo."""
    try:
        every = {plain_user(node) for node in nodes}
        yield every.pop()
    finally:
        for node in nodes:
            without_plain_user(node)


def is_settled(node: Node) -> bool:
    """Whether no way back is left to go."""
    return node.run(f"systemctl is-active -q {RESUME}").returncode != 0


def answers_alike(client: Steady) -> None:
    """Whichever servers answered: the same question has the same answer."""
    assert client.asked
    for prompt in {one.prompt for one in client.asked}:
        assert len(client.answers_of(prompt)) <= 1, client.answers_of(prompt)


def spread(fleet: Service) -> dict[str, dict[str, int]]:
    """What each worker counts while 24 different questions are asked one after the other."""
    with unwatched(*fleet.nodes):
        before = counters(fleet.router)
        for number in range(24):
            answer(fleet.router, f"Repeat: {chr(97 + number)} {number * 7919}", tokens=4)
        return grown(before, counters(fleet.router))


def test_one_prometheus_watches_every_host_and_one_that_joins_restarts_it_not(
    fleet: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = fleet.nodes
    monkeypatch.setenv("KEEPER", first.name)
    monkeypatch.setenv("WATCHED", first.name)
    provisioned(fleet)
    started = out(first, "systemctl show -p InvocationID prometheus")
    monkeypatch.setenv("WATCHED", ",".join(node.name for node in fleet.nodes))
    provisioned(fleet)
    assert out(first, "systemctl show -p InvocationID prometheus") == started
    watching.require_watched([first], absent=watching.PROVED)
    targets = watching.asked(first, "/api/v1/targets?state=active")["activeTargets"]
    assert {target["labels"]["host"] for target in targets} == {node.name for node in fleet.nodes}
    for node in others:
        assert is_reached(first, node.address, FIGURES) and not is_reached(node, first.address, FIGURES)
        assert "prometheus-alertmanager" not in out(node, "dpkg-query -W -f '${Package}\\n' 'prometheus*'")
        assert not any(is_reached(other, node.address, FIGURES) for other in others if other is not node)
    assert provisioned(fleet).changed == []


@pytest.mark.skipif(HOSTS < 3, reason="two hosts are there from the start")
def test_a_host_that_joins_disturbs_nobody(grown_fleet: Grown) -> None:
    assert grown_fleet.client.failed == [], str(grown_fleet.client)
    answers_alike(grown_fleet.client)


def test_every_worker_answers_and_a_second_run_changes_nothing(fleet: Service) -> None:
    assert len(workers(fleet)) == len(fleet.of("prefill")) + len(fleet.of("decode"))
    again = deploy(fleet, "-y")
    assert (again.status, again.changed) == (0, []), again.output
    counted = spread(fleet)
    assert [sum(of_role.values()) for of_role in counted.values()] == [24, 24], counted
    assert all(count for of_role in counted.values() for count in of_role.values()), counted


def drift(fleet: Service) -> tuple[int, list[str]]:
    """Exit status and lines of what `make drift SERVICE=main` prints."""
    ran = subprocess.run(
        [sys.executable, "-m", "tasks.support.drift", "--service", "main", "--inventory", fleet.inventory],
        cwd=REPOSITORY, env=environment(fleet), stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout, ran.stderr
    return ran.returncode, ran.stdout.splitlines()


def test_drift_of_a_service_names_the_host_that_differs(fleet: Service) -> None:
    script, hosts = f"{CONFIG}/decode.sh", len(fleet.nodes)
    same = [f"{node.name}: nothing differs" for node in fleet.nodes]
    assert drift(fleet) == (0, [*same, f"service main: nothing differs on its {hosts} hosts"])
    changed = fleet.of("decode")[0]
    out(changed, f"cp -a {script} {script}.as-wanted && echo '# by hand' >>{script}")
    try:
        status, said = drift(fleet)
    finally:
        out(changed, f"mv {script}.as-wanted {script}")
    print("\n".join(said))
    assert status == 2 and f"{changed.name}: 1 thing differs" in said
    assert said[-1] == f"service main: 1 of {hosts} hosts differ: {changed.name}"
    assert [line for line in said if line.endswith("nothing differs")] == [
        f"{node.name}: nothing differs" for node in fleet.nodes if node is not changed
    ]
    assert drift(fleet)[0] == 0


def test_a_service_has_a_page_of_all_its_hosts(fleet: Service) -> None:
    unchanged(fleet)
    page = REPOSITORY / "reports" / "main.service.html"
    data = json.loads(page.with_suffix(".json").read_text())
    assert {one["host"]: tuple(one["roles"]) for one in data["hosts"]} == fleet.roles
    assert [one["address"] for one in data["hosts"]] == [node.address for node in fleet.nodes]
    assert len({one["release"] for one in data["hosts"]}) == 1
    assert data["verdict"]["sentence"].endswith("the router answers right.")
    for node in fleet.nodes:
        assert f'href="{node.name}.html"' in page.read_text() and page.with_name(f"{node.name}.html").is_file()


def test_a_stranger_in_the_network_reaches_no_worker_and_the_others_do(fleet: Service) -> None:
    stranger, peer = Node(f"stranger-{os.getpid()}"), fleet.router
    try:
        stranger.up()
        for node in fleet.nodes[1:]:
            assert is_reached(stranger, node.address, 22), "it could reach the host at all"
            ports = [int(line.split(":")[-1]) for line in out(node, "ss -Hltn | awk '{print $4}'").splitlines()]
            ours = [port for port in ports if port != 22]
            assert len(ours) > 5
            assert [port for port in ours if is_reached(stranger, node.address, port)] == []
            (port,) = [port for port in ports if port in (30000, 30001)]
            assert is_reached(peer, node.address, port)
    finally:
        stranger.down()


def test_a_file_that_somebody_broke_stops_nobody_and_the_next_run_mends_it(fleet: Service) -> None:
    good, pid = out(fleet.router, f"cat {WORKERS}"), out(fleet.router, f"systemctl show -p MainPID --value {ROUTER}")
    with steady(fleet.router) as client:
        out(fleet.router, f"echo garbage >{WORKERS}")
        refused = f"journalctl -q -u {ROUTER} -n 200 | grep -q 'keeping the last good manifest'"
        until(lambda: fleet.router.run(refused).returncode == 0, "the router has seen it", 30)
        client.answers_more()
        mended = deploy(fleet, "-y")
        assert mended.status == 0, mended.output
        assert mended.changed == [f"Launch | File {WORKERS}"], mended.changed
        client.answers_more()
    assert client.failed == [], str(client)
    assert out(fleet.router, f"cat {WORKERS}") == good
    assert out(fleet.router, f"systemctl show -p MainPID --value {ROUTER}") == pid, "the router went on"
    answers_alike(client)


def test_a_router_that_is_restarted_serves_as_soon_as_it_is_active(fleet: Service) -> None:
    with steady(fleet.router) as client:
        client.answers_more()
        began = time.time()
        out(fleet.router, f"systemctl restart {ROUTER}")
        active = time.time()
        client.answers_more()
    print(f"router restarted: {active - began:.1f} s; {client}")
    assert [one for one in client.failed if not one.in_flight(began, active)] == [], str(client)
    answers_alike(client)


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_decode_server_that_is_down_is_left_out_and_taken_back(fleet: Service) -> None:
    """Also by a router that starts meanwhile: it does not wait for the server that is down."""
    down = fleet.of("decode")[-1]
    with steady(fleet.router) as client:
        client.answers_more()
        began = time.time()
        out(down, f"systemctl stop {DECODE}")
        stopped = time.time()
        client.answers_more(8)
        retries = retried(fleet)
    print(f"decode stopped: {stopped - began:.1f} s; the router tried {retries} times again; {client}")
    assert [one for one in client.failed if not one.in_flight(began, stopped + 1)] == [], str(client)
    out(fleet.router, f"systemctl restart {ROUTER}")
    assert answer(fleet.router, QUESTION) == "391"
    out(down, f"systemctl start {DECODE}")
    url = f"http://{down.address}:30001/metrics"
    until(lambda: _counts(fleet, url), "the server gets requests again", LIMIT)


def _counts(fleet: Service, url: str) -> bool:
    """Whether a decode server is given any of the next questions."""
    with unwatched(*fleet.nodes):
        before = counters(fleet.router)
        for number in range(8):
            answer(fleet.router, f"Repeat: {time.time_ns()} {number}", tokens=2)
        return grown(before, counters(fleet.router))["decode"][url] > 0


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_decode_host_that_loses_power_costs_what_was_in_flight_on_it(fleet: Service) -> None:
    lost = fleet.of("decode")[-1]
    with steady(fleet.router) as client:
        client.answers_more()
        tried, began = retried(fleet), time.time()
        lost.power_cut()
        cut = time.time()
        client.answers_more(8)
        retries = retried(fleet) - tried
        until(lambda: is_active(lost, DECODE), "decode is back", LIMIT)
        back = time.time()
        client.answers_more(8)
    print(f"power cut: decode back after {back - began:.1f} s; the router tried {retries} times again; {client}")
    assert [one for one in client.failed if not one.in_flight(began, cut)] == [], str(client)
    answers_alike(client)
    again = deploy(fleet, "-y")
    assert again.status == 0, again.output


def test_one_host_of_a_service_alone_is_deployed_while_the_others_serve(fleet: Service) -> None:
    last = fleet.nodes[-1]
    one = deploy(fleet, "-y", "--limit", last.name)
    assert (one.status, one.changed) == (0, []), one.output
    assert "--limit leaves out" in one.output


def test_a_limit_that_leaves_out_what_does_not_serve_is_refused_before_anything_changes(fleet: Service) -> None:
    down, last = fleet.of("decode")[0], fleet.nodes[-1]
    limited = fleet.router.name if down is last else last.name
    out(down, f"systemctl stop {DECODE}")
    try:
        refused = deploy(fleet, "-y", "--limit", limited, decode_mem_fraction=0.61)
        assert refused.status != 0 and "Traceback" not in refused.output
        assert (
            f"--limit leaves out {down.name}, and its decode does not serve at http://{down.address}:30001"
            in refused.output
        )
    finally:
        out(down, f"systemctl start {DECODE}")
    after = deploy(fleet, "-y")
    assert (after.status, after.changed) == (0, []), after.output


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_host_that_is_rebooted_on_purpose_costs_no_request(fleet: Service) -> None:
    """As somebody who uses sudo, who logs in anew after the reboot."""
    last = fleet.of("decode")[-1]
    boot = out(last, f"cat {BOOT_ID}")
    with as_plain_user(last, fleet.router) as arguments, steady(fleet.router) as client:
        client.answers_more()
        tried, began = retried(fleet), time.time()
        ran = part(fleet, "upkeep.reboot", last, *arguments)
        back = time.time()
        assert ran.status == 0, ran.output
        client.answers_more(8)
        retries = retried(fleet) - tried
    print(f"rebooted: {back - began:.1f} s; the router tried {retries} times again; {client}")
    assert out(last, f"cat {BOOT_ID}") != boot
    assert "decode was away for" in ran.output and "every answer is right, asked through" in ran.output
    assert client.failed == [], str(client)
    answers_alike(client)
    again = deploy(fleet, "-y")
    assert again.changed == ["Topology | Stale proof told", "Verify | Kept as what passed last"], again.output


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_host_that_is_stopped_and_started_on_purpose_costs_no_request(fleet: Service) -> None:
    last = fleet.of("decode")[-1]
    listed = out(fleet.router, f"cat {WORKERS}")
    with steady(fleet.router) as client:
        client.answers_more()
        assert (stopped := part(fleet, "upkeep.stop", last)).status == 0, stopped.output
        assert not is_active(last, DECODE)
        assert out(fleet.router, f"cat {WORKERS}") == listed, "it gets requests again as soon as it is ready"
        client.answers_more(8)
        assert (started := part(fleet, "upkeep.start", last)).status == 0, started.output
        assert "every answer is right, asked through" in started.output
        assert (again := part(fleet, "upkeep.restart", last)).status == 0, again.output
        client.answers_more(8)
    print(f"stopped, started, restarted: {client}")
    assert client.failed == [], str(client)
    unchanged(fleet)


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_change_that_fails_on_the_first_host_stops_there(fleet: Service) -> None:
    pids = processes(fleet)
    with steady(fleet.router) as client:
        client.answers_more()
        failed = deploy(fleet, "-y", decode_arguments=FAILS)
        client.answers_more()
    print(f"a change that fails: {client}")
    assert failed.status != 0 and "Traceback" not in failed.output
    assert failed.output.count("the change failed and is taken back") == 1, failed.output
    assert "no change, since decode of" in failed.output
    again = processes(fleet)
    assert len([unit for unit, pid in again.items() if pid != pids[unit]]) == 1, "one server of one host"
    assert client.failed == [], str(client)
    assert deploy(fleet, "-y").status == 0
    assert processes(fleet) == again, "what was taken back needs no restart"
    unchanged(fleet)


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_rollout_that_is_killed_leaves_every_server_in_the_list_and_none_on_a_change(fleet: Service) -> None:
    before, listed = processes(fleet), out(fleet.router, f"cat {WORKERS}")
    with steady(fleet.router) as client:
        client.answers_more()
        broken_off(fleet, "decode: starting", signal.SIGKILL, decode_mem_fraction=0.62)
        killed = time.time()
        until(lambda: out(fleet.router, f"cat {WORKERS}") == listed, "the list is put back", LIMIT)
        until(lambda: all(is_settled(node) for node in fleet.nodes), "what served is back", LIMIT)
        client.answers_more(8)
    print(f"a rollout that was killed: as before after {time.time() - killed:.1f} s; {client}")
    again = processes(fleet)
    assert len([unit for unit, pid in again.items() if pid != before[unit]]) == 1, "the one that had its turn"
    assert client.failed == [], str(client)
    unchanged(fleet)


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_links_are_measured_again_one_host_after_the_other(fleet: Service) -> None:
    """On the hosts of decode alone: the only prefill server of a smaller fleet has nobody to stand in for it."""
    limits = [word for node in fleet.of("decode") for word in ("--limit", node.name)]
    with steady(fleet.router) as client:
        client.answers_more()
        ran = deploy(fleet, "-y", *limits, "--limit", fleet.router.name, reprove=True)
        assert ran.status == 0, ran.output
        client.answers_more()
    print(f"measured again: {client}")
    assert ran.output.count("drained for the proof") == len(fleet.of("decode")) + 1
    if HOSTS == 4:
        assert client.failed == [], str(client)
    unchanged(fleet)


@pytest.mark.skipif(HOSTS < 4, reason="takes two hosts of each role")
def test_a_setting_that_changes_on_all_costs_no_request(fleet: Service) -> None:
    """Nor does anybody log in as root."""
    pids = processes(fleet)
    with as_plain_user(*fleet.nodes) as arguments, steady(fleet.router) as client:
        client.answers_more()
        tried, began = retried(fleet), time.time()
        changed = deploy(fleet, "-y", *arguments, **CHANGED)
        took = time.time() - began
        client.answers_more()
        print(f"the router tried {retried(fleet) - tried} times again")
    print(f"a setting changed on all, {took:.0f} s: {client}")
    assert changed.status == 0, changed.output
    again = processes(fleet)
    kept = [unit for unit, pid in again.items() if pid == pids[unit]]
    assert kept == [f"{fleet.router.name} {ROUTER}"], "all but the router"
    turns = [line for line in changed.output.splitlines() if " was away for " in line]
    assert len(turns) == HOSTS and fleet.router.name in turns[-1], "the host of the router comes last"
    assert client.failed == [], str(client)
    answers_alike(client)
    unchanged(fleet, **CHANGED)


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_host_that_was_rebuilt_joins_with_one_run(fleet: Service) -> None:
    last = fleet.of("decode")[-1]
    changed = CHANGED if HOSTS == 4 else {}
    with steady(fleet.router) as client:
        client.answers_more()
        began = time.time()
        last.rebuild()
        empty = time.time()
        command("ssh-keygen", "-R", last.address, "-f", last.known_hosts)
        joined = deploy(fleet, "-y", **changed)
        assert joined.status == 0, joined.output
        client.answers_more(8)
    print(f"rebuilt host joins in {time.time() - empty:.0f} s: {client}")
    assert [one for one in client.failed if not one.in_flight(began, empty)] == [], str(client)
    unchanged(fleet, **changed)


@pytest.mark.skipif(HOSTS < 3, reason="takes a second decode host")
def test_a_host_that_leaves_costs_no_request_and_restarts_nobody(fleet: Service) -> None:
    """The last test of these hosts: afterwards there is one less."""
    last, changed = fleet.of("decode")[-1], CHANGED if HOSTS == 4 else {}
    rest = fleet.without(last)
    pids = processes(rest)
    with steady(fleet.router) as client:
        client.answers_more()
        removed = part(fleet, "remove.everything", last, remove=last.name)
        assert removed.status == 0, removed.output
        assert len(workers(fleet)) == HOSTS - 1
        assert out(last, "ls -d /opt/sglang-pd /etc/sglang-pd 2>/dev/null; true") == ""
        client.answers_more(8)
        followed = deploy(rest, "-y", **changed)
        assert followed.status == 0, followed.output
        client.answers_more(8)
    print(f"a host left: {client}")
    assert client.failed == [], str(client)
    assert processes(rest) == pids
    assert all(last.address not in out(node, f"cat {CONFIG}/* {UNITS}/sglang-pd-*.service") for node in rest.nodes)
    unchanged(rest, **changed)
