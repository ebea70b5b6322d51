"""release = "auto": the newest release that a host's driver, GPUs, glibc and Python can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Hardware, System
from tasks.plan.release import versions
from tasks.plan.release.manifest import Manifest, driver_cuda
from tasks.plan.settings.settings import Settings

AUTO = "auto"
CHECK = "release/auto/fits"


@dataclass(frozen=True)
class Choice:
    manifest: Manifest
    reason: str  # one line: which, and why


def choose(offered: Sequence[Manifest], hardware: Hardware, system: System, settings: Settings) -> Choice:
    """Raises PlanError, one line with the nearest release and what it lacks, where none fits. Nearest is the one
    that lacks the fewest things, of those the one for the oldest driver, of those the newest.

    A release for the CPU is never chosen.
    """
    newest = sorted((m for m in offered if m.device == "cuda"), key=lambda m: versions.order(m.sglang), reverse=True)
    lacking = {manifest.name: missing(manifest, hardware, system, settings) for manifest in newest}
    for manifest in newest:
        if not lacking[manifest.name]:
            passed = [f"{m.name} is newer, but {lacking[m.name][0]}" for m in newest[: newest.index(manifest)]]
            why = "; ".join([_fit(hardware, system), *passed])
            return Choice(manifest, f'release "auto" is {manifest.name}: {why}')
    if not newest:
        raise PlanError('release = "auto": files/locks holds no release for GPUs')
    nearest = min(newest, key=lambda m: (len(lacking[m.name]), m.driver_minimum or 0))
    lacks = "; ".join(lacking[nearest.name])
    raise PlanError(
        f'release = "auto": no release fits this host; nearest is {nearest.name}, but {lacks}: mend that on the host'
    )


def missing(manifest: Manifest, hardware: Hardware, system: System, settings: Settings) -> list[str]:
    """What keeps a release from this host, each with what would mend it; [] where it fits."""
    lines = []
    driver = _driver(hardware)
    if driver and manifest.driver_minimum and int(driver.split(".", 1)[0]) < manifest.driver_minimum:
        lines.append(
            f"driver {driver} serves {driver_cuda(driver)}, it needs {manifest.cuda}, so a driver >= "
            f"{manifest.driver_minimum}"
        )
    for capability in sorted({gpu.compute_capability for gpu in hardware.gpus} - {*manifest.compute_capabilities}):
        served = ", ".join(manifest.compute_capabilities)
        lines.append(f"it carries kernels for compute capability {served}, not for {capability}")
    python = settings.python if settings.python != "auto" else system.python
    if python not in manifest.python:
        why = f" ({manifest.no_lock[python]})" if python in manifest.no_lock else ""
        lines.append(
            f"it has locks for Python {' and '.join(manifest.python)}, the host has {python or 'neither'}{why}"
        )
    if not versions.at_least(system.glibc, manifest.glibc):
        lines.append(f"its wheels need glibc {manifest.glibc}, here is {system.glibc}")
    return lines


def _fit(hardware: Hardware, system: System) -> str:
    capabilities = ", ".join(sorted({gpu.compute_capability for gpu in hardware.gpus}))
    driver = _driver(hardware)
    return f"driver {driver} ({driver_cuda(driver)}), compute capability {capabilities}, Python {system.python}"


def _driver(hardware: Hardware) -> str:
    return hardware.driver or (hardware.gpus[0].driver if hardware.gpus else "")
