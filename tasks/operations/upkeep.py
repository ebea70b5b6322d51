"""The service as it lies on a host: stopped, started, asked."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.operations.progress import follow_gates, run_and_log, say
from tasks.operations.reboot import rebooted
from tasks.operations.routes import Away, Router, out_of_use
from tasks.operations.upload import sent
from tasks.operations.verify import all_right
from tasks.plan.errors import PlanError
from tasks.plan.files import WantedFile
from tasks.plan.phases.passed import arming, disarming
from tasks.plan.service.installed import ROUTER, Installed
from tasks.plan.service.paths import KEPT, STOPPED, TARGET, Paths
from tasks.support import lock, summary

Commands = Generator[StringCommand | FunctionCommand, None, None]
Asks = tuple[str, str]  # pd-verify and its config, on a host with a router


@operation()
def stopped(installed: Installed, told: WantedFile, already: str, away: Away) -> Commands:
    """No server runs, and none comes back by itself: neither at boot nor because a run of before broke off.

    told: the file that says who stopped it. already: who did so before, "" for nobody.
    """
    if already and not installed.running:
        summary.last(host, f"nothing runs: {already}")
        host.noop("stopped already")
        return
    yield StringCommand(f"install -d -m 700 {KEPT}")
    yield sent(told.content, f"{told.path}.new")
    yield StringCommand(f"chmod {told.mode} {told.path}.new && mv -fT {told.path}.new {told.path}")
    yield StringCommand(f"{disarming()}; systemctl disable -q {TARGET} 2>/dev/null; true")  # a half-made host has none
    # one command: systemd ends the router before its servers
    stop = f"systemctl stop {shlex.join(installed.units)} && {{ systemctl stop {TARGET} 2>/dev/null; true; }}"
    yield FunctionCommand(_out_of_use, [away, partial(run_and_log, command=stop)], {})
    yield FunctionCommand(_say, [f"stopped, also over a reboot: {', '.join(installed.names)}"], {})


@operation()
def started(installed: Installed, at_boot: bool, limit: int, asks: Asks, routers: Sequence[Router]) -> Commands:
    """Every server behind its gate, and every answer right.

    at_boot: the setting start_on_boot. limit: seconds for a gate. routers: of other hosts.
    """
    if installed.is_running:
        say(host, f"runs already: {', '.join(installed.names)}")
    for command in starting(installed, at_boot, again=False):
        yield StringCommand(command)
    yield FunctionCommand(_comes_up, [installed.names, limit, asks], {})
    yield FunctionCommand(_answers, [routers], {})


@operation()
def restarted(installed: Installed, at_boot: bool, limit: int, asks: Asks, away: Away) -> Commands:
    """As started; those that run restart."""

    def act(state: State, host: Host) -> bool:
        commands = starting(installed, at_boot, again=True)
        return all(run_and_log(state, host, command) for command in commands) and _comes_up(
            state, host, installed.names, limit, asks
        )

    yield FunctionCommand(_out_of_use, [away, act], {})
    yield FunctionCommand(_answers, [away.routers], {})


@operation()
def booted(
    installed: Installed, paths: Paths, limit: int, boot_limit: int, asks: Asks, already: str, away: Away
) -> Commands:
    """The host boots anew, and what ran before runs again, behind its gates.

    boot_limit: seconds. already: who stopped the service before, "" for nobody.
    """

    def act(state: State, host: Host) -> bool:
        arm = arming(paths, installed.running)  # should this run break off between the stop and the reboot
        if installed.running and not run_and_log(state, host, arm):
            return False
        if not rebooted(state, host, installed.running, boot_limit):
            return False
        try:
            lock.again(host)
        except PlanError as fault:
            summary.last(host, f"rebooted, but {fault}", "red")
            return False
        if not installed.running:
            return _say(state, host, f"rebooted; nothing runs, as before{f': {already}' if already else ''}")
        start = f"systemctl start --no-block {shlex.join(installed.running)} {TARGET}"  # also without start_on_boot
        up = {name: unit for name, unit in installed.names.items() if unit in installed.running}
        return run_and_log(state, host, start) and _comes_up(state, host, up, limit, asks)

    yield FunctionCommand(_out_of_use, [away, act], {})
    if installed.running:
        yield FunctionCommand(_answers, [away.routers], {})


def starting(installed: Installed, at_boot: bool, again: bool) -> tuple[str, ...]:
    """As for `started`. Also where all runs already nobody has stopped it: a stop that broke off may say so."""
    stays = f"rm -f {STOPPED}; systemctl {'enable' if at_boot else 'disable'} -q {TARGET}"
    if not again and installed.is_running:
        return (stays,)
    verb, named = "restart" if again else "start", shlex.join(installed.units)
    return (
        f"{disarming()}; {stays}",
        f"systemctl reset-failed {named} 2>/dev/null; systemctl {verb} --no-block {named} {TARGET}",
    )


@operation()
def asked(asks: Asks) -> Commands:
    """Every question with a known answer, through the router."""
    yield FunctionCommand(all_right, [*asks], {})


def _comes_up(state: State, host: Host, units: Mapping[str, str], limit: int, asks: Asks) -> bool:
    workers = {name: unit for name, unit in units.items() if unit != ROUTER}
    router = {name: unit for name, unit in units.items() if unit == ROUTER}
    if not all(follow_gates(state, host, group, limit) for group in (workers, router)):
        return False
    return all_right(state, host, *asks) if router else _say(state, host, f"ready: {', '.join(workers)}")


def _out_of_use(state: State, host: Host, away: Away, act: Callable[[State, Host], bool]) -> bool:
    """As out_of_use; nothing of the routers' hosts is to come back any more."""
    good = out_of_use(state, host, away, act)
    for router in away.routers:
        if router.units:
            router.disarm()
    return good


def _answers(state: State, host: Host, routers: Sequence[Router]) -> bool:
    """The service, asked through the router of another host, which has this host's servers again."""
    for router in routers:
        if router.count() is None:
            summary.last(host, f"not asked: the router on {router.host.name} does not run", "yellow")
            continue
        if fault := router.asked():
            summary.last(host, fault, "red")
            return False
        _say(state, host, f"every answer is right, asked through {router.host.name}")
    return True


def _say(state: State, host: Host, line: str) -> bool:
    summary.last(host, line, "green")
    return True
