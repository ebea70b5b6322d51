"""Patches, placed into the release that was built."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.overlays import Overlays
from tasks.facts.paths import Paths
from tasks.operations import kernels
from tasks.plan.playbook import Plan


@deploy("Kernels")
def place(plan: Plan) -> None:
    if plan.release.existing:
        return  # nothing of it is ours to change
    site = plan.site_packages
    overlays = plan.release.overlays
    files = {f"{site}/{path}" for overlay in overlays for path in overlay.files}
    found = host.get_fact(Paths, paths=sorted(files)) if files else {}
    there = host.get_fact(Overlays, site_packages=site)

    for overlay in overlays:
        kernels.overlay(name=f"Overlay {overlay.name}", placed=overlay, site_packages=site, found=found)
    kernels.no_other_overlays(
        name="No other overlays", site_packages=site, unwanted=plan.release.unwanted_overlays(there)
    )
