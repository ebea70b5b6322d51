"""The public key of a package repository, from a file of this machine."""

from __future__ import annotations

from pathlib import Path

from tasks.plan.errors import PlanError
from tasks.plan.files import WantedFile
from tasks.plan.service.repository import DCGM, GRAFANA, Repository
from tasks.plan.settings.settings import Settings


def of(repository: Repository, name: str | None) -> WantedFile | None:
    """name: its setting. Raises PlanError."""
    if name is None:
        return None
    try:
        return repository.keyring(Path(name).expanduser().read_bytes(), name)
    except OSError as fault:
        raise PlanError(
            f"setting {repository.name}_keyring = {name!r} cannot be read on this machine: {fault.strerror}"
        ) from None


def of_monitoring(settings: Settings) -> dict[str, WantedFile]:
    """By the name of the repository; {} without monitoring. Raises PlanError."""
    asked = ((GRAFANA, settings.grafana_keyring), (DCGM, settings.dcgm_keyring)) if settings.monitoring else ()
    found = {repository.name: of(repository, name) for repository, name in asked}
    return {name: file for name, file in found.items() if file}
