"""Everything of ours off a host; models that were fetched stay, and so does what is not ours.

make remove HOST=NAME NAME=NAME     docs/parts.md
"""

from __future__ import annotations

from pyinfra import host

from tasks import upkeep
from tasks.facts.paths import Paths
from tasks.facts.units import Units
from tasks.operations import monitoring as daemons
from tasks.operations import removal as operations
from tasks.operations.routes import Then
from tasks.plan.phases import monitoring
from tasks.plan.service.paths import TARGET
from tasks.plan.service.removal import brought, confirmed, removal
from tasks.plan.service.restarts import DOWN, own_units
from tasks.support import fleet, lock, place, refusal


def everything() -> None:
    with refusal.in_one_line():
        confirmed(host.name, host.data.get("remove"))
        wanted, paths = place.here("remove")
        lock.take(wanted, fleet.routers())
        units = own_units(host.get_fact(Units, units={}, target=TARGET))
        running = [unit for unit, state in units.items() if state not in DOWN]
        planned = removal(paths, sorted(units), brought(paths, wanted))
        there = planned.there(
            host.get_fact(Paths, paths=planned.asked, user=wanted.service_user, theirs=list(planned.of_user))
        )
        if watching := monitoring.there(host.get_fact(Paths, paths=monitoring.belongings())):
            daemons.removed(name="No monitoring", units=watching)
        operations.removed(
            name=f"Nothing of ours on {host.name}",
            there=there,
            models=paths.models,
            user=wanted.service_user,
            away=upkeep.leaving(wanted, paths, running, Then.LEAVE),
        )
