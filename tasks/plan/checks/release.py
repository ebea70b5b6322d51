"""Which release: one that "auto" finds, an environment that is there already, a pin that holds the host on another."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy, warning
from tasks.plan.release import choice, existing


@check(
    choice.CHECK,
    "hardware",
    judges='with release = "auto": driver, GPUs, Python and glibc can run one of the releases; where none fits, there '
    "is nothing to plan with",
    source="manifests of the releases for GPUs",
    settings=("release", "python"),
    ask="nvidia-smi --query-gpu=driver_version,compute_cap --format=csv",
    never_silenced=True,
)
def auto(found: Found) -> Verdict:
    if found.settings.release != choice.AUTO:
        return healthy(f"setting release names {found.settings.release}")
    return healthy(f'release "auto" is {found.manifest.name}')


@check(
    existing.CHECK,
    "plan",
    judges='with environment = "existing": Python, packages, torch\'s CUDA and router are those of the release',
    source="the release's manifest: versions that fit together",
    settings=("environment", "existing_python", "existing_router_python", "existing_paths"),
    ask="PYTHON -m pip list",
)
def fits(found: Found) -> Verdict:
    release = found.plan.release
    if release.existing is None:
        return healthy("built here from the release's locks")
    name = release.existing.servers.python
    lines = existing.misfits(release.existing, release.manifest, release.router)
    if lines:
        return error(
            f"{name} is not what release {release.manifest.name} says: {'; '.join(lines)}",
            "install these versions there, or choose the release that fits",
            *lines,
        )
    return healthy(f"{name} holds what release {release.manifest.name} says")


@check(
    "release/pin/none",
    "plan",
    judges="a rollback's pin that holds the host on another release than the settings ask for: warning",
    source="docs/releases.md: without a pin the next run would undo a rollback",
    settings=("rollback", "unpin"),
    ask="cat /etc/sglang-pd/pin.json",
)
def none(found: Found) -> Verdict:
    pin, asked = found.plan.pin, found.plan.asked
    if pin is None or asked is None:
        return healthy("not pinned")
    return warning(
        f"{pin.told}; the settings ask for {asked.id}",
        "to go on to that one, run with --data unpin=True",
    )
