"""The service as it lies on a host: stopped, started, asked."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.operations.progress import follow_gates, say
from tasks.operations.upload import sent
from tasks.operations.verify import all_right
from tasks.plan.files import WantedFile
from tasks.plan.phases.passed import disarming
from tasks.plan.service.installed import ROUTER, Installed
from tasks.plan.service.paths import KEPT, STOPPED, TARGET
from tasks.support import summary

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def stopped(installed: Installed, told: WantedFile, already: str) -> Commands:
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
    yield StringCommand(f"systemctl stop {shlex.join(installed.units)}")
    yield StringCommand(f"systemctl stop {TARGET} 2>/dev/null; true")
    yield FunctionCommand(_say, [f"stopped, also over a reboot: {', '.join(installed.names)}"], {})


@operation()
def started(installed: Installed, at_boot: bool, limit: int, tool: str, config: str, again: bool) -> Commands:
    """Every server behind its gate, and every answer right.

    at_boot: the setting start_on_boot. limit: seconds for a gate. again: those that run restart.
    """
    if not again and installed.is_running:
        say(host, f"runs already: {', '.join(installed.names)}")
    for command in starting(installed, at_boot, again):
        yield StringCommand(command)
    yield FunctionCommand(_comes_up, [installed.names, limit, tool, config], {})


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
def asked(tool: str, config: str) -> Commands:
    """Every question with a known answer, through the router."""
    yield FunctionCommand(all_right, [tool, config], {})


def _comes_up(state: State, host: Host, units: Mapping[str, str], limit: int, tool: str, config: str) -> bool:
    workers = {name: unit for name, unit in units.items() if unit != ROUTER}
    router = {name: unit for name, unit in units.items() if unit == ROUTER}
    if not all(follow_gates(state, host, group, limit) for group in (workers, router)):
        return False
    if router:
        return all_right(state, host, tool, config)
    return _say(state, host, f"ready for the router on another host: {', '.join(workers)}")


def _say(state: State, host: Host, line: str) -> bool:
    summary.last(host, line, "green")
    return True
