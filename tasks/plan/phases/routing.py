"""Which servers the router of several hosts sends requests to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from tasks.plan.errors import PlanError
from tasks.plan.files import WantedFile, to_json
from tasks.plan.host.answers import json_object
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Served
from tasks.plan.settings.roles import WHOLE

_TYPES = {WHOLE: "regular"}  # what smg calls a role, where that is another word


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
    return {"url": server.url, "worker_type": _TYPES.get(server.role, server.role), **bootstrap}


def listed(text: str) -> dict[str, str]:
    """URL -> role, from that file as it lies on a host. Raises PlanError."""
    roles = {kind: role for role, kind in _TYPES.items()}
    return {server["url"]: roles.get(server["worker_type"], server["worker_type"]) for server in _servers(text)}


def shortened(text: str, without: Collection[str] = ()) -> bytes:
    """That file, with servers that get no requests left out. without: their URLs. Raises PlanError."""
    return to_json({"version": 1, "workers": [one for one in _servers(text) if one["url"] not in without]})


def _servers(text: str) -> list[dict[str, str]]:
    servers = (json_object(text) or {}).get("workers")
    known = [one for one in servers if isinstance(one, dict)] if isinstance(servers, list) else []
    if servers != known or not all(isinstance(one.get(name), str) for one in known for name in ("url", "worker_type")):
        raise PlanError("the router's list of servers cannot be read: run deploy.py, which writes it anew")
    return known


def of_host(listed: Mapping[str, str], addresses: Collection[str]) -> dict[str, str]:
    """URL -> name, of the servers in that file that run on one host. addresses: its own."""
    own = {url: role for url, role in listed.items() if urlsplit(url).hostname in addresses}
    roles = [*own.values()]
    return {
        url: role if roles.count(role) == 1 else f"{role} on port {urlsplit(url).port}" for url, role in own.items()
    }


def lone(listed: Mapping[str, str], own: Collection[str]) -> tuple[str, ...]:
    """Why no request is answered while some servers are out of use, in words. own: their URLs."""
    left = {role for url, role in listed.items() if url not in own}
    gone = dict.fromkeys(listed[url] for url in own)
    return tuple(
        f"no other host has a {'whole' if role == WHOLE else role} server" for role in gone if role not in left
    )
