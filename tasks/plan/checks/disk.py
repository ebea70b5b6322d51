"""Room for release and model."""

from __future__ import annotations

from tasks.plan.checks.registry import GB, Found, Verdict, check, error, healthy
from tasks.plan.plan import Plan

RELEASE_GB = {"cuda": 24.0, "cpu": 5.0}  # measured 9.4 and 1.7 installed, the package cache beside it, and one more

ROUTER_GB = 1.0  # the router's environment alone; a rule of thumb


def needs(plan: Plan) -> dict[str, float]:
    """GB that a first install writes, by folder."""
    release = RELEASE_GB[plan.release.manifest.device] if plan.settings.serves else ROUTER_GB
    needed = {plan.paths.root: release if plan.release.existing is None else 0.0}
    if plan.settings.serves and plan.profile.source.hub and not plan.brings_model:
        needed[plan.paths.state] = plan.profile.size_gb * 1.02
    return needed


def room(found: Found, setting: str, path: str, needed: float) -> Verdict:
    """Paths on one file system share it, which the smaller reading of two shows. setting: names path. needed: GB."""
    least = found.settings.minimum_free_disk_gb
    wanted = needed if least is None else least
    free = found.system.free_kib.get(path, 0) * 1024 / GB
    said = f"{path}: {free:.0f} GB free"
    if free < wanted:
        return error(
            f"{path} has {free:.0f} GB free, {wanted:.0f} GB are needed",
            f"make room, or set {setting} to a folder on another disk",
            said,
        )
    return healthy(f"{path} has {free:.0f} GB free, {wanted:.0f} GB are needed", said)


@check(
    "host/disk/release",
    "plan",
    judges="root_dir has room for the release, as long as it is not built",
    source="measured: 9.4 GB (CUDA) and 1.7 GB (CPU) installed, the package cache beside it, and one more",
    settings=("minimum_free_disk_gb", "root_dir"),
    ask="df -h",
)
def release(found: Found) -> Verdict:
    if found.plan.release_file in found.text_or_empty("files").splitlines():
        return healthy(f"release {found.plan.release.id} is built")
    return room(found, "root_dir", found.plan.paths.root, needs(found.plan)[found.plan.paths.root])


@check(
    "host/disk/model",
    "plan",
    judges="state_dir has room for a model that is to be fetched, as long as it is not there",
    source="the model's profile, size_gb",
    settings=("minimum_free_disk_gb", "state_dir"),
    ask="df -h",
)
def model(found: Found) -> Verdict:
    needed = needs(found.plan).get(found.plan.paths.state)
    if needed is None:
        return healthy("the model is not fetched")
    if found.plan.model_file in found.text_or_empty("files").splitlines():
        return healthy(f"{found.plan.paths.model} is there")
    if found.plan.kept.has_wanted or found.plan.kept.others:
        return healthy("what is there already is used; before it fetches the rest, pd-model looks for room")
    return room(found, "state_dir", found.plan.paths.state, needed)
