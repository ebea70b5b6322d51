"""The finished release, checked, then made current in one step. A rollback is pinned first."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.history import Text
from tasks.facts.paths import Paths
from tasks.operations import files, passed, release
from tasks.plan.phases import activate as planned
from tasks.plan.plan import Plan
from tasks.plan.release.history import package_changes
from tasks.plan.release.manifest import patch_changes


@deploy("Activate")
def switch(plan: Plan) -> None:
    paths, pin, kernels = plan.paths, planned.pin_file(plan), planned.jit(plan)
    mark = f"{paths.current}/release.json"
    compiled = paths.compiled(plan.release.id)
    found = host.get_fact(
        Paths,
        paths=[paths.current, paths.previous, paths.pin, mark],
        user=plan.settings.service_user,
        theirs=[compiled] if kernels else [],
    )
    previous, serving = plan.history.previous_once(plan.release.id), plan.history.current
    kept = host.get_fact(Text, path=paths.description(serving)) if serving not in ("", plan.release.id) else ""

    first = passed.before_changes(plan, planned.moves(plan, found))
    if pin:
        files.file(name=f"Pin {pin.path}", wanted=pin, found=found[pin.path], first=first)
    else:
        files.absent(name="No pin", path=paths.pin, found=found[paths.pin], first=first)
    if previous:
        release.linked(
            name=f"Previous release is {previous}",
            directory=f"{paths.releases}/{previous}",
            link=paths.previous,
            found=found[paths.previous].target,
            first=first,
        )
    release.passed(
        name="Release passes its checks",
        directory=plan.release_directory,
        current=found[paths.current].target,
        checks=planned.release_checks(plan),
    )
    if kernels:  # last: they compile while the release is checked
        release.compiled(
            name="Kernels compiled ahead", plan=plan, kernels=kernels, mark=compiled, found=found[compiled].text
        )
    release.linked(
        name=f"Current release is {plan.release.id}",
        directory=plan.release_directory,
        link=paths.current,
        found=found[paths.current].target,
        first=first,
        changes=[*package_changes(plan.release, kept), *patch_changes(plan.release.patches, found[mark].text)],
    )
