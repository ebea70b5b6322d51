"""Patches that do not fit this host's GPUs, or the SGLang that is built on it."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Later, Unreadable, Verdict, check, error, healthy
from tasks.plan.host.answers import NOT_BUILT

MISFIT = 1  # pd-patch's status


@check(
    "gpu/patches/capability",
    "plan",
    judges="every patch serves the compute capability of the servers' GPUs",
    source="compute_capabilities of the patch's manifest",
    settings=("patches",),
    ask="nvidia-smi --query-gpu=index,compute_cap --format=csv",
    of_gpu=True,
)
def capability(found: Found) -> Verdict:
    capabilities = {gpu.index: gpu.compute_capability for gpu in found.gpus if gpu.index in found.wanted}
    misfits = [
        f"patch {patch.name} is for compute capability {' and '.join(served)}, GPU {index} has {capabilities[index]}"
        for patch in found.plan.release.patches
        for served in [patch.manifest.compute_capabilities]
        for index in [i for i in sorted(capabilities) if served and capabilities[i] not in served][:1]
    ]
    if misfits:
        return error("; ".join(misfits), "take the patch out of patches or more_patches", *misfits)
    return healthy(f"{len(found.plan.release.patches)} patches serve {', '.join(sorted(set(capabilities.values())))}")


@check(
    "release/patches/fit",
    "plan",
    judges="the files that a patch replaces are the ones it was made for, and the functions that it binds to are "
    "there. Compared with a release of the same SGLang that the host has; without one, while this release is built",
    source="manifest of each patch (docs/patches.md)",
    settings=("patches", "patch_dir"),
    ask="pd-patch check --patches /opt/sglang-pd/locks/ID-patches.json SITE_PACKAGES",
)
def fit(found: Found) -> Verdict:
    if not found.plan.release.patches:
        return healthy("no patches")
    answer = found.answers.get("patches")
    names = ", ".join(patch.name for patch in found.plan.release.patches)
    if answer is not None and answer.status == NOT_BUILT:
        raise Later(f"{names}: judged while the release is built, before it serves")
    if answer is not None and answer.status == MISFIT and answer.text.startswith("patch "):
        misfits = answer.text.strip().splitlines()
        return error(
            "; ".join(misfits), "take the patch out of patches or more_patches, or make one for this SGLang", *misfits
        )
    said = found.rows("patches")
    if not said[0].startswith("fit: "):
        raise Unreadable("unexpected answer", *said[:3])
    return healthy(f"{names} fit what is installed")
