"""Which release: one that "auto" finds, an environment that is there already, a pin that holds the host on another."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy, warning
from tasks.plan.release import choice, existing, lock


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
    "release/transfer/there",
    "plan",
    judges="the environment has what transfer_backend names",
    source="no lock holds Mooncake: on CUDA 13 its wheel wants libcudart.so.12",
    settings=("transfer_backend",),
    ask="PYTHON -m pip list | grep -i mooncake",
)
def transfer(found: Found) -> Verdict:
    release, backend = found.plan.release, found.settings.transfer_backend
    if backend == "nixl":
        return healthy("NIXL is part of every release")
    pinned = () if release.existing else lock.read_all({"lock": release.lock})
    there = release.existing.servers.packages if release.existing else [pin.name for pin in pinned]
    packages = [name for name in there if name.startswith("mooncake-transfer-engine")]
    if not packages:
        where = release.existing.servers.python if release.existing else f"release {release.manifest.name}"
        return error(
            f'setting transfer_backend = "{backend}": {where} holds no mooncake-transfer-engine',
            'set it to "nixl", or bring an environment that has it (environment = "existing")',
        )
    return healthy(f"{packages[0]} is there")


@check(
    "release/pin/holds",
    "plan",
    judges="the release that serves is the one that the settings ask for; a warning where a rollback has pinned the "
    "host to another",
    source="docs/releases.md: without a pin the next run would undo a rollback",
    settings=("rollback", "unpin"),
    ask="cat /etc/sglang-pd/pin.json",
)
def none(found: Found) -> Verdict:
    pin, asked = found.plan.pin, found.plan.asked
    if pin is None or asked is None:
        return healthy("not pinned")
    return warning(
        f"the host is {pin.told}; the settings ask for {asked.id}",
        "to go on to that one, run with --data unpin=True",
    )
