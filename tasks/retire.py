"""Releases that nothing goes back to any more: the one that serves and the one before it stay. Of a fetched model's
revisions only the one that has answered."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.history import Lying
from tasks.operations import files, model, release
from tasks.plan.phases import retire as planned
from tasks.plan.plan import Plan


@deploy("Retire")
def releases(plan: Plan) -> None:
    paths, history, user = plan.paths, plan.history, plan.settings.service_user
    superseded = history.superseded(plan.release.id, plan.pin)
    release.served(
        name=f"Release {plan.release.id} has served",
        mark=f"{plan.release_directory}/served",
        found=plan.release.id in history.served,
    )
    release.removed(
        name="No older releases",
        releases=paths.releases,
        unwanted={old: paths.belongings(old) for old in superseded},
        caches={old: paths.release_cache(old) for old in superseded},
        user=user,
        leftovers=history.leftovers,
    )
    lying: list[str] = host.get_fact(Lying, folders=planned.looked_into(plan))
    of_root, of_user = planned.leftovers(plan, lying)
    files.swept(name="No leftovers of earlier runs", paths=of_root, theirs=of_user, user=user)
    if plan.fetches:
        unwanted = [f"{paths.models}/{name}" for name in plan.kept.superseded]
        model.superseded(name="No other revision of the model", unwanted=unwanted, owner=user)
