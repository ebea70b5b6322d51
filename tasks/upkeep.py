"""Parts on their own, on the service as it lies on a host: nothing is planned anew, and no file of it changes.

make verify, stop, start, restart, logs HOST=NAME     each one command of pyinfra; docs/parts.md
"""

from __future__ import annotations

from datetime import UTC, datetime

from pyinfra import host

from tasks.facts.logs import Logs
from tasks.facts.paths import Paths as PathsFact
from tasks.facts.units import Units
from tasks.operations import upkeep
from tasks.plan.errors import PlanError
from tasks.plan.service import installed
from tasks.plan.service.installed import Installed
from tasks.plan.service.paths import PASSED, STOPPED, TARGET, Paths
from tasks.plan.settings.settings import Settings
from tasks.support import connection, lock, place, refusal, summary


def verify() -> None:
    """Ask every question with a known answer."""
    with refusal.in_one_line():
        _, paths, found, stopped = _found(changes=False)
        if not found.serving(stopped).is_routed:
            raise PlanError("the router is on another host: ask there")
        upkeep.asked(name="Every answer is right", tool=f"{paths.bin}/pd-verify", config=paths.verify)


def stop() -> None:
    """The service stays down until somebody starts it, or deploys."""
    with refusal.in_one_line():
        _, _, found, before = _found(changes=True)
        told = installed.stopped_file(lock.operator(), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
        upkeep.stopped(name="The service is stopped", installed=found, told=told, already=before)


def start() -> None:
    """The service runs as it lies there, and answers right."""
    with refusal.in_one_line():
        _run(again=False)


def restart() -> None:
    """The same, each server with a new process."""
    with refusal.in_one_line():
        _run(again=True)


def _run(again: bool) -> None:
    wanted, paths, found, _ = _found(changes=True)
    upkeep.started(
        name="The service runs and answers right",
        installed=found.whole(),
        at_boot=wanted.start_on_boot,
        limit=wanted.worker_ready_limit,
        tool=f"{paths.bin}/pd-verify",
        config=paths.verify,
        again=again,
    )


def logs() -> None:
    """What each unit printed last that tells of a failure, and what to do about it."""
    with refusal.in_one_line():
        _, paths, found, _ = _found(changes=False)
        lines = host.get_fact(Logs, tool=f"{paths.bin}/pd-logs", units=list(found.units))
        if not lines:
            raise PlanError(
                "the tools on this host are older than `make logs`: run deploy.py first, or on the host "
                "`journalctl -u 'sglang-pd-*'`"
            )
        for line in lines:
            summary.last(host, line)


def _found(changes: bool) -> tuple[Settings, Paths, Installed, str]:
    """Settings, paths, what lies there, and who stopped it. changes: then nobody else's run may be on."""
    wanted, paths = place.here()
    if changes:
        lock.take(wanted)
    else:
        connection.prepare()
    left = host.get_fact(PathsFact, paths=[STOPPED, PASSED])
    found = installed.read(host.get_fact(Units, units={}, target=TARGET), left[PASSED].kind == "file")
    return wanted, paths, found, installed.stopped_by(left[STOPPED].text)
