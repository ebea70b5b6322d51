"""Which host of the inventory has the Prometheus of all, and which hosts it watches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.plan.errors import PlanError
from tasks.plan.fleet.members import Inventoried

GROUP = "monitoring"  # of the inventory


def keeper(hosts: Iterable[Inventoried]) -> str | None:
    """The host with the Prometheus of all; None where each has its own. Raises PlanError."""
    found = [host.name for host in hosts if GROUP in host.groups]
    if len(found) > 1:
        raise PlanError(f"the group {GROUP} holds {', '.join(found)}: one Prometheus watches all, name one host")
    return found[0] if found else None


def watcher(hosts: Sequence[Inventoried], name: str) -> str | None:
    """The host whose Prometheus watches this one; None where none does. Raises PlanError."""
    if not any(one.name == name and with_monitoring(one) for one in hosts):
        return None
    return keeper(hosts) or name


def with_monitoring(host: Inventoried) -> bool:
    return host.data.get("monitoring") is True or GROUP in host.groups
