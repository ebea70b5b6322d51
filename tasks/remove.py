"""Everything of ours off a host; models that were fetched stay, and so does what is not ours.

make remove HOST=NAME NAME=NAME     docs/parts.md
"""

from __future__ import annotations

from pyinfra import host

from tasks.facts.paths import Paths as PathsFact
from tasks.facts.units import Units
from tasks.operations import removal as operations
from tasks.plan.service.paths import TARGET, Paths
from tasks.plan.service.removal import confirmed, removal
from tasks.plan.service.restarts import own_units
from tasks.plan.settings import settings
from tasks.support import catalogue, lock, refusal


def everything() -> None:
    with refusal.in_one_line():
        data = host.data.dict()
        confirmed(host.name, data.pop("remove", None))
        wanted = settings.load(data)
        paths = Paths.of(wanted, catalogue.stated(wanted.model, wanted.model_dir, wanted.model_profiles))
        lock.take(wanted)
        units = sorted(own_units(host.get_fact(Units, units={}, target=TARGET)))
        planned = removal(paths, units)
        there = planned.there(
            host.get_fact(PathsFact, paths=planned.asked, user=wanted.service_user, theirs=list(planned.of_user))
        )
        operations.removed(
            name=f"Nothing of ours on {host.name}", there=there, models=paths.models, user=wanted.service_user
        )
