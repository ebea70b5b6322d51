"""The release: built from locks and patches into a folder of its own, repaired where it was changed, or adopted."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.facts.release import ReleaseState
from tasks.operations import files, release
from tasks.plan.files import WantedFile
from tasks.plan.plan import Plan
from tasks.support import catalogue


@deploy("Runtime")
def build(plan: Plan) -> None:
    tools = [WantedFile(f"{plan.paths.bin}/{name}", content, "755") for name, content in catalogue.tools().items()]
    if plan.release.existing:
        _adopt(plan, tools)
    else:
        _build(plan, tools)


def _build(plan: Plan, tools: list[WantedFile]) -> None:
    patches = [plan.patches_file] if plan.patches_file else []
    placed = [*tools, plan.uv_lock, *plan.lock_files, *patches, plan.build_spec, plan.description]
    found = host.get_fact(Paths, paths=[plan.uv_metadata, *(file.path for file in placed)])
    lock, router_lock = plan.lock_files
    state = host.get_fact(ReleaseState, directory=plan.release_directory, lock=lock.path, router_lock=router_lock.path)

    for file in placed:
        files.file(name=f"File {file.path}", wanted=file, found=found[file.path])
    release.uv(
        name="Package installer uv",
        spec=plan.build_spec.path,
        tool=f"{plan.paths.bin}/pd-build",
        installed=found[plan.uv_metadata].kind == "file",
    )
    release.built(
        name=f"Release {plan.release.id}",
        directory=plan.release_directory,
        spec=plan.build_spec.path,
        tool=f"{plan.paths.bin}/pd-build",
        found=state,
    )


def _adopt(plan: Plan, tools: list[WantedFile]) -> None:
    parts = plan.release.folders
    links = [f"{plan.release_directory}/{name}" for name in parts]
    found = host.get_fact(Paths, paths=[*links, *(file.path for file in tools)])

    for file in tools:
        files.file(name=f"File {file.path}", wanted=file, found=found[file.path])
    release.adopted(
        name=f"Release {plan.release.id}",
        directory=plan.release_directory,
        description=plan.description.content,
        parts=parts,
        found=found,
    )
