"""Which host of the inventory has the Prometheus of all, and which hosts it watches."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.plan.errors import PlanError
from tasks.plan.fleet.members import Inventoried

GROUP = "monitoring"  # of the inventory


def keeper(hosts: Iterable[Inventoried]) -> str | None:
    """The host with the Prometheus of all; None where each has its own. Raises PlanError."""
    found = [host.name for host in hosts if GROUP in host.groups]
    if len(found) > 1:
        raise PlanError(f"the group {GROUP} holds {', '.join(found)}: one Prometheus watches all, name one host")
    return found[0] if found else None


def with_monitoring(host: Inventoried) -> bool:
    return host.data.get("monitoring") is True or GROUP in host.groups
