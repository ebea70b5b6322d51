"""May this host be provisioned at all? Settings, then facts, then the plan; a host that does not fit stops here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyinfra import host, logger

from tasks import catalogue, report
from tasks.facts.hardware import Hardware as HardwareFact
from tasks.facts.listeners import Listeners
from tasks.facts.planned import Planned
from tasks.facts.system import System as SystemFact
from tasks.plan import checks, choice, instances, placement, python, rules, settings
from tasks.plan import host as reading
from tasks.plan.errors import PlanError
from tasks.plan.findings import Finding, Level, Refused, error
from tasks.plan.host import Answer, Hardware, System
from tasks.plan.paths import Paths
from tasks.plan.playbook import KERNEL_LIMITS, KERNEL_SETTINGS, Plan, debian_packages
from tasks.plan.proof import NONE
from tasks.plan.settings import Settings


@dataclass
class Admission:
    """What is known about a host so far. It is there after a refusal too."""

    settings: Settings | None = None
    system: System | None = None
    hardware: Hardware | None = None
    plan: Plan | None = None
    findings: tuple[Finding, ...] = ()

    def add(self, *found: Finding) -> None:
        """Keep findings. Raises Refused where one of them ends the run."""
        self.findings += found
        stopping = [finding for finding in found if finding.stops]
        if stopping:
            raise Refused(*stopping)


ADMISSIONS: dict[str, Admission] = {}  # by host name


def admit() -> Plan:
    """The plan for this host, its findings in it. Raises PlanError, one line a fault, where it does not fit."""
    admission = ADMISSIONS[host.name] = Admission()
    try:
        return _admitted(admission)
    except PlanError:
        report.write(host.name, admission.plan, admission.findings, None, NONE)
        raise
    finally:
        for finding in admission.findings:
            if finding.level in (Level.WARNING, Level.INCOMPLETE) and finding.advice and not finding.stops:
                logger.warning(f"{host.print_prefix}{finding.sentence}")


def _admitted(admission: Admission) -> Plan:
    wanted = admission.settings = settings.load(host.data.dict())
    offered = catalogue.offered(wanted.release)  # one, unless it is "auto"
    profile = catalogue.profile(wanted.model)
    if wanted.release != choice.AUTO:
        rules.check(wanted, offered[0], catalogue.accepted_arguments(offered[0]), profile)
    api_key = _api_key(wanted.router_api_key_env)
    paths = Paths.of(wanted, profile)

    now = time.time()
    answers: Mapping[str, Answer] = host.get_fact(
        SystemFact,
        user=wanted.service_user,
        paths=[paths.root, paths.state],
        sysctls=[*KERNEL_SETTINGS, *KERNEL_LIMITS],
        packages=sorted({package for one in offered for package in debian_packages(one, one.python)}),
    )
    with _told_as("host/system/readable", admission):
        system = admission.system = reading.read_system(answers)
    of_cards: Mapping[str, Answer] = host.get_fact(HardwareFact)
    manifest = offered[0]
    if wanted.release == choice.AUTO:
        with _told_as("gpu/driver/answers", admission):
            chosen = choice.choose(offered, reading.read_hardware({**answers, **of_cards}), system, wanted)
        logger.info(f"{host.print_prefix}{chosen.reason}")
        manifest = chosen.manifest
        rules.check(wanted, manifest, catalogue.accepted_arguments(manifest), profile)
    found = checks.Found(wanted, manifest, system, answers, now)
    admission.add(*checks.judged(found, "system"))

    of_ports: Mapping[str, Answer] = host.get_fact(Listeners)
    answers = {**answers, **of_cards, **of_ports}
    with _told_as("gpu/driver/answers", admission):
        hardware = admission.hardware = reading.read_hardware(answers)
    found = replace(found, answers=answers, hardware=hardware)
    of_hardware = checks.judged(found, "hardware")

    release = catalogue.release(manifest, python.choose(system, manifest, wanted), wanted.torch_wheel, wanted.router)
    try:
        placed = placement.place(wanted, hardware)
    except PlanError as fault:
        admission.add(*of_hardware, *(error("gpu/placement/possible", line) for line in fault.lines))
        raise
    served = instances.workers(wanted, release, profile, placed, paths)
    every = (*served, instances.router(wanted, served, paths))
    plan = Plan(wanted, release, profile, paths, system, hardware, every, catalogue.uv_lock(), api_key)
    admission.plan = plan

    of_plan: Mapping[str, Answer] = host.get_fact(
        Planned,
        release_file=plan.release_file,
        model_file=plan.model_file,
        site_packages=plan.site_packages,
        bindings=plan.bindings,
        wheelhouse=wanted.package_wheelhouse,
    )
    found = replace(found, answers={**answers, **of_plan}, plan=plan)
    admission.add(*of_hardware, *checks.judged(found, "plan"))
    admission.plan = replace(plan, findings=admission.findings)
    for line in rules.cautions(wanted, manifest):
        logger.warning(f"{host.print_prefix}{line}")
    return admission.plan


@contextmanager
def _told_as(check: str, admission: Admission) -> Iterator[None]:
    """What cannot be read becomes a finding: of this check, where the fault does not name its own."""
    try:
        yield
    except Refused as fault:
        admission.add(*fault.findings)
    except PlanError as fault:
        admission.add(*(error(check, line) for line in fault.lines))


def _api_key(variable: str | None) -> str | None:
    """The key that clients must send, from the environment of whoever runs the deploy."""
    if variable is None:
        return None
    value = os.environ.get(variable, "")
    if len(value) < 16:
        raise PlanError(
            f"setting router_api_key_env names {variable}, which your environment does not hold "
            "(or with less than 16 characters): export it, then run again"
        )
    return value
