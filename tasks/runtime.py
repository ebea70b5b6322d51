"""The release: built from locks and patches into a folder of its own, repaired where it was changed, or adopted."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.operations import files, passed, release
from tasks.plan.files import FoundPaths, WantedFile, to_json
from tasks.plan.phases import runtime as planned
from tasks.plan.plan import Plan
from tasks.support import catalogue


@deploy("Runtime")
def build(plan: Plan) -> None:
    tools = catalogue.placed_tools(plan.paths.bin)
    if plan.release.existing:
        _adopt(plan, tools)
    else:
        _build(plan, tools)


def _build(plan: Plan, tools: list[WantedFile]) -> None:
    uv, spec, patches = planned.uv_lock(plan), planned.build_spec(plan), planned.patch_list_file(plan)
    lock, router_lock = planned.lock_files(plan)
    placed = [uv, lock, router_lock, *([patches] if patches else []), spec, planned.description(plan)]
    metadata = planned.uv_metadata(plan)
    found = host.get_fact(Paths, paths=[metadata, plan.paths.passed, *(file.path for file in (*tools, *placed))])

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


def _adopt(plan: Plan, tools: list[WantedFile]) -> None:
    parts = plan.release.folders
    links = [f"{plan.release_directory}/{name}" for name in parts]
    found = host.get_fact(Paths, paths=[*links, plan.paths.passed, *(file.path for file in tools)])

    _kept(plan, tools, found)
    files.files(name=f"Tools in {plan.paths.bin}", wanted=tools, found=found)
    release.adopted(
        name=f"Release {plan.release.id}",
        directory=plan.release_directory,
        description=to_json(planned.mark(plan)),
        parts=parts,
        found=found,
    )


def _kept(plan: Plan, tools: list[WantedFile], found: FoundPaths) -> None:
    """Before the first change of what servers are started from."""
    needed = found[plan.paths.passed].kind == "absent"
    passed.as_found(name="What serves is kept as found", plan=plan, needed=needed, tools=tools)
