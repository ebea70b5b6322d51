"""What passed last: kept once the service has answered right, gone back to where a change fails."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from pyinfra import host, state
from pyinfra.api import Host, State, StringCommand, operation

from tasks.facts.passed import Passed
from tasks.facts.units import Units
from tasks.operations.progress import ask, follow_gates, run_and_log, say
from tasks.operations.upload import sent
from tasks.plan.files import WantedFile
from tasks.plan.phases import passed
from tasks.plan.plan import Plan
from tasks.plan.service.paths import KEPT, RESUME
from tasks.plan.service.restarts import FoundUnits, read_units
from tasks.support import summary


@operation()
def as_found(plan: Plan, needed: bool, tools: Sequence[WantedFile]) -> Generator[StringCommand, None, None]:
    """What serves is kept as it is found, before the first of it changes.

    needed: where no run has kept anything yet, such as on a host of an older playbook. tools: those of this playbook,
    which are not on the host yet.
    """
    config = passed.found_config(plan, _units(plan), [tool.path for tool in tools]) if needed else None
    if config is None:
        host.noop("nothing serves that was never kept" if needed else "runs keep what passed")
        return
    yield StringCommand(shlex.join(["install", "-d", "-m", "700", KEPT, passed.KEEPING]))
    own = [WantedFile(f"{passed.KEEPING}/{Path(t.path).name}", t.content) for t in tools if t.path.endswith(passed.OWN)]
    for file in (*own, config):
        yield sent(file.content, file.path)
    yield StringCommand(passed.keeping(config))


@operation()
def kept(plan: Plan) -> Generator[StringCommand, None, None]:
    """Scripts, units, environment files, tools and links are kept as they are: with them the service answered right."""
    if not state.is_executing:
        host.noop("kept once the service has answered")
        return
    found = host.get_fact(Passed, words=passed.words(plan.paths, "check", "--unit", RESUME))
    if found.get("same") is True:
        if found.get("resuming"):
            ask(host, passed.disarming())  # this run's own, or what it took over: nothing is to come back any more
        host.noop("what passed last is what runs")
        return
    yield StringCommand(f"{passed.disarming()}; {shlex.join(passed.words(plan.paths, 'keep'))}")


def ready_or_back(state: State, host: Host, plan: Plan, units: Mapping[str, str], limit: int) -> bool:
    """As follow_gates; where a gate fails the change is taken back."""
    return follow_gates(state, host, units, limit) or taken_back(state, host, plan, ())


def taken_back(state: State, host: Host, plan: Plan, faults: Sequence[str]) -> bool:
    """Always False: what failed, and whether the service runs again as it last passed."""
    for fault in faults:
        say(host, fault, "red")
    if run_and_log(state, host, passed.restoring(plan.paths)):
        say(host, "the change failed and is taken back: the service runs as it last passed", "yellow")
        summary.taken_back(host)
    else:
        say(host, "the change failed and is not taken back, for the reason above", "red")
    return False


def before_changes(plan: Plan, changes: bool) -> str:
    """The command to run before anything changes that servers are started from: with it, what serves comes back where
    this run breaks off. "" where nothing changes, or nothing serves."""
    serving = _units(plan).serving(plan.instances).units if changes else ()
    return passed.arming(plan.paths, serving) if serving else ""


def _units(plan: Plan) -> FoundUnits:
    return read_units(host.get_fact(Units, **plan.units), plan.instances, plan.target)
