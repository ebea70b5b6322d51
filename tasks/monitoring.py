"""Prometheus, node-exporter and alertmanager, figures of the host, alert rules; nothing unless it is asked for."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.monitoring import Monitoring
from tasks.facts.paths import Paths
from tasks.facts.secret import Secret
from tasks.operations import files, services, system
from tasks.operations import monitoring as daemons
from tasks.plan.files import compare, read_secret
from tasks.plan.phases import monitoring
from tasks.plan.plan import Plan
from tasks.plan.service.paths import UNITS
from tasks.support import render
from tasks.support.barrier import barrier


@deploy("Monitoring")
def watch(plan: Plan) -> None:
    if plan.watching:
        _watched(plan)
    elif plan.system.monitored:
        daemons.removed(
            name="No monitoring", units=monitoring.there(host.get_fact(Paths, paths=monitoring.belongings()))
        )


def _watched(plan: Plan) -> None:
    every, folders, alerts = render.monitoring(plan), monitoring.directories(plan), monitoring.alertmanager(plan)
    keeps, gone = monitoring.keeps(plan), monitoring.not_here(plan)
    hosts = monitoring.filter_of(monitoring.PROMETHEUS)
    there = [hosts, *monitoring.belongings(gone)]
    found = host.get_fact(Paths, paths=[*(file.path for file in every), *(folder.path for folder in folders), *there])
    of_daemon = {one.unit: (monitoring.drop_in(one.unit), *one.files) for one in monitoring.daemons(plan)}
    if not keeps:
        of_daemon[monitoring.FORWARDER] = (f"{UNITS}/{monitoring.FORWARDER}", monitoring.FORWARDS)
    of_unit = {**of_daemon, monitoring.TIMER: ()}
    units = monitoring.read(host.get_fact(Monitoring, units=of_unit), of_unit)
    written = {file.path for file in every if compare(file, found[file.path]).content}

    if gone := monitoring.there(found, gone):
        daemons.removed(name=f"No longer here: {', '.join(gone)}", units=gone)
    for folder in folders:
        files.directory(name=f"Folder {folder.path}", wanted=folder, found=found[folder.path])
    if keeps:
        found_alerts, left = read_secret(
            host.get_fact(Secret, path=alerts.path, salt=alerts.salt, leftovers=[f"{alerts.path}.new"])
        )
        written |= {alerts.path} if compare(alerts, found_alerts) else set()
        files.file(name=f"File {alerts.path}", wanted=alerts, found=found_alerts, leftovers=left)
    for file in every:
        files.file(name=f"File {file.path}", wanted=file, found=found[file.path], then=monitoring.then(file.path))
    if hosts not in {file.path for file in every}:
        files.absent(name=f"No {hosts}", path=hosts, found=found[hosts])
    system.packages(
        name="Debian packages", missing=[name for name in monitoring.packages(plan) if name not in plan.system.packages]
    )
    for unit, seen in units.items():
        services.enabled(name=f"Enabled {unit}", unit=unit, wanted=True, found=seen.enabled)
    whys = {unit: monitoring.why_restart(units[unit], not written.isdisjoint(own)) for unit, own in of_daemon.items()}
    whys[monitoring.TIMER] = monitoring.why_restart(units[monitoring.TIMER], monitoring.timer_path() in written)
    daemons.running(name=f"Running: {', '.join(of_daemon)}", reasons={unit: why for unit, why in whys.items() if why})
    barrier("watched")
    if keeps:
        daemons.seen(name="Prometheus sees every target", check=monitoring.check_words(plan))
