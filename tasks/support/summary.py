"""The last lines of a run: what was done on each host is noted as it happens, and told after everything else.

pyinfra prints no table when a host has failed, and shows an error after it has let go of the hosts: so the lines are
told when Python ends.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from paramiko import SSHException
from pyinfra import logger, state
from pyinfra.api import Host, State
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.output import format_text
from pyinfra.api.state import BaseStateCallback, StateStage
from pyinfra.connectors.util import remove_any_sudo_askpass_file
from pyinfra.context import ctx_host, ctx_state

from tasks.facts.serving import Serving
from tasks.plan.errors import one_line
from tasks.plan.fleet import members
from tasks.plan.fleet.members import Inventoried
from tasks.plan.plan import Plan
from tasks.plan.report import summary
from tasks.plan.report.summary import Ending, HostRun, Service
from tasks.support import report
from tasks.support.dry import is_dry

LOOKED = "Preflight"  # phase in which a host is looked at and its run planned


def expect() -> None:
    """Tell of this run at its end, also where it never reaches a host."""
    if not _run.is_expected:
        _run.is_expected = True
        atexit.register(_run.tell)


def planned(host: Host, plan: Plan) -> None:
    _run.plans[host.name] = plan


def routed(host: str, routers: Sequence[str]) -> None:
    """A run for this host needs those of its routers too."""
    _run.routers[host] = tuple(routers)


def refused(host: Host, lines: Sequence[str]) -> None:
    _run.refusals[host.name] = tuple(lines)


def fault(host: Host, line: str) -> None:
    """Why an operation fails."""
    _run.faults.setdefault(host.name, []).append(line)


def taken_back(host: Host) -> None:
    """What served before a change that failed serves again, and has answered right."""
    _run.back.add(host.name)


def restarts(host: Host, server: str, why: str) -> None:
    """Of a server that (re)starts, or would."""
    _run.restarts[state.is_executing].setdefault(host.name, {})[server] = why


def compiled(host: Host, files: Mapping[str, int]) -> None:
    """What servers put into the caches of their release at the start of this run."""
    _run.compiled[host.name] = dict(files)


def last(host: Host, line: str, colour: str = "") -> None:
    """A line of a part such as `make stop`, told after everything else."""
    text = one_line(line)
    if not _last:
        atexit.register(_tell_last)
    _last.append(f"{host.print_prefix}{format_text(text, colour) if colour else text}")


def _tell_last() -> None:
    for line in _last:
        logger.info(line)


@contextmanager
def looking(host: Host) -> Iterator[None]:
    """While the plan for a host is made."""
    _run.follow()
    began = time.monotonic()
    yield
    _run.looked[host.name] = time.monotonic() - began


class _Run(BaseStateCallback):
    """What is known of this run, by name of host."""

    def __init__(self) -> None:
        self.is_expected = False
        self.looked: dict[str, float] = {}  # seconds
        self.plans: dict[str, Plan] = {}
        self.routers: dict[str, tuple[str, ...]] = {}  # hosts that have one of its service
        self.refusals: dict[str, tuple[str, ...]] = {}
        self.faults: dict[str, list[str]] = {}
        self.restarts: dict[bool, dict[str, dict[str, str]]] = {False: {}, True: {}}  # planned, and done
        self.compiled: dict[str, dict[str, int]] = {}
        self.at: dict[str, str] = {}  # name of the operation that runs, or ran last
        self.failed: set[str] = set()
        self.back: set[str] = set()  # where a change was taken back
        self.seconds: dict[str, dict[str, float]] = {}  # by phase
        self.served: dict[str, Service | None] = {}  # of hosts that told at the end; None: nothing
        self._began: dict[str, float] = {}
        self._follows = False
        self._following = Lock()

    def follow(self) -> None:
        with self._following:
            if self.is_expected and not self._follows:
                state.add_callback_handler(self)
                self._follows = True

    # ---- called by pyinfra

    def operation_host_start(self, state: State, host: Host, op_hash: str) -> None:  # type: ignore[override]
        self.at[host.name] = name_of(state, host, op_hash)
        self._began[host.name] = time.monotonic()

    def operation_host_success(self, state: State, host: Host, op_hash: str, retry_count: int = 0) -> None:  # type: ignore[override]
        self._ended(host)
        self.faults.pop(host.name, None)  # of something that came right after all

    def operation_host_error(  # type: ignore[override]
        self, state: State, host: Host, op_hash: str, retry_count: int = 0, max_retries: int = 0
    ) -> None:
        self._ended(host)
        self.failed.add(host.name)

    def host_disconnect(self, state: State, host: Host) -> None:  # type: ignore[override]
        if self._ending(state, host) is Ending.WELL and host.name in self.plans:
            self.served[host.name] = Service.of(self.plans[host.name], {one.name for one in state.failed_hosts})
            return
        try:
            with ctx_host.use(host):
                found = host.get_fact(Serving)
        except (PyinfraError, OSError, EOFError, SSHException):
            return
        finally:
            remove_any_sudo_askpass_file(host)  # pyinfra did so before, and this question made it anew
        if found:
            service = Service.read(found)
            self.served[host.name] = replace(service, is_proven=host.name in self.back) if service else None

    # ----

    def tell(self) -> None:
        """Every host's lines, the verdict last."""
        if not ctx_state.isset() or not state.initialised:
            return  # the inventory had a fault, which was told
        hosts = [self._of(one) for one in state.inventory if state.is_host_in_limit(one)]
        runs = {host.name: host.as_data() for host in hosts}
        for name, run in runs.items():
            report.ended(name, run)
        every = members.members(Inventoried(one.name, tuple(one.groups), one.data.dict()) for one in state.inventory)
        pages = {name: report.of_service(name, found, runs) for name, found in members.services(every).items()}
        words = [Path(sys.argv[0]).name, *sys.argv[1:]]
        told = {name: str(page) for name, page in pages.items() if page}
        for line in summary.lines(hosts, summary.command(words, hosts), told):
            text = format_text(line.text, str(line.tone), bold=line.is_head) if line.tone else line.text
            logger.info(f"--> {text}" if line.is_head else text)

    def _of(self, host: Host) -> HostRun:
        name = host.name
        ending = self._ending(state, host)
        seconds = {LOOKED: self.looked[name]} if name in self.looked else {}
        written = report.written(name)
        return HostRun(
            name=name,
            ending=ending,
            service=self.served.get(name),
            is_asked=name in self.served,
            at=self.at.get(name, ""),
            reasons=self.refusals.get(name) or tuple(self.faults.get(name, ())),
            changed=tuple(_changed(host)),
            operations=len(state.ops[host]),
            routers=self.routers.get(name, ()),
            is_taken_back=name in self.back,
            is_compared=ending is not Ending.DRY or state.check_for_changes,
            restarts=self.restarts[ending is not Ending.DRY].get(name, {}),
            compiled=self.compiled.get(name),
            seconds=seconds | self.seconds.get(name, {}),
            warnings=written.warnings if written else (),
            report=str(written.page) if written and written.page else "",
        )

    def _ending(self, state: State, host: Host) -> Ending:
        if host not in state.activated_hosts:
            return Ending.UNREACHED
        if host.name in self.refusals:
            return Ending.REFUSED
        if host.name in self.failed:
            return Ending.FAILED
        if is_dry() and host.name in self.looked:
            return Ending.DRY
        if host.name not in self.at:
            return Ending.UNBEGUN
        if host in state.failed_hosts or state.current_stage is not StateStage.Disconnect:
            return Ending.UNFINISHED
        return Ending.WELL

    def _ended(self, host: Host) -> None:
        took = time.monotonic() - self._began.get(host.name, time.monotonic())
        if phase := summary.phase_of(self.at.get(host.name, "")):
            of_host = self.seconds.setdefault(host.name, {})
            of_host[phase] = of_host.get(phase, 0) + took


def name_of(state: State, host: Host, op_hash: str) -> str:
    """Of an operation on one host: hosts whose settings differ may give it other names at the same line."""
    names = sorted(state.get_op_meta(op_hash).names)
    data = state.ops[host].get(op_hash)
    own = data.global_arguments.get("name") if data else None
    return ", ".join([name for name in names if own and f" | {name}".endswith(f" | {own}")] or names)


def _changed(host: Host) -> Iterator[str]:
    for op_hash, operation in state.ops[host].items():
        found: Any = operation.operation_meta
        if found.did_change() if found.is_complete() else is_dry() and found._maybe_is_change:
            yield name_of(state, host, op_hash)


_run = _Run()
_last: list[str] = []
