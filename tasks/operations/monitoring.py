"""What watches the service: started, and taken away."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence

from pyinfra import host, state
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.facts.monitoring import Unseen
from tasks.operations.apt import apt_get
from tasks.operations.progress import ask, say
from tasks.plan.phases import monitoring

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def running(reasons: Mapping[str, str]) -> Commands:
    """Daemons that run what is wanted. reasons: unit -> why it (re)starts."""
    if not reasons:
        host.noop("every daemon runs as wanted")
        return
    for unit, reason in reasons.items():
        say(host, f"{unit}: {reason}")
    units = shlex.join(reasons)
    yield StringCommand(
        f"systemctl daemon-reload; systemctl reset-failed {units} 2>/dev/null; systemctl restart {units}"
    )


@operation()
def seen(check: Sequence[str]) -> Commands:
    """Prometheus sees every target and evaluates every rule. check: the command that asks it, and waits."""
    if not state.is_executing:
        host.noop("asked once it runs")
        return
    faults: list[str] = host.get_fact(Unseen, words=list(check))
    if not faults:
        host.noop("every target is up, every rule is evaluated")
        return
    for line in faults:
        say(host, line, "red")
    yield StringCommand("exit 1")


@operation()
def removed(units: Sequence[str]) -> Commands:
    """Units with their files and packages. What Prometheus has collected stays, as apt leaves it."""
    paths = monitoring.belongings(units)
    folders = [monitoring.drop_in(unit).rpartition("/")[0] for unit in units if unit in monitoring.DAEMONS]
    if monitoring.PROMETHEUS in units:
        say(host, "Prometheus goes; what it has collected stays in /var/lib/prometheus")
    # one by one: of several it disables none where one is not there
    yield StringCommand(f"for unit in {shlex.join(units)}; do systemctl disable -q --now $unit 2>/dev/null; done; true")
    if packages := monitoring.packages_of(units):
        yield FunctionCommand(_packages_removed, [packages], {})
    # after the packages: without our files their units would listen on every address
    gone = f"rmdir --ignore-fail-on-non-empty {shlex.join(folders)} 2>/dev/null" if folders else "true"
    yield StringCommand(f"rm -rf {shlex.join(paths)}; {gone}; systemctl daemon-reload")


def _packages_removed(state: State, host: Host, packages: Sequence[str]) -> bool:
    """Those that dpkg has: where a repository never answered, apt does not know its package, and removes none."""
    found = ask(
        host,
        f"dpkg-query -W -f '${{db:Status-Status}} ${{Package}}\\n' {shlex.join(packages)} 2>/dev/null | "
        "grep -vE '^(not-installed|config-files) ' | cut -d ' ' -f 2",
    ).split()
    there = [name for name in packages if name in found]
    return not there or apt_get(state, host, ["remove", *there])
