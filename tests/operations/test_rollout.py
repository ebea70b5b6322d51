"""Servers of several hosts that restart one at a time: what is asked of which host, as far as no host is needed."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyinfra.api import Config, Host, Inventory, State
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host, ctx_state

from tasks.operations.rollout import leaving, restarted
from tasks.operations.routes import Away, Then, out_of_use
from tasks.operations.services import running
from tasks.plan.fleet.rollout import Found
from tasks.plan.phases.routing import listed, workers_file
from tasks.plan.plan import Plan
from tasks.support.fleet import Rollout
from tests.plan.builders import fleet_plans

GROUPS = {"gpu-1": ("prefill", "router"), "gpu-2": ("decode",), "gpu-3": ("decode",)}
ACTIVE = base64.b64encode(b"ActiveState=active\nSubState=running\n").decode()


class Connector:
    """The end of a way onto a host: keeps what is asked for, and says what a host says on which all goes well."""

    def __init__(self, units: list[str]) -> None:
        self.asked: list[str] = []
        self.breaks: Callable[[str], bool] = lambda command: False
        self.fails: Callable[[str], bool] = lambda command: False
        self.right = True
        self.servers = "3"
        self.listed = ""  # the router's file
        self.told: list[str] = []  # what was sent over standard input
        self._units = units

    def run_shell_command(self, command: object, **arguments: object) -> tuple[bool, CommandOutput]:
        text = str(command)
        self.asked.append(text)
        if arguments.get("_stdin"):
            self.told.append(str(arguments["_stdin"]))
        if self.breaks(text):
            raise OSError("the connection is gone")
        if self.fails(text):
            return False, CommandOutput([OutputLine("stderr", "no space left on device")])
        lines = ["drained"]
        if "pd-drain router" in text:
            lines = [self.servers] if self.servers else []
        elif text.startswith("cat "):
            lines = self.listed.splitlines()
        elif "pd-verify" in text:
            lines = ["ok: 5/5 answers"] if self.right else ["FAIL 17*23: 1 s", "why: it is 392", "failed: 4/5 answers"]
            return self.right, CommandOutput([OutputLine("stdout", line) for line in lines])
        elif "section()" in text:
            gates = ((unit, ACTIVE) for unit in self._units)
            lines = [f"@@section {name} {said} 0" for unit, shown in gates for name, said in
                     ((unit, shown), (f"{unit} gate", ""))]  # fmt: skip
        return True, CommandOutput([OutputLine("stdout", line) for line in lines])

    def ran(self, word: str) -> list[str]:
        return [command for command in self.asked if word in command]


class Hosts:
    def __init__(self, plans: dict[str, Plan], state: State) -> None:
        self.plans, self.state, self.rollout = plans, state, Rollout()
        self.rollout.plans = plans
        self.ways: dict[str, Connector] = {}
        for name, plan in plans.items():
            self.ways[name] = Connector([one.unit for one in plan.instances])
            if file := workers_file(plan):
                self.ways[name].listed = file.content.decode()
            self.host(name).connector = self.ways[name]  # type: ignore[assignment]
            self.rollout.found += [Found(one.name, one.role, serves=True, fits=True) for one in plan.workers]

    def host(self, name: str) -> Host:
        return self.state.inventory.get_host(name)

    def restart(self, name: str) -> bool:
        workers = self.plans[name].workers
        units = [worker.unit for worker in workers]
        return restarted(self.state, self.host(name), self.plans[name], self.rollout, workers, units, 60)


@pytest.fixture
def hosts() -> Iterator[Callable[..., Hosts]]:
    state = State(Inventory(([*GROUPS], {})), Config())

    def made(groups: Mapping[str, tuple[str, ...]] = GROUPS, **changes: dict[str, Any]) -> Hosts:
        return Hosts(fleet_plans(groups, **changes), state)

    with ctx_state.use(state):
        yield made


def test_a_way_onto_a_host_that_breaks_stops_the_rollout(hosts: Callable[..., Hosts]) -> None:
    made = hosts()
    made.ways["gpu-2"].breaks = lambda command: "systemctl restart" in command
    with pytest.raises(OSError, match="the connection is gone"):
        made.restart("gpu-2")
    assert made.restart("gpu-3") is False
    assert made.ways["gpu-3"].asked == [], "the next server stays as it is"


def test_what_passed_is_kept_once_the_last_server_of_a_host_has_its_change(hosts: Callable[..., Hosts]) -> None:
    made = hosts(gpu_2={"decode_instances": 2})
    assert made.restart("gpu-2") is True
    asked = made.ways["gpu-2"].asked
    restarts, keeps = ([asked.index(each) for each in made.ways["gpu-2"].ran(word)] for word in (
        "systemctl restart", "pd-passed keep"))  # fmt: skip
    assert (len(restarts), len(keeps)) == (2, 1)
    assert keeps[0] > restarts[1]
    assert len(made.ways["gpu-1"].ran("pd-verify")) == 2, "the questions are asked after each"


def test_a_server_that_is_out_of_the_list_comes_back_where_the_run_breaks_off(hosts: Callable[..., Hosts]) -> None:
    made = hosts()
    assert made.restart("gpu-2") is True
    out, back = made.ways["gpu-1"].ran("mv -fT")
    assert out.index("pd-passed resume") < out.index("mv -fT")
    assert "resume" not in back


def test_a_server_whose_router_cannot_be_told_stays_as_it_is(hosts: Callable[..., Hosts]) -> None:
    made = hosts()
    made.ways["gpu-1"].fails = lambda command: "mv -fT" in command
    assert made.restart("gpu-2") is False
    assert not made.ways["gpu-2"].ran("systemctl restart")
    assert made.restart("gpu-3") is False
    assert made.ways["gpu-3"].asked == []


def test_a_router_that_is_slow_to_follow_stops_nothing(hosts: Callable[..., Hosts]) -> None:
    made = hosts()
    made.ways["gpu-1"].fails = lambda command: "--servers" in command
    assert made.restart("gpu-2") is True


def test_a_wrong_answer_takes_the_change_back_and_is_shown(
    hosts: Callable[..., Hosts], caplog: pytest.LogCaptureFixture
) -> None:
    made = hosts()
    made.ways["gpu-1"].right = False
    with caplog.at_level(logging.INFO, logger="pyinfra"):
        assert made.restart("gpu-2") is False
    assert made.ways["gpu-2"].ran("pd-passed restore")
    assert "asked through gpu-1: FAIL 17*23: 1 s why: it is 392" in caplog.text


def test_a_router_that_does_not_run_is_asked_nothing(hosts: Callable[..., Hosts]) -> None:
    """It comes up after the servers: a change of theirs must not be taken back for it."""
    made = hosts()
    made.ways["gpu-1"].servers, made.ways["gpu-1"].right = "", False
    assert made.restart("gpu-2") is True
    assert not made.ways["gpu-1"].ran("pd-verify")


def test_a_host_with_its_own_router_keeps_nothing_before_that_is_tried(hosts: Callable[..., Hosts]) -> None:
    made = hosts()
    assert made.restart("gpu-1") is True
    assert not made.ways["gpu-1"].ran("pd-passed keep")


def test_prefill_and_the_decode_server_that_takes_it_along_leave_the_list_together(hosts: Callable[..., Hosts]) -> None:
    made = hosts({"gpu-1": ("prefill", "router"), "gpu-2": ("prefill", "decode"), "gpu-3": ("decode",)})
    made.ways["gpu-1"].servers = "4"
    assert made.restart("gpu-2") is True
    asked = made.ways["gpu-2"]
    assert len(asked.ran("pd-drain server")) == 2
    assert [command.partition(" --no-block ")[2] for command in asked.ran("systemctl restart")] == [
        "sglang-pd-prefill.service sglang-pd-decode.service"
    ]
    assert len(made.ways["gpu-1"].ran("mv -fT")) == 2
    assert [command[-1] for command in made.ways["gpu-1"].ran("--servers")] == ["2", "4"]


# ---- one host alone: make stop, restart, reboot, remove


def away(made: Hosts, then: Then) -> Away:
    plan = made.plans["gpu-2"]
    return replace(leaving(plan, made.rollout, plan.workers), then=then)


def written(made: Hosts) -> list[list[str]]:
    """URLs in the router's file, of each time that it was written."""
    texts = [told.partition("\n")[2] for told in made.ways["gpu-1"].told]
    return [[*listed(base64.b64decode(text).decode())] for text in texts]


@pytest.mark.parametrize(
    ("then", "writes", "waits"), [(Then.SERVE, 2, ["2", "3"]), (Then.REST, 2, ["2"]), (Then.LEAVE, 1, ["2"])]
)
def test_servers_are_out_of_the_list_while_it_lasts(
    hosts: Callable[..., Hosts], then: Then, writes: int, waits: list[str]
) -> None:
    made = hosts()
    seen: list[list[str]] = []
    plan, lists = made.plans["gpu-2"], away(made, then)

    def act(_: State, __: Host) -> bool:
        seen.extend(written(made))
        assert made.ways["gpu-2"].ran("pd-drain server"), "drained before"
        return True

    assert out_of_use(made.state, made.host("gpu-2"), lists, act) is True
    every = [one.url for one in plan.served]
    left = [url for url in every if url not in lists.servers]
    assert seen == [left] and written(made) == [left, every][:writes]
    assert [command[-1] for command in made.ways["gpu-1"].ran("--servers")] == waits
    armed = [bool(made.ways["gpu-1"].ran("pd-passed resume"))]
    assert armed == [then is not Then.LEAVE], "for good is for good, also where the run breaks off"


@pytest.mark.parametrize("then", Then)
def test_a_router_whose_host_was_stopped_stays_so(hosts: Callable[..., Hosts], then: Then) -> None:
    made = hosts()
    lists = away(made, then)
    lists = replace(lists, routers=tuple(replace(router, units=()) for router in lists.routers))
    assert out_of_use(made.state, made.host("gpu-2"), lists, lambda *_: True) is True
    assert not made.ways["gpu-1"].ran("pd-passed resume"), "which would start it"
    assert len(written(made)) == (then is Then.LEAVE)


def test_a_router_whose_list_cannot_be_read_changes_nothing(hosts: Callable[..., Hosts]) -> None:
    made = hosts()
    made.ways["gpu-1"].listed = "garbage"
    assert out_of_use(made.state, made.host("gpu-2"), away(made, Then.REST), lambda *_: pytest.fail()) is False
    assert made.ways["gpu-1"].told == []


# ---- the host of the router


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("host", ["gpu-1", "gpu-2"])
def test_the_host_of_the_router_has_its_turn_after_all_others(
    hosts: Callable[..., Hosts], host: str, last: bool
) -> None:
    made = hosts()
    plan = made.plans[host]
    made.state.is_executing = True
    with ctx_host.use(made.host(host)):
        yielded = [*running._inner(  # type: ignore[attr-defined]
            plan=plan, instances=plan.workers, needs=(), reasons={worker.name: "restarts" for worker in plan.workers},
            waiting=(), serving=(), limit=60, rollout=made.rollout, last=last,
        )]  # fmt: skip
        assert bool(yielded) is (last is (host == "gpu-1"))
        made.rollout.found = [Found("decode", "decode", serves=False, fits=False)]
        again = [*running._inner(  # type: ignore[attr-defined]
            plan=plan, instances=plan.workers, needs=(), reasons={worker.name: "starts" for worker in plan.workers},
            waiting=(), serving=(), limit=60, rollout=made.rollout, last=last,
        )]  # fmt: skip
    assert bool(again) is not last, "where all start at once, all do"


def test_a_router_that_does_not_know_each_server_of_its_file_is_given_time_to_look(
    hosts: Callable[..., Hosts], caplog: pytest.LogCaptureFixture
) -> None:
    """One of them was down: nobody knows which."""
    made = hosts()
    made.ways["gpu-1"].servers = "2"
    made.ways["gpu-1"].fails = lambda command: "--servers" in command
    with caplog.at_level(logging.INFO, logger="pyinfra"):
        assert out_of_use(made.state, made.host("gpu-2"), away(made, Then.SERVE), lambda *_: True) is True
    assert len(made.ways["gpu-1"].ran("--limit 6 --servers 1")) == 1
    assert "workers.json" not in caplog.text
