"""Which hosts serve together, and what each of them plays: from groups and settings alone, before a host is asked."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tasks.plan.errors import PlanError, nearest
from tasks.plan.settings.place import PARTS, ROUTER
from tasks.plan.settings.roles import PAIR, ROLES, WHOLE, is_loopback


@dataclass(frozen=True)
class Inventoried:
    """A host as the inventory has it."""

    name: str
    groups: tuple[str, ...]
    data: Mapping[str, object]  # its settings, merged
    taken: bool = True  # False: this run does nothing there
    limited: bool = False  # --limit leaves it out; else a host that is not taken could not be reached


@dataclass(frozen=True)
class Member:
    """A host of a service."""

    host: str
    service: str
    roles: tuple[str, ...]  # of PARTS, in their order
    reached: str | None  # its service_address: an address, or an interface
    taken: bool = True
    limited: bool = False

    @property
    def why_out(self) -> str:
        """Why this run does nothing there, as the end of a sentence about the host."""
        return "--limit leaves it out" if self.limited else "it cannot be reached"


def members(hosts: Iterable[Inventoried]) -> dict[str, Member | PlanError]:
    """By host, for those that play a part of a service. A host that is not in it serves alone."""
    found: dict[str, Member | PlanError] = {}
    for host in hosts:
        try:
            member = _member(host)
        except PlanError as fault:
            found[host.name] = fault
        else:
            if member:
                found[host.name] = member
    return found


def _member(host: Inventoried) -> Member | None:
    said, service, reached = (host.data.get(name) for name in ("roles", "service", "service_address"))
    if said is not None and (not isinstance(said, list) or not said):
        raise PlanError(f'{host.name}: setting roles = {said!r}: write a list, such as ["prefill", "router"]')
    unknown = [role for role in said or [] if role not in PARTS]
    if unknown:
        raise PlanError(
            f"{host.name}: setting roles names {unknown[0]!r}: a host plays {', '.join(PARTS)}."
            f"{nearest(str(unknown[0]), list(PARTS))}"
        )
    grouped = [role for role in PARTS if role in host.groups]
    if said and grouped and set(said) != set(grouped):
        raise PlanError(
            f"{host.name}: setting roles = {said!r}, but the inventory has it in the groups {', '.join(grouped)}: "
            "say it in one place"
        )
    roles = tuple(role for role in PARTS if role in (said or grouped))
    if not roles:
        return None
    if not isinstance(service, str):
        raise PlanError(f'{host.name}: setting service = {service!r}: write text, such as "main"')
    if not isinstance(reached, str | None):
        raise PlanError(f'{host.name}: setting service_address = {reached!r}: write text, such as "10.1.0.1"')
    return Member(host.name, service, roles, reached, host.taken, host.limited)


def known(every: Mapping[str, Member | PlanError]) -> tuple[Member, ...]:
    """Raises PlanError with the lines of every host whose part cannot be read, since it may belong to any service, and
    one for each host that has the address of another, of whatever service."""
    found = tuple(member for member in every.values() if isinstance(member, Member))
    written = {one.host: one.reached for one in found if one.reached and _is_address(one.reached)}
    lines = [line for fault in every.values() if isinstance(fault, PlanError) for line in fault.lines]
    lines += shared({host: str(ipaddress.ip_address(address)) for host, address in written.items()})
    if lines:
        raise PlanError(*lines)
    return found


def services(every: Mapping[str, Member | PlanError]) -> dict[str, tuple[Member, ...]]:
    """Service of more than one host -> its hosts, in the order of the inventory."""
    found: dict[str, tuple[Member, ...]] = {}
    for member in every.values():
        if isinstance(member, Member):
            found[member.service] = (*found.get(member.service, ()), member)
    return {name: of_one for name, of_one in found.items() if len(of_one) > 1}


def of_service(every: Mapping[str, Member | PlanError], service: str) -> list[str]:
    """Names of its hosts. Raises PlanError where there are none."""
    found = known(every)
    if not any(one.service == service for one in found):
        names = list(dict.fromkeys(one.service for one in found))
        there = f"the inventory has {', '.join(names)}." if names else "every host serves alone: name the host."
        raise PlanError(f"no host is in a service {service!r}: {there}{nearest(service, names)}")
    return [one.host for one in found if one.service == service]


def together(every: Iterable[Member], service: str) -> tuple[Member, ...]:
    """The hosts of a service, in the order of the inventory. Raises PlanError, one line a fault."""
    found = tuple(member for member in every if member.service == service)
    lines = [
        f"service {service!r} ({_hosts(found)}) has no {role}: put a host into the group {role}, or "
        f"{role} into roles of one of them"
        for role in _needed(found)
        if not any(role in member.roles for member in found)
    ]
    if whole := [member for member in found if WHOLE in member.roles]:
        lines += [
            f"service {service!r}: {member.host} plays {' and '.join(split)}, and {_hosts(whole)} server: servers that "
            "move KV and such that do not never serve together; give one of them another service"
            for member in found
            if (split := [role for role in PAIR if role in member.roles])
        ]
    if len(found) > 1:
        lines += [
            f"{member.host} serves together with {_hosts([m for m in found if m is not member])} (service {service!r})"
            f": set service_address in group_data/{member.host}.py, the address or interface where they reach it"
            for member in found
            if member.reached is None
        ]
        lines += [
            f"{member.host}: setting service_address = {member.reached!r} is loopback, where no other host reaches it: "
            "name another"
            for member in found
            if member.reached and (is_loopback(member.reached) or member.reached == "lo")
        ]
    if lines:
        raise PlanError(*lines)
    return found


def _needed(found: Iterable[Member]) -> tuple[str, ...]:
    """Of PARTS, what a service cannot be without."""
    return (WHOLE, ROUTER) if any(WHOLE in member.roles for member in found) else (*PAIR, ROUTER)


def routers(every: Iterable[Member | PlanError], service: str) -> tuple[str, ...]:
    """Names of a service's hosts that have a router."""
    known = [one for one in every if isinstance(one, Member)]
    return tuple(one.host for one in known if one.service == service and ROUTER in one.roles)


def shared(addresses: Mapping[str, str]) -> list[str]:
    """A line for each host that has the address of another. addresses: by host."""
    lines = []
    first: dict[str, str] = {}
    for host, address in addresses.items():
        other = first.setdefault(address, host)
        if other != host:
            lines.append(
                f"{other} and {host} both have service_address = {address!r}: one host is named twice, or one of them "
                "has another address"
            )
    return lines


def _hosts(members: Sequence[Member]) -> str:
    return ", ".join(member.host for member in members)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# ---- addresses


def addresses(text: str) -> dict[str, list[str]]:
    """Interface -> its addresses, as `ip -o addr show` prints them; those that hold within one link are left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or words[2] not in ("inet", "inet6") or ("scope", "link") in pairwise(words):
            continue
        found.setdefault(words[1].partition("@")[0], []).append(words[3].partition("/")[0])
    return found


def resolved(member: Member, told: Mapping[str, Sequence[str]] | None) -> tuple[str, str]:
    """(address, interface) where the others reach a member. told: as addresses() reads it, None where the host was not
    asked: then the interface is "". Raises PlanError."""
    wanted = member.reached or ""
    setting = f"{member.host}: setting service_address = {wanted!r}"
    if _is_address(wanted):
        address = str(ipaddress.ip_address(wanted))
        if told is None:
            return address, ""
        interface = next((name for name, own in told.items() if address in own), None)
        if interface is None:
            raise PlanError(f"{setting}: the host does not have it, it has {_spelled(told)}")
        return address, interface
    if told is None:
        raise PlanError(
            f"{setting} is no address, and {member.why_out}, so that nobody can ask which it is: write the address"
        )
    own = told.get(wanted, ())
    if not own:
        raise PlanError(f"{setting} is neither an address nor an interface with one: the host has {_spelled(told)}")
    if len(own) > 1:
        raise PlanError(f"{setting} has several addresses, {', '.join(own)}: write the one to be used")
    return own[0], wanted


def _spelled(told: Mapping[str, Sequence[str]]) -> str:
    beyond = [f"{', '.join(own)} ({name})" for name, own in told.items() if not all(map(is_loopback, own))]
    return "; ".join(beyond) or "none beyond loopback"


# ---- hosts that a run does nothing on


def left_out(found: Sequence[Member], health: Mapping[str, bool], urls: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines for a run that --limit keeps from some hosts of a service: their servers must serve already.

    urls: of the servers of each host that is left out. health: url -> whether it answered.
    """
    lines = []
    for member in found:
        silent = [url for url in urls.get(member.host, ()) if not health.get(url)]
        if member.limited and silent:
            lines.append(
                f"--limit leaves out {member.host}, and its {' and '.join(r for r in member.roles if r in ROLES)} does "
                f"not serve at {silent[0]}: run without --limit, or with that host"
            )
    return lines


def told_of_limit(found: Sequence[Member]) -> str:
    """What --limit means for a service, in one line; "" where it leaves nobody out."""
    out = [member for member in found if member.limited]
    if not out:
        return ""
    routes = [member.host for member in out if ROUTER in member.roles]
    asked = f"; the router on {', '.join(routes)} is not told of changes, and no question is asked through it"
    return f"--limit leaves out {_hosts(out)}, which stay as they are{asked if routes else ''}"
