"""Which Python a release is built with."""

from __future__ import annotations

from tasks.plan.findings import Refused, error
from tasks.plan.host.answers import PYTHON_OF, System
from tasks.plan.release.manifest import Manifest
from tasks.plan.settings.settings import Settings

CHECK = "host/python/usable"


def choose(found: System, manifest: Manifest, settings: Settings) -> str:
    """Such as "3.11". Raises Refused where host and release have none in common."""
    asked = settings.python if settings.python != "auto" else found.python
    if asked is None:
        raise Refused(
            error(
                CHECK,
                f"{found.os_name} carries no Python that a release can use ({' or '.join(manifest.python)})",
                "install one of these, then run again",
            )
        )
    if asked not in manifest.python:
        whose = (
            f"setting python = {asked!r}" if settings.python != "auto" else f"{found.os_name} carries Python {asked}"
        )
        why = f": {manifest.no_lock[asked]}" if asked in manifest.no_lock else ""
        raise Refused(
            error(
                CHECK,
                f"{whose}: release {manifest.name} has locks for {' and '.join(manifest.python)} only{why}",
                _way_out(found, manifest, asked),
            )
        )
    if asked in found.prereleases:
        raise Refused(
            error(
                CHECK,
                f"python{asked} is {found.prereleases[asked]}, a pre-release: torch._dynamo fails on it "
                "(NeMo/Speech#8459), after gigabytes of installing",
                f"install a finished Python {asked}, or a system that carries one",
            )
        )
    if asked not in found.pythons and asked != found.python:
        raise Refused(
            error(
                CHECK,
                f"setting python = {asked!r}: {found.os_name} carries {found.python or 'none of the usable ones'}, "
                f"and python{asked} is not there",
                'leave it at "auto" or install it',
            )
        )
    return asked


def _way_out(found: System, manifest: Manifest, asked: str) -> str:
    """What to do about a Python that the release has no lock for."""
    if found.python in manifest.python:
        return 'leave python at "auto"'
    systems = [f"{name.title()} {version}" for (name, version), it in PYTHON_OF.items() if it in manifest.python]
    return (
        f"use a system that carries one ({' or '.join(systems)}), a release that has a lock for Python {asked}, or an "
        'environment of your own (environment = "existing", docs/existing.md)'
    )
