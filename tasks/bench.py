"""The benchmark of a running service, by SGLang's own client through the router.

pyinfra inventory.py tasks.bench.serving     the loads of the settings bench_*; nothing is deployed
"""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks import preflight
from tasks.facts.paths import Paths
from tasks.facts.units import Units
from tasks.operations import bench as measuring
from tasks.operations import files
from tasks.plan.bench import figures as bench
from tasks.plan.errors import PlanError
from tasks.plan.plan import Plan
from tasks.plan.service.restarts import read_units, restarts, waiting
from tasks.support import catalogue, refusal, render


def serving() -> None:
    with refusal.in_one_line():
        measure(plan=preflight.admit(preflight.examine()))


@deploy("Benchmark")
def measure(plan: Plan) -> None:
    config = bench.config_file(plan)
    if plan.settings.report_dir is None:
        raise PlanError(
            'setting report_dir = None: the benchmark writes its results into that folder; name one, such as "reports"'
        )
    if plan.router and plan.router.scheme == "https":
        raise PlanError(
            "setting router_tls_certificate is set: the benchmark's client cannot be told which certificate to trust, "
            "deploy without it, then measure"
        )
    found = read_units(host.get_fact(Units, **plan.units), plan.instances, plan.target)
    fingerprints = {instance.name: render.instance_files(plan, instance).fingerprint for instance in plan.instances}
    reasons = restarts(plan.instances, fingerprints, found.instances, plan.settings)
    reasons |= dict.fromkeys(waiting(plan.instances, found.instances), "is not ready yet")
    if reasons:
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise PlanError(f"the service does not run what is planned ({told}): deploy first, then measure")
    tools = catalogue.placed_tools(plan.paths.bin)
    found_there = host.get_fact(Paths, paths=[file.path for file in (*tools, config)])

    files.files(name=f"Tools in {plan.paths.bin}", wanted=tools, found=found_there)
    files.file(name=f"File {config.path}", wanted=config, found=found_there[config.path])
    measuring.measured(name=f"Measured: layout {plan.settings.layout}", plan=plan)
