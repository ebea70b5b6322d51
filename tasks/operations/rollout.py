"""Servers of several hosts restart one at a time: out of the router's file, drained, restarted, gated, back."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial

from pyinfra.api import Host, State

from tasks.operations.passed import ready_or_back, taken_back
from tasks.operations.progress import run_and_log, say
from tasks.operations.routes import Away, Router, out_of_use
from tasks.plan.fleet.rollout import turns as in_turns
from tasks.plan.phases import passed
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Instance
from tasks.plan.service.restarts import restarting
from tasks.support.fleet import Rollout


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
    return all(
        in_turn(
            host,
            rollout,
            workers,
            partial(_in_turn, state, host, plan, rollout, workers, serving, limit, last=workers is turns[-1]),
        )
        for workers in turns
    )


def in_turn(host: Host, rollout: Rollout, workers: Sequence[Instance], act: Callable[[], bool]) -> bool:
    """Whether act, called while no other host has its turn, and every turn before went well."""
    names = " and ".join(worker.name for worker in workers)
    with rollout.turn:
        if rollout.halted:
            say(host, f"{names}: no change, since {rollout.halted}", "red")
            return False
        rollout.halted = f"{names} of {host.name} did not get through with it"  # also where act raises
        if not act():
            return False
        rollout.halted = ""
        return True


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
    away = leaving(plan, rollout, out)
    # through a router that does not run, nothing is answered: it comes up after the servers
    answering = [router for router in away.routers if router.count() is not None]
    restart = partial(_start, plan=plan, workers=workers, serving=serving, limit=limit)
    return out_of_use(state, host, away, restart) and _passed(state, host, plan, answering[:1], last=last)


def leaving(plan: Plan, rollout: Rollout, out: Sequence[Instance]) -> Away:
    """Servers of a host as they are out of use. out: those of them that serve."""
    urls = {worker.url for worker in out}
    left = {one.role for one in plan.served if one.url not in urls}
    return Away(
        servers={worker.url: worker.name for worker in out},
        lone=tuple(f"{worker.name} is the only {worker.role}" for worker in out if worker.role not in left),
        routers=tuple(
            Router(
                host,
                of_router.paths,
                of_router.router.url,
                of_router.paths.executed_tls if of_router.router.scheme == "https" else None,
                tuple(one.unit for one in of_router.instances),
            )
            for host, of_router in rollout.routers
            if of_router.router
        ),
        tool=f"{plan.paths.bin}/pd-drain",
        limit=plan.settings.stop_limit,
    )


def _passed(state: State, host: Host, plan: Plan, routers: Sequence[Router], *, last: bool) -> bool:
    """Right answers through a router with this server behind it again; then its change stays, however the run ends."""
    for router in routers:
        if fault := router.asked():
            return taken_back(state, host, plan, [fault])
    # Files are kept of a host as a whole: not while a change of its router, or of its next server, is not tried yet.
    if plan.router or not last:
        return True
    return run_and_log(state, host, f"{passed.disarming()}; {shlex.join(passed.words(plan.paths, 'keep'))}")


def _start(
    state: State,
    host: Host,
    plan: Plan,
    workers: tuple[Instance, ...],
    serving: Sequence[str],
    limit: int,
) -> bool:
    commands = (passed.arming(plan.paths, serving), restarting(workers))
    return all(run_and_log(state, host, command) for command in commands) and ready_or_back(
        state, host, plan, {worker.name: worker.unit for worker in workers}, limit
    )
