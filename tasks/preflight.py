"""May this host be provisioned at all? Settings, then facts, then the plan; a host that does not fit stops here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyinfra import host, logger
from pyinfra.context import ctx_host

from tasks.facts.existing import ExistingEnvironment
from tasks.facts.hardware import Hardware as HardwareFact
from tasks.facts.history import ReleaseHistory, Text
from tasks.facts.listeners import Listeners
from tasks.facts.model import ModelFolder
from tasks.facts.planned import Planned
from tasks.facts.release import ReleaseState
from tasks.facts.system import System as SystemFact
from tasks.plan import checks
from tasks.plan.checks.silenced import check_silenced
from tasks.plan.errors import PlanError
from tasks.plan.files import WantedFile
from tasks.plan.findings import Finding, Level, Refused, error, named
from tasks.plan.host import answers as reading
from tasks.plan.host.answers import Answer, Hardware, System
from tasks.plan.model import derive, folder, kept
from tasks.plan.model.derive import Model
from tasks.plan.model.profile import ModelProfile, Stated
from tasks.plan.phases import confinement, monitoring
from tasks.plan.phases.runtime import lock_files
from tasks.plan.phases.system import KERNEL_LIMITS, KERNEL_SETTINGS, debian_packages, directories
from tasks.plan.plan import Plan
from tasks.plan.proof.judgement import IDS, NONE
from tasks.plan.release import choice, existing, history, python
from tasks.plan.release.history import Description, History, Pin
from tasks.plan.release.manifest import Manifest
from tasks.plan.run.record import Locked
from tasks.plan.service import instances, listening, placement, rules
from tasks.plan.service.api_key import key_of
from tasks.plan.service.instances import Remote
from tasks.plan.service.paths import Paths
from tasks.plan.service.watching import Watching
from tasks.plan.settings.settings import Settings
from tasks.support import catalogue, certificate, fleet, keyring, lock, report, summary


@dataclass
class Seen:
    """What is known about a host so far: settings, what it answered, and what the checks say of it."""

    settings: Settings
    offered: tuple[Manifest, ...]  # releases that the setting stands for: one, unless it is "auto"
    stated: Stated  # of the model, before its folder is read
    paths: Paths
    history: History
    held_on: Description | None  # a release that the host keeps and goes back to, or is pinned to
    api_key: str | None
    api_key_before: str | None
    tls: bytes | None
    alerts: bytes | None  # alertmanager's configuration, where it is the user's
    keyrings: Mapping[str, WantedFile]  # of makers' repositories
    now: float  # seconds since 1970 when the host told its clock
    answers: Mapping[str, Answer]  # of the facts System and Hardware
    system: System
    others: tuple[Remote, ...]  # servers of the service's other hosts
    watching: Watching | None  # None without monitoring
    ruled: ModelProfile | None = None  # with which the rules hold for the settings, before the host was asked
    findings: tuple[Finding, ...] = ()
    plan: Plan | None = None  # there for the report of a host that is refused after it was made

    def add(self, *found: Finding) -> None:
        """Keep findings. Raises Refused where one of them ends the run."""
        self.findings += found
        stopping = [finding for finding in found if finding.stops]
        if stopping:
            raise Refused(*stopping)

    def found(self, manifest: Manifest, hardware: Hardware | None = None) -> checks.Found:
        """What the checks judge."""
        return checks.Found(self.settings, manifest, self.system, self.answers, self.now, hardware)


@contextmanager
def reported(seen: Seen | None = None) -> Iterator[None]:
    """Warnings are told; a host that is refused leaves a report that says why."""
    try:
        yield
    except Locked:  # the report is that of the run that is on
        raise
    except PlanError as fault:
        known = seen.findings if seen else ()
        more = tuple(one for one in fault.findings if one not in known) if isinstance(fault, Refused) else ()
        report.write(host.name, seen.plan if seen else None, (*known, *more), None, NONE)
        raise
    finally:
        for finding in seen.findings if seen else ():
            if finding.level in (Level.WARNING, Level.INCOMPLETE) and finding.advice and not finding.stops:
                logger.warning(f"{host.print_prefix}{finding.sentence}")


def examine() -> Seen:
    """Settings and facts. Raises PlanError, one line a fault, where they cannot be had."""
    with reported():
        return _examined()


def admit(seen: Seen) -> Plan:
    """The plan for this host, its findings in it. Raises PlanError, one line a fault, where it does not fit."""
    with reported(seen):
        plan = _admitted(seen)
    summary.planned(host, plan)
    return plan


def judge_system(seen: Seen, manifest: Manifest) -> None:
    """The checks that come before any GPU is looked at. Raises Refused."""
    seen.add(*checks.judged(seen.found(manifest), "system"))


def _examined() -> Seen:
    together = fleet.here()
    wanted = together.settings
    offered = catalogue.offered(wanted.release)  # one, unless it is "auto"
    stated = catalogue.stated(wanted.model, wanted.model_dir, wanted.model_profiles)
    ruled = None
    check_silenced(wanted.silenced_checks, (*IDS, listening.ID))
    if wanted.release != choice.AUTO:
        if not stated.missing:  # else when the folder is read
            ruled, _ = derive.settled(stated, None, wanted.served_name)
            rules.check(wanted, offered[0], catalogue.accepted_arguments(offered[0]), ruled)
        rules.check_router(wanted, offered[0], catalogue.router_arguments(offered[0], wanted.router))
    keys = ("router_api_key_env", "router_api_key_before_env")
    api_key, before = (_key(wanted, name) if wanted.routes else None for name in keys)
    tls = certificate.joined(wanted) if wanted.routes else None
    alerts = catalogue.alertmanager(wanted)
    keyrings = keyring.of_monitoring(wanted)
    paths = Paths.of(wanted, stated)
    lock.take(wanted)

    releases = history.read(
        host.get_fact(
            ReleaseHistory, releases=paths.releases, current=paths.current, previous=paths.previous, pin=paths.pin
        ),
        paths.pin,
        wanted.unpin,
    )
    held_on = _described(history.goal(releases, wanted.rollback), paths)
    possible = (*offered, held_on.release.manifest) if held_on else offered

    now = time.time()
    answers, system = _looked_at(wanted, paths, possible)
    return Seen(
        wanted, offered, stated, paths, releases, held_on, api_key, before, tls, alerts, keyrings, now, answers, system,
        together.others, together.watching, ruled=ruled,
    )  # fmt: skip


def _looked_at(wanted: Settings, paths: Paths, possible: Sequence[Manifest]) -> tuple[Mapping[str, Answer], System]:
    """What the host says of its system and cards. possible: releases that it may get."""
    of_system: Mapping[str, Answer] = host.get_fact(
        SystemFact,
        user=wanted.service_user,
        paths=[paths.root, paths.state],
        sysctls=[*KERNEL_SETTINGS, *KERNEL_LIMITS],
        packages=sorted(
            {package for one in possible for package in debian_packages(one, one.python)} | {*monitoring.packages_of()}
        ),
    )
    with named("host/system/readable"):
        system = reading.read_system(of_system)
    of_cards: Mapping[str, Answer] = host.get_fact(HardwareFact)
    return {**of_system, **of_cards}, system


def _key(wanted: Settings, setting: str) -> str | None:
    """The key in the variable that a setting names, None where it names none."""
    variable = getattr(wanted, setting)
    return key_of(variable, os.environ.get(variable, ""), setting) if variable else None


def _admitted(seen: Seen) -> Plan:
    manifest = _asked_for(seen)
    judged_by = seen.held_on.release.manifest if seen.held_on else manifest
    judge_system(seen, judged_by)
    model = _model(seen, manifest)
    if model.profile != seen.ruled:
        rules.check(seen.settings, manifest, catalogue.accepted_arguments(manifest), model.profile)

    of_ports: Mapping[str, Answer] = host.get_fact(Listeners)
    hardware = _hardware(seen)
    found = seen.found(judged_by, hardware)
    found = replace(found, answers={**found.answers, **of_ports})
    of_hardware = checks.judged(found, "hardware")

    plan = seen.plan = _planned(seen, hardware, model, _own(seen, manifest, hardware), of_hardware)
    fleet.agrees(plan)
    told = _answers_for(plan)
    if plan.fetches:
        where, name = plan.fetches
        plan = seen.plan = replace(plan, kept=kept.read(told, name, str(plan.model_revision), where))
    found = replace(found, answers={**found.answers, **told}, known_plan=plan)
    seen.add(*of_hardware, *checks.judged(found, "plan"))
    for line in rules.cautions(plan.release.manifest, plan.context_length):
        logger.warning(f"{host.print_prefix}{line}")
    ended = checks.strays(found) if seen.settings.end_strays else ()
    return replace(plan, findings=seen.findings, built=_built(plan), strays=ended)


def _asked_for(seen: Seen) -> Manifest:
    """The release that the settings ask for, chosen by what the host can run where they leave it open."""
    if seen.settings.release != choice.AUTO:
        return seen.offered[0]
    chosen = _chosen(seen) if seen.settings.serves else _chosen_elsewhere(seen)
    logger.info(f"{host.print_prefix}{chosen.reason}")
    router = catalogue.router_arguments(chosen.manifest, seen.settings.router)
    rules.check_router(seen.settings, chosen.manifest, router)
    return chosen.manifest


def _chosen(seen: Seen) -> choice.Choice:
    hardware = _hardware(seen)
    with named(choice.CHECK):
        return choice.choose(seen.offered, hardware, seen.system, seen.settings)


def _chosen_elsewhere(seen: Seen) -> choice.Choice:
    """For a host with the router alone: by the GPUs of a host that it routes to."""
    other, wanted = fleet.server()
    with ctx_host.use(other):
        answers, system = _looked_at(wanted, seen.paths, seen.offered)
    try:
        chosen = choice.choose(seen.offered, reading.read_hardware(answers), system, wanted)
    except PlanError as fault:
        raise PlanError(*(f"{other.name}: {line}" for line in fault.lines)) from None
    return replace(chosen, reason=f"{chosen.reason}, asked of {other.name}")


def _model(seen: Seen, manifest: Manifest) -> Model:
    """The model as the settings, its profile and its folder say together. Raises Refused, one line a fault."""
    wanted, stated, path = seen.settings, seen.stated, seen.paths.model
    found = None
    if derive.is_read(stated, wanted):
        answers = host.get_fact(ModelFolder, directory=path, user=wanted.service_user)
        with named("model/files/there"):
            found = folder.read(answers, path)
            if derive.is_brought(stated.source, wanted):
                derive.check_folder(found, wanted.service_user)
    with named("model/profile/agrees"):
        model = derive.model(stated, found, wanted, manifest.page_size)
    if model.told and model.derived:
        logger.info(f"{host.print_prefix}model {model.profile.name}, read from {path}: {model.told}")
    return model


def _hardware(seen: Seen) -> Hardware:
    if not seen.settings.serves:
        return reading.read_without_gpus(seen.answers)
    with named("gpu/driver/answers"):
        return reading.read_hardware(seen.answers)


def _planned(seen: Seen, hardware: Hardware, model: Model, own: Description, of_hardware: tuple[Finding, ...]) -> Plan:
    """The plan for the release of the settings, or for the one that the host goes back to or is pinned to.

    of_hardware: findings to be told with a placement that cannot be.
    """
    wanted, profile, paths, held_on = seen.settings, model.profile, seen.paths, seen.held_on
    described, pin = own, None
    if held_on and held_on.release.id != own.release.id:  # where the settings name it too, nothing holds the host there
        described, pin = held_on, _pin(seen, held_on, own)
        rules.check(wanted, held_on.release.manifest, frozenset(held_on.arguments), profile)
    try:
        placed = placement.place(wanted.roles, hardware)
    except PlanError as fault:
        seen.add(*of_hardware, *(error("gpu/placement/possible", line) for line in fault.lines))
        raise
    release = described.release
    served = instances.workers(wanted, release, profile, placed, paths)
    router = (instances.router(wanted, release, served, paths),) if wanted.routes else ()
    every = (*served, *router)
    return Plan(
        wanted, release, profile, paths, seen.system, hardware, every, catalogue.uv_lock(), seen.api_key,
        api_key_before=seen.api_key_before, tls=seen.tls, alerts=seen.alerts, keyrings=seen.keyrings,
        arguments=described.arguments, history=seen.history, pin=pin, asked=own.release if pin else None,
        derived=model.derived, model_told=model.told, others=seen.others, watching=seen.watching,
    )  # fmt: skip


def _answers_for(plan: Plan) -> Mapping[str, Answer]:
    """What the host says to questions that follow from the plan."""
    answers: Mapping[str, Answer] = host.get_fact(
        Planned,
        release_file=plan.release_file,
        model_file=plan.model_file,
        site_packages=plan.site_packages,
        bindings=plan.bindings,
        releases=plan.paths.releases,
        sglang=plan.release.manifest.sglang,
        patches=plan.release.patch_list(contents=False).decode(),
        places=[directory.path for directory in directories(plan)],
        wheelhouse=plan.settings.package_wheelhouse,
        user=plan.settings.service_user,
        view=confinement.view(plan),
        reads=plan.brought,
        imports=plan.brought_pythons,
        kept=plan.fetches,
    )
    return answers


def _built(plan: Plan) -> Mapping[str, Any] | None:
    """The plan's release as it is on the host; None where it is not there, or is not ours to look after."""
    if plan.release.existing:
        return None
    lock, router_lock = lock_files(plan)
    return host.get_fact(ReleaseState, directory=plan.release_directory, lock=lock.path, router_lock=router_lock.path)


def _own(seen: Seen, manifest: Manifest, hardware: Hardware) -> Description:
    """The release that the settings ask for: to build, or in an environment that is there already."""
    wanted = seen.settings
    if wanted.environment == "release":
        chosen = python.choose(seen.system, manifest, wanted)
        capabilities = {gpu.compute_capability for gpu in hardware.gpus}
        if not wanted.serves:
            return catalogue.described_without_servers(manifest, chosen, wanted.router)
        patches = catalogue.chosen_patches(
            manifest, wanted.patches, wanted.patch_dir, capabilities, wanted.more_patches
        )
        return catalogue.described(manifest, chosen, wanted.torch_wheel, wanted.router, patches)
    asked = existing.Asked.of(wanted)
    told = host.get_fact(
        ExistingEnvironment, python=asked.python, router_python=asked.router_python, paths=list(asked.paths)
    )
    with named(existing.CHECK):
        return catalogue.adopted(manifest, existing.read(told, asked), wanted.router)


def _described(release: str, paths: Paths) -> Description | None:
    """A release that the host keeps, read back from it."""
    if not release:
        return None
    path = paths.description(release)
    return history.read_description(host.get_fact(Text, path=path), release, path)


def _pin(seen: Seen, to: Description, instead_of: Description) -> Pin:
    """The host's own, with the reason of a further rollback added, or a new one."""
    why = seen.settings.rollback_reason
    if seen.history.pin:
        return seen.history.pin.also(why) if seen.settings.rollback else seen.history.pin
    return Pin(
        release=to.release.id,
        instead_of=instead_of.release.id,
        by=lock.operator(),
        at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        why=why,
    )
