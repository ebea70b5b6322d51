"""Units of systemd: known, enabled, running what is wanted, bound as planned."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence

from pyinfra import host, state
from pyinfra.api import FunctionCommand, StringCommand, operation

from tasks.facts.cached import Cached
from tasks.facts.listeners import Listeners
from tasks.facts.processes import Bindings
from tasks.operations.passed import ready_or_back, taken_back
from tasks.operations.progress import say
from tasks.operations.rollout import restarted
from tasks.plan.errors import PlanError
from tasks.plan.phases.passed import arming
from tasks.plan.plan import Plan
from tasks.plan.service import bindings, caches
from tasks.plan.service import listening as sockets
from tasks.plan.service.instances import Instance
from tasks.plan.service.paths import UNITS
from tasks.plan.service.restarts import restarting
from tasks.plan.service.strays import Stray
from tasks.support import summary
from tasks.support.fleet import Rollout

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def retired(plan: Plan, units: Mapping[str, Sequence[str]], serving: Sequence[str]) -> Commands:
    """Units of an earlier plan: stopped and taken away, so that they hold no port and no GPU.

    units: unit name -> its files. serving: units that ran before this run.
    """
    if not units:
        host.noop("no unit is left over")
        return
    for unit in units:
        say(host, f"{unit}: ends and goes, the plan has no such unit")
    yield StringCommand(arming(plan.paths, serving))
    yield StringCommand(f"systemctl disable -q --now {shlex.join(units)}")
    files = [file for of_unit in units.values() for file in of_unit]
    yield StringCommand(f"rm -f {shlex.join(files)} && systemctl daemon-reload")


@operation()
def started(unit: str, running: bool) -> Commands:
    """A unit that takes up changes of its files by itself."""
    if running:
        host.noop(f"{unit} is running")
        return
    yield StringCommand(f"systemctl start {shlex.quote(unit)}")


# ended PID COMMAND: only the process that was seen; another one can have got its number.
ENDED = r"""
said() { { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | LC_ALL=C tr -c ' -~' '?' | cut -c1-160 |
  sed 's/^ *//; s/ *$//'; }
gone() { case $(cut -d')' -f2 "/proc/$1/stat" 2>/dev/null) in "" | " Z"*) ;; *) false ;; esac; }
ended() { [ "$(said "$1")" = "$2" ] || return 0
  kill "$1"; for _ in $(seq 100); do ! gone "$1" || return 0; sleep 0.2; done; kill -KILL "$1"; }
"""


@operation()
def ended(strays: Sequence[Stray]) -> Commands:
    """Servers that no unit has: asked to end, and killed after 20 s."""
    if not strays:
        host.noop("no process holds what the servers need")
        return
    for stray in strays:
        say(host, f"pid {stray.pid} ({stray.command}) holds {stray.holds} outside every unit: ends", "yellow")
    calls = [f"ended {stray.pid} {shlex.quote(stray.command)}" for stray in strays]
    yield StringCommand("\n".join([ENDED, *calls]))


@operation()
def as_written(drop_ins: Sequence[str]) -> Commands:
    """Nothing is laid over single units of ours: what they say is all that holds.

    drop_ins: paths in folders such as /etc/systemd/system/UNIT.d.
    """
    if not drop_ins:
        host.noop("no drop-in is laid over a unit")
        return
    for path in drop_ins:
        say(host, f"{path}: a drop-in made by hand goes; use the settings, or {UNITS}/service.d for every service")
    folders = sorted({path.rpartition("/")[0] for path in drop_ins})
    yield StringCommand(f"rm -rf {shlex.join(folders)} && systemctl daemon-reload")


@operation()
def reloaded(needed: bool) -> Commands:
    """systemd has read the unit files on disk, also where nobody of ours wrote them."""
    if not needed:
        host.noop("systemd knows the unit files")
        return
    yield StringCommand("systemctl daemon-reload")


@operation()
def enabled(unit: str, wanted: bool, found: bool) -> Commands:
    """Whether a unit starts at boot."""
    if wanted == found:
        host.noop(f"{unit} is {'enabled' if found else 'disabled'}")
        return
    yield StringCommand(f"systemctl {'enable' if wanted else 'disable'} -q {shlex.quote(unit)}")


@operation()
def running(
    plan: Plan,
    instances: tuple[Instance, ...],
    needs: tuple[Instance, ...],
    reasons: Mapping[str, str],
    waiting: Sequence[str],
    serving: Sequence[str],
    limit: int,
    rollout: Rollout | None = None,
    last: bool = False,
) -> Commands:
    """Servers that run what is wanted, each behind its gate. Where one fails, what passed last comes back.

    needs: instances that must be ready before these start; fails closed where one is not, whatever was answered
    to a prompt. reasons: instance name -> why it (re)starts. waiting: those whose gate is still open.
    serving: units that ran before this run. rollout: of a service of several hosts. last: what waited for all others.
    """
    restart = [instance for instance in instances if instance.name in reasons]
    follow = tuple(instance for instance in instances if instance.name in reasons or instance.name in waiting)
    if not follow:
        host.noop(f"{', '.join(instance.name for instance in instances) or 'nothing'}: running as wanted")
        return
    waits = bool(state.is_executing and rollout and restart and plan.router and rollout.at_once is None)
    if last is not waits:
        host.noop("its turn comes after those of other hosts" if waits else "nothing waited for its turn")
        return
    for instance in restart:
        say(host, f"{instance.name}: {reasons[instance.name]}")
        summary.restarts(host, instance.name, reasons[instance.name])
    if rollout and restart:
        yield FunctionCommand(restarted, [plan, rollout, restart, serving, limit], {})
        if len(restart) < len(follow):
            yield FunctionCommand(ready_or_back, [plan, {one.name: one.unit for one in follow}, limit], {})
        return
    # One command: no way of running operations may start a server whose needs are not met.
    start = [
        f"systemctl is-active -q {shlex.quote(need.unit)} || {{ echo {_unmet(need, follow)} >&2; exit 1; }}"
        for need in needs
    ]
    if restart:
        start.append(restarting(restart))
        yield StringCommand(arming(plan.paths, serving))
    if start:
        yield StringCommand("; ".join(start))
    yield FunctionCommand(ready_or_back, [plan, {one.name: one.unit for one in follow}, limit], {})


def _unmet(need: Instance, waiting: Sequence[Instance]) -> str:
    names = ", ".join(instance.name for instance in waiting)
    return shlex.quote(f"{need.name} is not ready ({need.unit}): {names} will not start without it")


@operation()
def warmed(plan: Plan, started: Sequence[Instance]) -> Commands:
    """Tells what servers compiled at their start, which was not compiled ahead: files new in the release's cache.

    started: servers that this run starts.
    """
    if not started:
        host.noop("no server was started")
        return
    if not state.is_executing:
        host.noop("counted once the servers run")
        return
    cache, units = plan.paths.release_cache(plan.release.id), [one.unit for one in started]
    files = host.get_fact(Cached, cache=cache, user=plan.settings.service_user, units=units)
    if files is None:
        host.noop("systemd does not tell when the servers started")
        return
    summary.compiled(host, files)
    say(host, caches.told(files))
    host.noop("counted")
    yield from ()  # pyinfra wants a generator


@operation()
def listening(plan: Plan) -> Commands:
    """No process of a unit takes connections where it is not planned, unless the unit's filter closes that."""
    if not state.is_executing:
        host.noop("looked at once the servers run")
        return
    sections = host.get_fact(Listeners, units=[instance.unit for instance in plan.instances])
    try:
        verdict = sockets.judge(sections, plan.instances, plan.settings)
    except PlanError as fault:
        verdict = sockets.Verdict(fault.lines, (), 0)
    accepted = plan.settings.silenced_checks.get(sockets.ID)
    for line in verdict.faults if accepted else ():
        say(host, f"silenced ({accepted}): {line}", "yellow")
    if accepted or not verdict.faults:
        shut = f", {len(verdict.closed)} wider and closed by the filter: {'; '.join(verdict.closed)}"
        host.noop(f"{verdict.seen} sockets, on the planned addresses{shut if verdict.closed else ''}")
        return
    lines = [*verdict.faults, f"{sockets.ID}: docs/security.md says what to do"]
    yield FunctionCommand(taken_back, [plan, lines], {})


@operation()
def bound(plan: Plan) -> Commands:
    """CPUs, memory policy and GPUs of the servers' processes are the planned ones."""
    if not state.is_executing:
        host.noop("compared once the servers run")
        return
    sections = host.get_fact(Bindings, units=[worker.unit for worker in plan.workers])
    verdict = bindings.judge(sections, plan.workers, plan.hardware, plan.system.cpus_online, plan.on_gpu)
    for line in verdict.unknown:
        say(host, f"not checked, {line}", "yellow")
    if not verdict.faults:
        host.noop("bound as planned")
        return
    yield FunctionCommand(taken_back, [plan, verdict.faults], {})
