"""Bring-up in dependency order: the workers together, then the router; restart only what must."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.facts.units import Units
from tasks.operations import services
from tasks.plan.files import compare
from tasks.plan.plan import Plan
from tasks.plan.service.restarts import read_units, restarts, waiting
from tasks.support import render
from tasks.support.barrier import barrier


@deploy("Services")
def bring_up(plan: Plan) -> None:
    runs = {instance.name: plan.paths.run(instance.name) for instance in plan.instances}
    found = read_units(host.get_fact(Units, **plan.units), plan.instances, plan.target)
    files = {instance.name: render.instance_files(plan, instance) for instance in plan.instances}
    units = [*(file.unit for file in files.values()), render.target(plan)]
    on_disk = host.get_fact(Paths, paths=[unit.path for unit in units])
    written = any(compare(unit, on_disk[unit.path]).content for unit in units)
    reasons = restarts(plan.instances, {n: f.fingerprint for n, f in files.items()}, found.instances, plan.settings)
    open_gates = waiting(plan.instances, found.instances)
    serving = found.serving(plan.instances).units

    left_over = found.without_instance(plan.instances)
    services.retired(
        name="Units that no instance needs",
        plan=plan,
        units={unit: plan.paths.files_of(unit) for unit in left_over},
        serving=serving,
    )
    services.as_written(name="No drop-ins over single units", drop_ins=found.drop_ins)
    services.reloaded(name="systemd knows the units", needed=found.stale and not written and not found.drop_ins)
    for instance in plan.instances:
        enabled = found.instances[instance.name].enabled
        services.enabled(name=f"Enabled {instance.unit}", unit=instance.unit, wanted=True, found=enabled)
    services.enabled(
        name=f"Enabled {plan.target}", unit=plan.target, wanted=plan.settings.start_on_boot, found=found.target_enabled
    )
    services.running(
        name=f"Running: {', '.join(worker.name for worker in plan.workers)}",
        plan=plan,
        instances=plan.workers,
        needs=(),
        reasons=reasons,
        waiting=open_gates,
        serving=serving,
        runs=runs,
        limit=plan.settings.worker_ready_limit,
    )
    barrier("workers")
    services.running(
        name="Running: router" if plan.router else "Running: no router here",
        plan=plan,
        instances=(plan.router,) if plan.router else (),
        needs=plan.workers,
        reasons=reasons,
        waiting=open_gates,
        serving=serving,
        runs=runs,
        limit=plan.settings.router_ready_limit,
    )
    services.bound(name="Servers bound as planned", plan=plan)
    services.listening(name="Servers listen as planned", plan=plan)
