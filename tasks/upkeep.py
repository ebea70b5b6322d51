"""Parts on their own, on the service as it lies on a host: nothing is planned anew, and no file of it changes.

make verify, stop, start, restart, reboot, logs HOST=NAME     each one command of pyinfra; docs/parts.md
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from pyinfra import host
from pyinfra.api import Host
from pyinfra.context import ctx_host

from tasks.facts.history import Text
from tasks.facts.logs import Logs
from tasks.facts.network import Addresses
from tasks.facts.paths import Paths as PathsFact
from tasks.facts.units import Units
from tasks.operations import upkeep
from tasks.operations.routes import Away, Router, Then
from tasks.plan.errors import PlanError
from tasks.plan.fleet import members
from tasks.plan.host.answers import json_object
from tasks.plan.phases import routing
from tasks.plan.service import installed
from tasks.plan.service.installed import ROUTER, Installed
from tasks.plan.service.paths import PASSED, STOPPED, TARGET, Paths
from tasks.plan.settings.settings import Settings
from tasks.support import connection, fleet, lock, place, refusal, summary


def verify() -> None:
    """Ask every question with a known answer."""
    with refusal.in_one_line():
        _, paths, found, stopped = _found(changes=False)
        if not found.serving(stopped).is_routed:
            raise PlanError("the router is on another host: ask there")
        upkeep.asked(name="Every answer is right", asks=_asks(paths))


def stop() -> None:
    """The service stays down until somebody starts it, or deploys."""
    with refusal.in_one_line():
        wanted, paths, found, before = _found(changes=True)
        told = installed.stopped_file(lock.operator(), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
        away = leaving(wanted, paths, found.running, Then.REST)
        upkeep.stopped(name="The service is stopped", installed=found, told=told, already=before, away=away)


def start() -> None:
    """The service runs as it lies there, and answers right."""
    with refusal.in_one_line():
        wanted, paths, found, _ = _found(changes=True)
        upkeep.started(
            name="The service runs and answers right",
            installed=found.whole(),
            at_boot=wanted.start_on_boot,
            limit=wanted.worker_ready_limit,
            asks=_asks(paths),
            routers=leaving(wanted, paths, found.running, Then.REST).routers,
        )


def restart() -> None:
    """The same, each server with a new process."""
    with refusal.in_one_line():
        wanted, paths, found, _ = _found(changes=True)
        upkeep.restarted(
            name="The service runs and answers right",
            installed=found.whole(),
            at_boot=wanted.start_on_boot,
            limit=wanted.worker_ready_limit,
            asks=_asks(paths),
            away=leaving(wanted, paths, found.running, Then.SERVE),
        )


def reboot() -> None:
    """The host boots anew; what ran there before runs again, and answers right."""
    with refusal.in_one_line():
        wanted, paths, found, before = _found(changes=True)
        upkeep.booted(
            name="The host has booted, and serves as before",
            installed=found.whole(),
            paths=paths,
            limit=wanted.worker_ready_limit,
            boot_limit=wanted.reboot_limit,
            asks=_asks(paths),
            already=before,
            away=leaving(wanted, paths, found.running, Then.SERVE),
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
        lock.take(wanted, fleet.routers())
    else:
        connection.prepare()
    left = host.get_fact(PathsFact, paths=[STOPPED, PASSED])
    found = installed.read(host.get_fact(Units, units={}, target=TARGET), left[PASSED].kind == "file")
    return wanted, paths, found, installed.stopped_by(left[STOPPED].text)


def leaving(wanted: Settings, paths: Paths, running: Collection[str], then: Then) -> Away:
    """This host's servers as they are out of use, from the lists that lie beside the routers of other hosts.

    running: units.
    """
    routers: list[Router] = []
    listed: dict[str, str] = {}
    for other in fleet.routers():
        with ctx_host.use(other):
            router, text = _router(other)
        if router:
            routers.append(router)
            listed |= routing.listed(text)
    own: dict[str, str] = {}
    if routers and running:
        addresses = members.addresses(host.get_fact(Addresses))
        own = routing.of_host(listed, [address for every in addresses.values() for address in every])
    only = ("no other host has a router",) if ROUTER in running and not routers else ()
    return Away(
        own, only or routing.lone(listed, own), tuple(routers), f"{paths.bin}/pd-drain", wanted.stop_limit, then
    )


def _router(other: Host) -> tuple[Router | None, str]:
    """Of the host that is in context, and its list; None where nothing of it is installed there."""
    _, paths = place.here("remove")
    text, told = (host.get_fact(Text, path=path) for path in (paths.workers, paths.verify))
    if not text:
        return None, ""
    units = installed.read(host.get_fact(Units, units={}, target=TARGET), has_passed=True).running
    asked = json_object(told) or {}
    return Router(other, paths, str(asked.get("url")), asked.get("certificate_file"), units), text


def _asks(paths: Paths) -> tuple[str, str]:
    return f"{paths.bin}/pd-verify", paths.verify
