"""Hosts that fail: what goes on without them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pyinfra.api import Config, Host, Inventory, State
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host, ctx_state

from tasks.plan.errors import PlanError
from tasks.plan.fleet.service import Together
from tasks.support import fleet
from tests.plan.builders import fleet_plans, inventoried

CHAT = {"gpu-1": ("prefill", "router"), "gpu-2": ("prefill", "router"), "gpu-3": ("decode",), "gpu-4": ("decode",)}
CODE = {"gpu-5": ("prefill", "router"), "gpu-6": ("decode",)}


class Run:
    """Hosts that are connected and planned for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Mapping[str, Any]) -> None:
        groups = {**CHAT, **CODE, "gpu-7": ()}
        services = {name.replace("-", "_"): {"service": "code"} for name in CODE}
        hosts = inventoried(groups, **{**services, **changes})
        names = [(host.name, dict(host.data)) for host in hosts]
        grouped: dict[str, Any] = {
            role: ([n for n, played in groups.items() if role in played], {})
            for role in ("prefill", "decode", "router")
        }
        self.state = State(Inventory((names, {}), **grouped), Config(FAIL_PERCENT=0))
        for host in self.state.inventory:
            self.state.activate_host(host)
        made = {
            service: {
                name: Together(plan.settings, plan.others) for name, plan in fleet_plans(played, **changes).items()
            }
            for service, played in (("main", CHAT), ("code", CODE))
        }
        monkeypatch.setattr(fleet, "_services", made)
        monkeypatch.setattr(fleet, "_told", {})
        self.state.should_raise_failed_hosts = lambda state: not fleet.goes_on(state)

    def host(self, name: str) -> Host:
        return self.state.inventory.get_host(name)

    def limit(self, *names: str) -> None:
        self.state.limit_hosts = [self.host(name) for name in names]

    def fail(self, *names: str) -> set[str]:
        """The hosts that the run goes on with."""
        self.state.fail_hosts({self.host(name) for name in names})
        return {host.name for host in self.state.active_hosts}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    made = Run(monkeypatch)
    with ctx_state.use(made.state):
        yield made


def test_a_host_that_fails_is_left_out_where_its_service_has_another(run: Run) -> None:
    assert run.fail("gpu-3") == {"gpu-1", "gpu-2", "gpu-4", "gpu-5", "gpu-6", "gpu-7"}


def test_a_service_that_lacks_a_role_ends_and_others_go_on(run: Run) -> None:
    assert run.fail("gpu-3", "gpu-4") == {"gpu-5", "gpu-6", "gpu-7"}
    assert run.host("gpu-1") in run.state.failed_hosts, "the run does not end well"


def test_a_router_that_nobody_can_tell_ends_its_service_although_there_is_another(run: Run) -> None:
    assert run.fail("gpu-1") == {"gpu-5", "gpu-6", "gpu-7"}


def test_a_service_without_its_router_ends(run: Run) -> None:
    assert run.fail("gpu-5") == {"gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-7"}


def test_a_minimum_ends_a_service_that_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Run(monkeypatch, gpu_1={"minimum_decode": 2})
    with ctx_state.use(made.state):
        assert made.fail("gpu-4") == {"gpu-5", "gpu-6", "gpu-7"}


def test_a_host_that_serves_alone_ends_the_run_for_all(run: Run) -> None:
    with pytest.raises(Exception, match="Over 0% of hosts failed"):
        run.fail("gpu-7")


def test_a_service_that_cannot_be_planned_refuses_its_hosts_by_itself(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setitem(fleet._services, "main", PlanError("service 'main' cannot be"))
    assert run.fail("gpu-1") == {"gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7"}


class Way:
    """The end of a way onto a host: what servers elsewhere tell that are asked from there."""

    def __init__(self, told: Mapping[str, Mapping[str, object]]) -> None:
        self.told = told

    def run_shell_command(self, command: object, **_: object) -> tuple[bool, CommandOutput]:
        lines = []
        for url, said in self.told.items():
            assert url in str(command)
            answer = base64.b64encode(b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(said).encode()).decode()
            lines.append(f"{url} {answer if said else ''}")
        return True, CommandOutput([OutputLine("stdout", line) for line in lines])


@pytest.mark.parametrize(
    ("told", "gone"),
    [
        ({"version": "SAME"}, False),
        ({"version": "0.0.1"}, True),
        ({"version": "SAME", "page_size": 1}, True),
        ({}, True),
    ],
)
def test_servers_of_a_host_that_failed_get_requests_where_they_tell_the_same(
    run: Run, told: dict[str, object], gone: bool
) -> None:
    plan = fleet_plans(CHAT)["gpu-1"]
    if "version" in told:
        told = {**told, "version": told["version"].replace("SAME", plan.release.manifest.sglang)}  # type: ignore[attr-defined]
    with ctx_host.use(run.host("gpu-1")):
        assert fleet.gone(plan) == frozenset()
        run.fail("gpu-4")
        run.host("gpu-1").connector = Way({"http://10.1.0.4:30001/server_info": told})  # type: ignore[assignment]
        run.host("gpu-1").connected = True
        assert fleet.gone(plan) == (frozenset({"http://10.1.0.4:30001"}) if gone else frozenset())


# ---- a part of one host, such as make reboot


@pytest.fixture
def reached(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """As with --limit: of the other hosts none is connected yet."""
    monkeypatch.setattr(fleet, "_members", None)
    run.state.activated_hosts.clear()
    monkeypatch.setattr(Host, "connect", lambda one: setattr(one, "connected", one.name != "gpu-2"))
    yield run


@pytest.mark.parametrize(("name", "routers"), [("gpu-6", ["gpu-5"]), ("gpu-5", []), ("gpu-7", [])])
def test_a_part_of_one_host_reaches_the_other_routers_of_its_service(
    reached: Run, name: str, routers: list[str]
) -> None:
    reached.limit(name)
    with ctx_host.use(reached.host(name)):
        assert [one.name for one in fleet.routers()] == routers
    assert {one.name for one in reached.state.activated_hosts} == {*routers}, "pyinfra lets go of them at the end"


def test_a_part_is_for_one_host_of_those_that_serve_together(reached: Run) -> None:
    """Two of them would write the list of a router at the same time."""
    reached.limit("gpu-6", "gpu-7")
    with ctx_host.use(reached.host("gpu-7")):
        assert fleet.routers() == ()
    with ctx_host.use(reached.host("gpu-6")), pytest.raises(PlanError, match="this run is for gpu-6, gpu-7; name one"):
        fleet.routers()
    assert not reached.state.activated_hosts, "nobody is connected for it"


@pytest.mark.parametrize("name", ["gpu-1", "gpu-3"])
def test_a_router_whose_host_is_not_reached_is_one_line(reached: Run, name: str) -> None:
    reached.limit(name)
    with ctx_host.use(reached.host(name)), pytest.raises(PlanError, match="the router on gpu-2 sends requests here"):
        fleet.routers()


# ---- a run for the host that watches all


class Addressed:
    """The end of a way onto a host that has one address."""

    client = None

    def run_shell_command(self, command: object, **_: object) -> tuple[bool, CommandOutput]:
        assert "ip -o addr" in str(command), "whoever is left out is asked nothing"
        return True, CommandOutput(
            [OutputLine("stdout", "2: eth0    inet 10.1.0.7/24 brd 10.1.0.255 scope global eth0")]
        )


def test_a_service_that_limit_leaves_out_whole_does_not_keep_its_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is done there, so nobody asks whether it serves."""
    made = Run(monkeypatch, **{name: {"monitoring": True} for name in ("gpu_5", "gpu_6")})
    monkeypatch.setattr(fleet, "_members", None)
    monkeypatch.setattr(fleet, "_services", {})
    with ctx_state.use(made.state):
        keeper = made.host("gpu-7")
        keeper.groups.append("monitoring")
        made.limit("gpu-7")
        made.state.activated_hosts = {keeper}
        keeper.connected = True
        keeper.connector = Addressed()  # type: ignore[assignment]
        with ctx_host.use(keeper):
            found = fleet._watching("gpu-7", fleet._of("gpu-7").settings)
    assert found is not None
    assert [one.host for one in found.watched] == ["gpu-7", "gpu-5", "gpu-6"]
