"""The finished release, checked, then made current in one step."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.operations import release
from tasks.plan.playbook import Plan


@deploy("Activate")
def switch(plan: Plan) -> None:
    link = plan.paths.current
    found = host.get_fact(Paths, paths=[link])
    release.current(
        name=f"Current release is {plan.release.id}",
        directory=plan.release_directory,
        link=link,
        found=found[link].target,
        checks=plan.release_checks,
    )
