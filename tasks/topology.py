"""Where each server runs, and what the driver says about the links between its GPUs."""

from __future__ import annotations

from pyinfra.api import deploy

from tasks.operations import topology
from tasks.plan.playbook import Plan


@deploy("Topology")
def check(plan: Plan) -> None:
    for worker in plan.workers:
        topology.placed(name=f"Placement of {worker.name}", worker=worker, hardware=plan.hardware)
