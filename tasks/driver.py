"""The NVIDIA driver: pinned, held and left alone by unattended upgrades. Only where manage_driver says so."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra import host, logger
from pyinfra.api import deploy

from tasks import preflight
from tasks.facts.driver import Driver, Offer
from tasks.facts.paths import Paths
from tasks.operations import driver as operations
from tasks.operations import files
from tasks.plan.driver import steps as driver
from tasks.plan.driver.steps import AwaitsReboot, Steps
from tasks.plan.files import FoundPaths, WantedDirectory, WantedFile
from tasks.plan.findings import error
from tasks.plan.host.answers import Answer
from tasks.plan.proof.judgement import NONE
from tasks.plan.service.repository import DRIVER, KEYRINGS
from tasks.plan.settings.settings import Settings
from tasks.support import keyring, report
from tasks.support.barrier import barrier


def provide(seen: preflight.Seen) -> None:
    """Raises AwaitsReboot where this run ends with the driver, PlanError where it cannot be provided."""
    if not (seen.settings.manage_driver and seen.settings.serves):
        return
    with preflight.reported(seen):
        steps = _steps(seen)
    found = host.get_fact(Paths, paths=[KEYRINGS, *driver.PLACED])
    _managed(settings=seen.settings, steps=steps, wanted=_wanted(seen.settings), found=found)
    barrier("driver")
    if steps.reboot:
        awaited = error("gpu/driver/answers", steps.reboot, "this run ends with the driver")
        logger.warning(f"{host.print_prefix}{awaited.sentence}")
        report.write(host.name, None, (*seen.findings, awaited), None, NONE)
        raise AwaitsReboot


def _steps(seen: preflight.Seen) -> Steps:
    settings = seen.settings
    version = settings.driver_version
    assert version is not None
    manifest = driver.require_serves(version, [seen.held_on.release.manifest] if seen.held_on else seen.offered)
    key = keyring.of(DRIVER, settings.driver_keyring)
    answers: Mapping[str, Answer] = host.get_fact(Driver, packages=settings.driver_packages)
    found = driver.read({**seen.answers, **answers})
    if not found.runs(settings):  # else preflight judges all of it
        preflight.judge_system(seen, manifest)
    offer = None
    if not found.has(settings):
        source = DRIVER.source(settings.driver_repository, "KEYRING") if settings.driver_repository else None
        of_apt: Mapping[str, Answer] = host.get_fact(
            Offer,
            packages=settings.driver_packages,
            version=version,
            kernels=list(found.kernels),
            held=list(found.in_the_way(version)),
            source=source.content.decode() if source else "",
            keyring=key.content if key else b"",
            preferences=driver.preferences(version).content.decode(),
        )
        offer = driver.read_offer(of_apt, settings)
    return driver.steps(settings, found, offer)


def _wanted(settings: Settings) -> dict[str, WantedFile]:
    """Files by path; what is not in it is taken away."""
    assert settings.driver_version is not None
    wanted = [driver.preferences(settings.driver_version), driver.upgrades()]
    key = keyring.of(DRIVER, settings.driver_keyring)
    if settings.driver_repository and key:
        wanted += [key, DRIVER.source(settings.driver_repository, key.path)]
    return {file.path: file for file in wanted}


@deploy("Driver")
def _managed(settings: Settings, steps: Steps, wanted: Mapping[str, WantedFile], found: FoundPaths) -> None:
    assert settings.driver_version is not None
    files.directory(name=f"Folder {KEYRINGS}", wanted=WantedDirectory(KEYRINGS), found=found[KEYRINGS])
    for path in driver.PLACED:
        if path in wanted:
            files.file(name=f"File {path}", wanted=wanted[path], found=found[path])
        else:
            files.absent(name=f"No {path}", path=path, found=found[path])
    operations.installed(name=f"Packages of driver {settings.driver_version}", steps=steps)
    # another apt may be at work: this command does not wait for dpkg's lock
    operations.held(name="Packages held", names=steps.hold, _retries=60, _retry_delay=5)
    operations.running(
        name=f"Driver {settings.driver_version} answers",
        version=settings.driver_version,
        steps=steps,
        allow_reboot=settings.allow_reboot,
        limit=settings.reboot_limit,
    )
