"""Bring-up in dependency order: the workers together, then the router; restart only what must."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.history import Text
from tasks.facts.paths import Paths
from tasks.facts.units import Units
from tasks.operations import files, routes, services
from tasks.plan.files import compare
from tasks.plan.fleet.rollout import found as of_server
from tasks.plan.plan import Plan
from tasks.plan.service.installed import with_who_stopped
from tasks.plan.service.paths import STOPPED, WATCHDOG, run_of
from tasks.plan.service.restarts import read_units, restarts, waiting
from tasks.support import fleet, render
from tasks.support.barrier import barrier


@deploy("Services")
def bring_up(plan: Plan) -> None:
    found = read_units(host.get_fact(Units, **plan.units), plan.instances, plan.target)
    of_each = {instance.name: render.instance_files(plan, instance) for instance in plan.instances}
    units = [*(file.unit for file in of_each.values()), render.target(plan)]
    on_disk = host.get_fact(Paths, paths=[*(unit.path for unit in units), STOPPED])
    written = any(compare(unit, on_disk[unit.path]).content for unit in units)
    reasons = restarts(plan.instances, {n: f.fingerprint for n, f in of_each.items()}, found.instances, plan.settings)
    reasons = with_who_stopped(reasons, on_disk[STOPPED].text)
    open_gates = waiting(plan.instances, found.instances)
    serving = found.serving(plan.instances).units

    rollout = fleet.rolls(plan)
    if rollout:
        for worker in plan.workers:
            was = host.get_fact(Text, path=f"{run_of(worker.name)}/executed/{worker.name}.sh")
            becomes = of_each[worker.name].script.content.decode()
            rollout.found.append(of_server(worker, plan, found.instances[worker.name], was, becomes))

    left_over = found.left_over(plan.instances, plan.beside)
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
    workers = ", ".join(worker.name for worker in plan.workers)
    # a host with a router goes back as a whole: once its servers have changed, no other host may fail any more
    for last in (False, True) if rollout and plan.router else (False,):
        services.running(
            name=f"Running: {workers}{', after those of other hosts' if last else ''}",
            plan=plan,
            instances=plan.workers,
            needs=(),
            rollout=rollout,
            last=last,
            reasons=reasons,
            waiting=open_gates,
            serving=serving,
            limit=plan.settings.worker_ready_limit,
        )
    files.absent(name="No longer stopped by hand", path=STOPPED, found=on_disk[STOPPED])
    barrier("workers")
    if plan.router and rollout:  # some may have failed meanwhile, and gone back to KV of before
        routes.written(name="Router sends nothing to what was left out", plan=plan)
    services.running(
        name="Running: router" if plan.router else "Running: no router here",
        plan=plan,
        instances=(plan.router,) if plan.router else (),
        needs=plan.workers,
        reasons=reasons,
        waiting=open_gates,
        serving=serving,
        limit=plan.settings.router_ready_limit,
    )
    if plan.settings.watchdog:
        services.enabled(name=f"Enabled {WATCHDOG}", unit=WATCHDOG, wanted=True, found=found.watchdog_enabled)
        services.started(name="Running: watchdog", unit=WATCHDOG, running=found.watching)
    started = [worker for worker in plan.workers if worker.name in reasons]
    services.warmed(name="Kernels that servers compiled", plan=plan, started=started)
    services.bound(name="Servers bound as planned", plan=plan)
    services.listening(name="Servers listen as planned", plan=plan)
