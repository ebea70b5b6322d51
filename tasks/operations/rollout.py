"""Servers of several hosts restart one at a time: out of the router's file, drained, restarted, gated, back."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Sequence

from pyinfra.api import Host, State, StringCommand

from tasks.operations.passed import ready_or_back, taken_back
from tasks.operations.progress import run_and_log, say
from tasks.operations.upload import sent
from tasks.plan.fleet.rollout import turns as in_turns
from tasks.plan.phases import passed
from tasks.plan.phases.routing import workers_file
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Instance
from tasks.plan.service.restarts import restarting
from tasks.support.connection import way
from tasks.support.fleet import Rollout

ROUTER_LIMIT = 30  # seconds in which a router follows its file, at which it looks every 2 s


def restarted(
    state: State,
    host: Host,
    plan: Plan,
    rollout: Rollout,
    restart: Sequence[Instance],
    serving: Sequence[str],
    limit: int,
) -> bool:
    """False where a server does not come up: then those that wait for their turn stay as they are."""
    together = rollout.at_once
    if together is not None:
        if together:
            say(host, together, "yellow")
        return _start(state, host, plan, tuple(restart), serving, limit)
    turns = in_turns(restart, plan)
    for workers in turns:
        with rollout.turn:
            if rollout.halted:
                say(host, f"{_names(workers)}: no change, since {rollout.halted}", "red")
                return False
            # also where the way onto the host breaks, which raises
            rollout.halted = f"{_names(workers)} of {host.name} did not get through with it"
            if not _in_turn(state, host, plan, rollout, workers, serving, limit, last=workers is turns[-1]):
                return False
            rollout.halted = ""
    return True


def _names(workers: Sequence[Instance]) -> str:
    return " and ".join(worker.name for worker in workers)


def _in_turn(
    state: State,
    host: Host,
    plan: Plan,
    rollout: Rollout,
    workers: tuple[Instance, ...],
    serving: Sequence[str],
    limit: int,
    *,
    last: bool,
) -> bool:
    """last: of the servers that restart on this host."""
    out = [worker for worker in workers if worker.unit in serving]
    if not out:
        return _start(state, host, plan, workers, serving, limit)
    urls = {worker.url for worker in out}
    left = {one.role for one in plan.served if one.url not in urls}
    lone = [worker for worker in out if worker.role not in left]
    began = time.monotonic()
    for worker in lone:
        say(host, f"{worker.name} is the only {worker.role}: no request is answered until it is back", "yellow")
    routers = [(one, of_router, _count(one, of_router)) for one, of_router in rollout.routers]
    # without the last of a role a router has no count to tell
    written = [
        _route(host, one, of_router, urls, count - len(urls) if count and not lone else None)
        for one, of_router, count in routers
    ]
    if not all(written):
        say(host, f"{_names(workers)}: no change, since a router still sends requests there", "red")
        for one, of_router, _ in routers:
            _route(host, one, of_router, (), None)
        return False
    for url in sorted(urls):
        drain = ["server", "--url", url, "--limit", str(plan.settings.stop_limit)]
        run_and_log(state, host, shlex.join([f"{plan.paths.bin}/pd-drain", *drain]))
    good = _start(state, host, plan, workers, serving, limit)
    for one, of_router, count in routers:
        _route(host, one, of_router, (), count)
    took = f"{time.monotonic() - began:.0f} s"
    say(host, f"no request was answered for {took}" if lone else f"{_names(workers)} was away for {took}")
    # through a router that does not run, nothing is answered: it comes up after the servers
    answering = [(one, of_router) for one, of_router, count in routers if count is not None]
    return good and _passed(state, host, plan, answering[:1], last=last)


def _passed(state: State, host: Host, plan: Plan, routers: Sequence[tuple[Host, Plan]], *, last: bool) -> bool:
    """Right answers through a router with this server behind it again; then its change stays, however the run ends."""
    for router_host, of_router in routers:
        asked = [f"{of_router.paths.bin}/pd-verify", "--config", of_router.paths.verify]
        right, output = router_host.run_shell_command(StringCommand(shlex.join(asked)), **way(router_host))
        if not right:
            lines = [line.strip() for line in (*output.stderr_lines, *output.stdout_lines)]
            said = [line for line in lines if line.startswith(("FAIL ", "why: "))] or lines[-1:]
            return taken_back(state, host, plan, [f"asked through {router_host.name}: {' '.join(said)}"])
    # Files are kept of a host as a whole: not while a change of its router, or of its next server, is not tried yet.
    if plan.router or not last:
        return True
    return run_and_log(state, host, f"{passed.disarming()}; {shlex.join(passed.words(plan, 'keep'))}")


def _start(
    state: State,
    host: Host,
    plan: Plan,
    workers: tuple[Instance, ...],
    serving: Sequence[str],
    limit: int,
) -> bool:
    commands = (passed.arming(plan, serving), restarting(workers))
    return all(run_and_log(state, host, command) for command in commands) and ready_or_back(
        state, host, plan, {worker.name: worker.unit for worker in workers}, limit
    )


def _route(host: Host, router_host: Host, plan: Plan, without: Collection[str], count: int | None) -> bool:
    """Write the file of a router, and wait until it has followed. host: whose turn it is, for what is said.

    False where the file could not be written. without: URLs of servers that get no requests. count: of the servers that
    the router then has, where it is known.
    """
    file = workers_file(plan, without)
    assert file is not None
    upload, arguments = sent(file.content, f"{file.path}.new"), way(router_host)
    new, owner = shlex.quote(f"{file.path}.new"), shlex.quote(f"{file.owner}:{file.group}")
    put = f"chown {owner} {new} && chmod {file.mode} {new} && mv -fT {new} {shlex.quote(file.path)}"
    if without:  # should this run break off meanwhile, the server comes back into the file
        put = f"{{ {passed.arming(plan, [one.unit for one in plan.instances])}; }} && {put}"
    good, output = router_host.run_shell_command(upload, **{**arguments, **upload.connector_arguments})
    if good:
        good, output = router_host.run_shell_command(StringCommand(put), **arguments)
    written = good
    if good and count is not None:
        waits = StringCommand(shlex.join([*_ask(plan, ROUTER_LIMIT), "--servers", str(count)]))
        good, output = router_host.run_shell_command(waits, **arguments)
    if not good:
        say(host, f"{router_host.name}, {file.path}: {' '.join(output.stderr_lines)[-240:]}", "yellow")
    return bool(written)


def _count(router_host: Host, plan: Plan) -> int | None:
    """How many servers a router has now; None where it does not tell."""
    _, output = router_host.run_shell_command(StringCommand(shlex.join(_ask(plan, 1))), **way(router_host))
    told = "".join(output.stdout_lines[-1:])
    return int(told) if told.isdecimal() else None


def _ask(plan: Plan, limit: int) -> list[str]:
    assert plan.router is not None
    words = [f"{plan.paths.bin}/pd-drain", "router", "--url", plan.router.url, "--limit", str(limit)]
    return [*words, "--certificate", plan.paths.executed_tls] if plan.router.scheme == "https" else words
