"""Which servers the router of several hosts sends requests to."""

from __future__ import annotations

from collections.abc import Collection

from tasks.plan.files import WantedFile, to_json
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Served


def workers_file(plan: Plan, without: Collection[str] = ()) -> WantedFile | None:
    """What smg reads again and again; None on a host without a router, and where the list is fixed.

    without: URLs of servers that get no requests.
    """
    if plan.router is None or plan.settings.place.alone:
        return None
    listed = [_entry(server) for server in plan.served if server.url not in without]
    content = to_json({"version": 1, "workers": listed})
    gist = f"{len(listed)} servers that get requests"
    return WantedFile(plan.paths.workers, content, "640", "root", plan.group, gist=gist)


def _entry(server: Served) -> dict[str, str | int]:
    """smg refuses a file with a field that it does not know."""
    bootstrap: dict[str, str | int] = {"bootstrap_port": server.bootstrap_port} if server.bootstrap_port else {}
    return {"url": server.url, "worker_type": server.role, **bootstrap}
