"""What passed last: kept once the service has answered right, gone back to where a change fails."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence

from pyinfra import host, state
from pyinfra.api import Host, State, StringCommand, operation

from tasks.facts.passed import Passed
from tasks.operations.progress import ask, follow_gates, run_and_log, say
from tasks.plan.phases import passed
from tasks.plan.plan import Plan
from tasks.plan.service.paths import RESUME
from tasks.support import summary


@operation()
def kept(plan: Plan) -> Generator[StringCommand, None, None]:
    """Scripts, units, environment files, tools and links are kept as they are: with them the service answered right."""
    if not state.is_executing:
        host.noop("kept once the service has answered")
        return
    found = host.get_fact(Passed, words=passed.words(plan, "check", "--unit", RESUME))
    if found.get("same") is True:
        if found.get("resuming"):
            ask(host, passed.disarming())  # this run's own, or what it took over: nothing is to come back any more
        host.noop("what passed last is what runs")
        return
    yield StringCommand(f"{passed.disarming()}; {shlex.join(passed.words(plan, 'keep'))}")


def ready_or_back(state: State, host: Host, plan: Plan, units: Mapping[str, str], limit: int) -> bool:
    """As follow_gates; where a gate fails the change is taken back."""
    return follow_gates(state, host, units, limit) or taken_back(state, host, plan, ())


def taken_back(state: State, host: Host, plan: Plan, faults: Sequence[str]) -> bool:
    """Always False: what failed, and whether the service runs again as it last passed."""
    for fault in faults:
        say(host, fault, "red")
    if run_and_log(state, host, passed.restoring(plan)):
        say(host, "the change failed and is taken back: the service runs as it last passed", "yellow")
        summary.taken_back(host)
    else:
        say(host, "the change failed and is not taken back, for the reason above", "red")
    return False
