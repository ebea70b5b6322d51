"""May this host be provisioned at all? Settings, then facts, then the plan; a host that does not fit stops here."""

from __future__ import annotations

import os

from pyinfra import host, logger

from tasks import catalogue
from tasks.facts.hardware import Hardware
from tasks.facts.listeners import Listeners
from tasks.facts.paths import Paths as PathsFact
from tasks.facts.system import System
from tasks.plan import host as reading
from tasks.plan import instances, placement, preflight, rules, settings
from tasks.plan.errors import PlanError
from tasks.plan.paths import Paths
from tasks.plan.playbook import KERNEL_SETTINGS, Plan, debian_packages


def admit() -> Plan:
    """The plan for this host. Raises PlanError, one line a fault, where it does not fit."""
    wanted = settings.load(host.data.dict())
    manifest = catalogue.manifest(wanted.release)
    profile = catalogue.profile(wanted.model)
    rules.check(wanted, manifest, catalogue.accepted_arguments(manifest), profile)
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

    release_file, model_file = f"{plan.release_directory}/release.json", f"{paths.model}/config.json"
    there = host.get_fact(PathsFact, paths=[release_file, model_file])
    built, model = (there[path].kind == "file" for path in (release_file, model_file))
    needs = {path: gb for path, gb in plan.disk_needs.items() if not (built if path == paths.root else model)}
    faults = [
        *preflight.hardware(hardware, manifest),
        *preflight.ports(plan.instances, listeners),
        *preflight.disk(needs, system, wanted),
        *preflight.model(plan, model),
    ]
    if faults:
        raise PlanError(*faults)
    for line in rules.cautions(wanted, manifest):
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
