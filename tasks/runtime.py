"""The release: built from locks and patches into a folder of its own, repaired where it was changed, or adopted."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.operations import files, passed, release
from tasks.plan.files import FoundPaths, WantedFile, to_json
from tasks.plan.phases import activate
from tasks.plan.phases import runtime as planned
from tasks.plan.plan import Plan
from tasks.support import catalogue


@deploy("Runtime")
def build(plan: Plan) -> None:
    tools = catalogue.placed_tools(plan.paths.bin)
    kernels, mark = activate.jit(plan), plan.paths.compiled(plan.release.id)
    found = (_adopt if plan.release.existing else _build)(plan, tools, [mark] if kernels else [])
    if kernels:
        release.compiling(
            name="Kernels begin to compile", plan=plan, kernels=kernels, mark=mark, found=found[mark].text
        )


def _build(plan: Plan, tools: list[WantedFile], theirs: list[str]) -> FoundPaths:
    uv, spec, patches = planned.uv_lock(plan), planned.build_spec(plan), planned.patch_list_file(plan)
    lock, router_lock = planned.lock_files(plan)
    placed = [uv, lock, router_lock, *([patches] if patches else []), spec, planned.description(plan)]
    metadata = planned.uv_metadata(plan)
    paths = [metadata, plan.paths.passed, *(file.path for file in (*tools, *placed))]
    found = host.get_fact(Paths, paths=paths, user=plan.settings.service_user, theirs=theirs)

    _kept(plan, tools, found)
    files.files(name=f"Tools in {plan.paths.bin}", wanted=tools, found=found)
    files.files(name=f"Locks in {plan.paths.locks}", wanted=placed, found=found)
    release.uv(
        name="Package installer uv",
        spec=spec.path,
        tool=f"{plan.paths.bin}/pd-build",
        installed=found[metadata].kind == "file",
    )
    release.built(
        name=f"Release {plan.release.id}",
        directory=plan.release_directory,
        spec=spec.path,
        tool=f"{plan.paths.bin}/pd-build",
        found=plan.built,
    )
    return found


def _adopt(plan: Plan, tools: list[WantedFile], theirs: list[str]) -> FoundPaths:
    parts = plan.release.folders
    links = [f"{plan.release_directory}/{name}" for name in parts]
    paths = [*links, plan.paths.passed, *(file.path for file in tools)]
    found = host.get_fact(Paths, paths=paths, user=plan.settings.service_user, theirs=theirs)

    _kept(plan, tools, found)
    files.files(name=f"Tools in {plan.paths.bin}", wanted=tools, found=found)
    release.adopted(
        name=f"Release {plan.release.id}",
        directory=plan.release_directory,
        description=to_json(planned.mark(plan)),
        parts=parts,
        found=found,
    )
    return found


def _kept(plan: Plan, tools: list[WantedFile], found: FoundPaths) -> None:
    """Before the first change of what servers are started from."""
    needed = found[plan.paths.passed].kind == "absent"
    passed.as_found(name="What serves is kept as found", plan=plan, needed=needed, tools=tools)
