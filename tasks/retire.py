"""Releases that nothing goes back to any more; the one that serves and the one before it stay."""

from __future__ import annotations

from pyinfra.api import deploy

from tasks.operations import release
from tasks.plan.plan import Plan


@deploy("Retire")
def releases(plan: Plan) -> None:
    paths, history = plan.paths, plan.history
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
        user=plan.settings.service_user,
        leftovers=history.leftovers,
    )
