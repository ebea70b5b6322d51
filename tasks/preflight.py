"""May this host be provisioned at all? Settings, then facts, then the plan; a host that does not fit stops here."""

from __future__ import annotations

import os

from pyinfra import host, logger, state
from pyinfra.api.output import format_text

from tasks import catalogue
from tasks.facts.hardware import Hardware
from tasks.facts.listeners import Listeners
from tasks.facts.paths import Paths as PathsFact
from tasks.facts.system import System
from tasks.plan import host as reading
from tasks.plan import instances, placement, preflight, settings
from tasks.plan.errors import PlanError
from tasks.plan.paths import Paths
from tasks.plan.playbook import KERNEL_SETTINGS, Plan, debian_packages


def admit() -> Plan | None:
    """The plan for this host, or None where it is refused: one line a fault, before anything changes on it.

    A refused host counts as failed: the run ends unless the user has raised the limit of failed hosts.
    """
    try:
        return _plan()
    except PlanError as error:
        for line in error.lines:
            logger.error(f"{host.print_prefix}{format_text('refused:', 'red', bold=True)} {line}")
        state.fail_hosts({host})
        return None


def _plan() -> Plan:
    wanted = settings.load(host.data.dict())
    manifest = catalogue.manifest(wanted.release)
    profile = catalogue.profile(wanted.model)
    api_key = _api_key(wanted.router_api_key_env)
    paths = Paths.of(wanted, profile)

    system = reading.read_system(
        host.get_fact(
            System,
            user=wanted.service_user,
            paths=[paths.root, paths.state],
            sysctls=list(KERNEL_SETTINGS),
            packages=debian_packages(manifest, manifest.python),
        )
    )
    faults = preflight.system(system, manifest, wanted)
    if faults:
        raise PlanError(*faults)
    hardware = reading.read_hardware(host.get_fact(Hardware))
    listeners = reading.read_listeners(host.get_fact(Listeners))

    release = catalogue.release(manifest, preflight.python(system, manifest, wanted), wanted.torch_wheel)
    served = instances.workers(wanted, release, profile, placement.place(wanted, hardware), paths)
    every = (*served, instances.router(wanted, served, paths))
    plan = Plan(wanted, release, profile, paths, system, hardware, every, catalogue.uv_lock(), api_key)
    instances.check_ports(plan.instances)

    there = host.get_fact(PathsFact, paths=[f"{plan.release_directory}/release.json", f"{paths.model}/config.json"])
    built, model = (there[path].kind == "file" for path in there)
    needs = {path: gb for path, gb in plan.disk_needs.items() if not (built if path == paths.root else model)}
    faults = [
        *preflight.hardware(hardware, manifest),
        *preflight.ports(plan.instances, listeners),
        *preflight.disk(needs, system, wanted),
        *preflight.model(plan, model),
    ]
    if faults:
        raise PlanError(*faults)
    for line in instances.cautions(wanted, release):
        logger.warning(f"{host.print_prefix}{line}")
    return plan


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
