"""Whether what is to watch the service is this playbook's to change."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy
from tasks.plan.phases.monitoring import PACKAGES


@check(
    "host/monitoring/ours",
    "system",
    judges="with monitoring = True: a Prometheus, alertmanager or node-exporter of the distribution that is there was "
    "installed by a run",
    source="this playbook starts the distribution's units in its own way",
    settings=("monitoring",),
    ask="dpkg -l prometheus prometheus-alertmanager prometheus-node-exporter",
)
def ours(found: Found) -> Verdict:
    there = [name for name in PACKAGES if name in found.system.packages]
    if not found.settings.monitoring or found.system.monitored or not there:
        return healthy("nothing of somebody else's is in the way" if found.settings.monitoring else "not asked for")
    return error(
        f"setting monitoring = True: {', '.join(there)} is on the host already, as somebody else set it up",
        "leave monitoring out and add this host's targets there (docs/monitoring.md), or remove these packages",
        *there,
    )
