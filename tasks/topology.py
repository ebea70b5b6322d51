"""Where each server runs, and what was measured between its GPUs: a server starts on a proof, not on a matrix."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.facts.units import Units
from tasks.operations import files, services, topology
from tasks.plan.files import compare
from tasks.plan.plan import Plan
from tasks.plan.proof import judgement as proof
from tasks.plan.service.paths import BOOT_ID
from tasks.plan.service.restarts import read_units
from tasks.support import fleet, report


@deploy("Topology")
def prove(plan: Plan) -> None:
    if not plan.settings.serves:
        report.write(host.name, plan, plan.findings, None, proof.NONE)
        return
    config = proof.config_file(plan)
    found = host.get_fact(
        Paths,
        paths=[config.path, plan.paths.told, BOOT_ID],
        user=plan.settings.service_user,
        theirs=[plan.paths.measured],
    )
    units = read_units(host.get_fact(Units, **plan.units), plan.instances, plan.target)
    serving = units.serving(plan.instances)

    stays = bool(serving.units) and not serving.replaced
    proved = proof.read(plan, found[plan.paths.measured].text, found[BOOT_ID].text or "", stays)
    report.write(host.name, plan, (*plan.findings, *proved.findings), proved.data, proved.state)

    services.ended(name="No stray servers", strays=plan.strays)
    for worker in plan.workers:
        topology.placed(name=f"Placement of {worker.name}", worker=worker)
    files.file(name=f"File {config.path}", wanted=config, found=found[config.path])
    warned = proof.told_file(plan, proved) if proved.stale and stays and not plan.settings.reprove else None
    said = found[plan.paths.told]
    topology.proved(
        name="Peer copies, all_reduce and KV path proved",
        plan=plan,
        found=proved,
        serving=serving,
        told=warned is not None and not compare(warned, said),
        rollout=fleet.rolls(plan),
    )
    if warned:
        files.file(name="Stale proof told", wanted=warned, found=said)
    else:
        files.absent(name="No stale proof", path=plan.paths.told, found=said)
