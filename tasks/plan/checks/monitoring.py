"""Whether what is to watch the service is this playbook's to change."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy
from tasks.plan.phases.monitoring import PACKAGES, REPOSITORIES, packages_of


@check(
    "host/monitoring/ours",
    "system",
    judges="with monitoring = True: a Prometheus, alertmanager or node-exporter of the distribution that is there was "
    "installed by a run, and so was a Grafana or DCGM exporter where its repository is named",
    source="this playbook starts the distribution's units in its own way",
    settings=("monitoring", "grafana_repository", "dcgm_repository"),
    ask="dpkg -l prometheus prometheus-alertmanager prometheus-node-exporter grafana datacenter-gpu-manager-exporter",
)
def ours(found: Found) -> Verdict:
    named = [unit for unit, one in REPOSITORIES.items() if getattr(found.settings, f"{one.name}_repository")]
    there = [name for name in (*PACKAGES, *packages_of(named)) if name in found.system.packages]
    if not found.settings.monitoring or found.system.monitored or not there:
        return healthy("nothing of somebody else's is in the way" if found.settings.monitoring else "not asked for")
    return error(
        f"setting monitoring = True: {', '.join(there)} is on the host already, as somebody else set it up",
        "leave monitoring out and add this host's targets there (docs/monitoring.md), or grafana_repository or "
        "dcgm_repository where it is that one; or remove these packages",
        *there,
    )
