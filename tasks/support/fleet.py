"""The place of this host among those that serve together: all are asked at once, by the first that comes here."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Lock
from typing import Any

from pyinfra import host, logger, state
from pyinfra.api import Host, State
from pyinfra.context import ctx_host

from tasks.facts.network import Addresses, Healthy, Told
from tasks.plan.errors import PlanError
from tasks.plan.fleet import agreement, members, rollout, watching
from tasks.plan.fleet.members import Inventoried, Member
from tasks.plan.fleet.rollout import Found
from tasks.plan.fleet.service import Together, joined, servers
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Remote
from tasks.plan.service.watching import Watched, Watching
from tasks.plan.settings import settings
from tasks.plan.settings.place import LOOPBACK_INTERFACE, ROUTER
from tasks.plan.settings.roles import is_loopback
from tasks.plan.settings.settings import Settings
from tasks.support import connection, summary
from tasks.support.dry import is_dry


def here() -> Together:
    """Of this host. Raises PlanError, one line a fault."""
    with _looking:
        found = _of(host.name)
        return replace(found, watching=_watching(host.name, found.settings))


def _of(name: str) -> Together:
    """Of any host, without who watches it. Raises PlanError."""
    every = _known()
    member = every.get(name)
    if member is None:
        return Together(settings.load(_data(name)))
    if isinstance(member, PlanError):
        raise member
    if member.service not in _services:
        try:
            _services[member.service] = _service(member.service, every)
        except PlanError as fault:
            _services[member.service] = PlanError(f"service {member.service!r} cannot be, for what {name} is told")
            raise fault
    found = _services[member.service]
    if isinstance(found, PlanError):
        raise found
    return found[name]


def watcher() -> str | None:
    """The host whose Prometheus watches this one; None where none does. Raises PlanError."""
    return watching.watcher(_inventory(), host.name)


def _inventory() -> list[Inventoried]:
    return [
        Inventoried(
            one.name,
            tuple(one.groups),
            one.data.dict(),
            taken=state.is_host_in_limit(one) and one in state.activated_hosts,
            limited=not state.is_host_in_limit(one),
        )
        for one in state.inventory
    ]


def _data(name: str) -> dict[str, object]:
    """The settings of a host; the one with the Prometheus of all has monitoring."""
    one = state.inventory.get_host(name)
    return {**one.data.dict(), **({"monitoring": True} if watching.GROUP in one.groups else {})}


def _watching(name: str, wanted: Settings) -> Watching | None:
    """Raises PlanError."""
    if not wanted.monitoring:
        return None
    hosts = _inventory()
    keeper = watching.keeper(hosts) or name
    others = [one.name for one in hosts if watching.with_monitoring(one) and one.name != keeper]
    if keeper != name:
        return Watching(address=_reached_by(keeper, name), asked_from=_reached_by(keeper, keeper))
    if not any(watching.GROUP in one.groups for one in hosts) or not others:
        return Watching((Watched(name, wanted),))
    _reached_by(keeper, keeper)  # they are told of it
    lines: list[str] = []
    found = [Watched(name, wanted)]
    for other in others:
        try:
            found.append(Watched(other, _of(other).settings, _reached_by(keeper, other)))
        except PlanError as fault:
            lines += [f"{other}, which {name} watches: {line}" for line in fault.lines]
    if lines:
        raise PlanError(*lines)
    return Watching(tuple(found))


def _reached_by(keeper: str, name: str) -> str:
    """The address of a host, for those that watch it or are watched by it. Raises PlanError."""
    place = _of(name).settings.place
    if not place.alone:
        return place.address
    reached = state.inventory.get_host(name).data.get("service_address")
    if not isinstance(reached, str) or is_loopback(reached) or reached == LOOPBACK_INTERFACE:
        raise PlanError(
            f"{name}: setting service_address = {reached!r}: {keeper} watches other hosts (group {watching.GROUP}): in "
            f"group_data/{name}.py, set it to the address or interface where hosts reach {name}"
        )
    member = Member(name, name, (), reached, state.is_host_in_limit(state.inventory.get_host(name)))
    told = _addresses(member) if member.taken else None
    if isinstance(told, PlanError):
        raise told
    return members.resolved(member, told)[0]


def routers() -> tuple[Host, ...]:
    """Other hosts with a router that sends requests to this host's servers, connected also where --limit leaves them
    out. Raises PlanError where one is not reached, and where the run is for more hosts: they would change the list of
    a router at the same time."""
    with _looking:
        if host.name not in _known():
            return ()
        taken = [one.name for one in state.inventory if state.is_host_in_limit(one)]
        if len(taken) > 1:
            raise PlanError(
                f"{host.name} serves together with others, and a part is for one such host: this run is for "
                f"{', '.join(taken)}; name one with --limit"
            )
        every = {member.host: member for member in members.known(_known())}
        service = every.pop(host.name).service
        routed = [one for one in every.values() if ROUTER in one.roles and one.service == service]
        found = [state.inventory.get_host(one.host) for one in routed]
        for one in found:
            one.connect()
            if not one.connected:
                raise PlanError(
                    f"the router on {one.name} sends requests here, and that host is not reached: mend it, or take it "
                    "out of the list router in the inventory"
                )
            state.activated_hosts.add(one)  # so that pyinfra lets go of it at the end; no operation runs there
    return tuple(found)


def _known() -> dict[str, Member | PlanError]:
    """What each host of the inventory plays."""
    global _members
    if _members is None:
        _members = members.members(_inventory())
        for one in _members.values():
            if isinstance(one, Member):
                summary.routed(one.host, members.routers(_members.values(), one.service))
    return _members


def goes_on(state: State) -> bool:
    """Whether a run goes on with the hosts that have not failed. A service goes on where it has enough without them,
    else the rest of it ends too; of hosts that serve alone, any that fails ends the run for all.
    """
    every = _known()
    without: dict[str, set[str]] = {}  # by service
    for one in state.failed_hosts:
        member = every.get(one.name)
        if not isinstance(member, Member):
            return False
        without.setdefault(member.service, set()).add(one.name)
    for service, failed in without.items():
        rest = [
            state.inventory.get_host(name)
            for name, member in every.items()
            if isinstance(member, Member) and member.service == service and name not in failed
        ]
        active = [one for one in rest if one in state.active_hosts]
        made = _services.get(service)  # not before the hosts are examined: then they are refused, with the reason
        if isinstance(made, dict) and active:
            lines = agreement.lacking(service, {name: one.settings for name, one in made.items()}, failed)
            for one in active if lines else ():
                for line in lines:
                    summary.fault(one, line)
                state.failed_hosts.add(one)
                state.active_hosts.discard(one)
            told = lines or [_goes_on_without(service, failed)]
            for line in told if told != _told.get(service) else ():
                logger.warning(line)
            _told[service] = told
    return bool(state.active_hosts)


def _goes_on_without(service: str, failed: Iterable[str]) -> str:
    return f"service {service!r} goes on without {' and '.join(sorted(failed))}"


def gone(plan: Plan) -> frozenset[str]:
    """URLs of servers that get no requests: their hosts have failed, and they do not tell that they serve the same."""
    failed = {one.name for one in state.failed_hosts}
    asked = {server.url for server in plan.others if server.host in failed}
    if not asked:
        return frozenset()
    told = host.get_fact(Told, urls=[f"{url}/server_info" for url in sorted(asked)])
    answered = {url: told.get(f"{url}/server_info") for url in asked}
    same = {url for url, said in answered.items() if said and not agreement.serves_otherwise(plan, said)}
    for url in sorted(asked - same):
        logger.warning(f"{host.print_prefix}{url} does not tell that it serves the same: it gets no requests")
    return frozenset(asked - same)


def server() -> tuple[Host, Settings]:
    """A host of this run that has a server of this host's service. Raises PlanError where --limit leaves out all."""
    member = (_members or {}).get(host.name)
    made = _services.get(member.service) if isinstance(member, Member) else None
    for name, other in made.items() if isinstance(made, dict) else ():
        found = state.inventory.get_host(name)
        if other.settings.serves and found in state.active_hosts:
            return found, other.settings
    raise PlanError(
        'setting release = "auto" chooses by the GPUs of a host with a server, and this run has none: name a release'
    )


class Rollout:
    """What the hosts of one service tell each other while they restart their servers."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}  # by host
        self.found: list[Found] = []
        self.turn = Lock()  # one server at a time
        self.halted = ""  # why no more server is restarted
        self.asking = Lock()  # through one router at a time: the counters of the servers tell who answered

    @property
    def at_once(self) -> str | None:
        plan = next(iter(self.plans.values()))
        roles = [one.role for one in plan.served]
        return rollout.at_once(self.found, {role: roles.count(role) for role in roles})

    @property
    def routers(self) -> list[tuple[Host, Plan]]:
        """Hosts of this run that have a router and have not failed."""
        every = [(state.inventory.get_host(one), plan) for one, plan in self.plans.items() if plan.router]
        return [(one, plan) for one, plan in every if one not in state.failed_hosts]


def rolls(plan: Plan) -> Rollout | None:
    """Of this host's service; None where it serves alone."""
    return None if plan.settings.place.alone else _rollouts[plan.settings.service]


def asking(plan: Plan) -> AbstractContextManager[object]:
    """While the questions are asked through a router, no other router of its service is asked."""
    rollout = rolls(plan)
    return rollout.asking if rollout else nullcontext()


def agrees(plan: Plan) -> None:
    """This host's plan fits those of its service that were made before. Raises PlanError."""
    member = (_members or {}).get(host.name)
    if not isinstance(member, Member) or plan.settings.place.alone:
        return
    with _looking:
        plans = _rollouts.setdefault(member.service, Rollout()).plans
        plans[host.name] = plan
        one, first = next(iter(plans.items()))
    agreement.settled(one, first, host.name, plan)
    _limits_agree(member.service, plan)


def _limits_agree(service: str, plan: Plan) -> None:
    """Servers that --limit leaves out go on with what they serve: it must be the same. Raises PlanError."""
    lines = [
        f"--limit leaves out {server.host}, and its {server.role} serves another thing: {'; '.join(differs)}; "
        "run without --limit"
        for server, told in _left_out.get(service, ())
        if (differs := agreement.serves_otherwise(plan, told))
    ]
    if lines and not is_dry():
        raise PlanError(*lines)
    for line in lines:
        logger.warning(f"{host.print_prefix}{line}")


def _service(name: str, every: dict[str, Member | PlanError]) -> dict[str, Together]:
    found = members.together(members.known(every), name)
    if separately and len(found) > 1:
        raise PlanError(
            f"{separately}: hosts that serve together wait for each other in each phase, and with it they would not: "
            "run without it"
        )
    data = {member.host: _data(member.host) for member in found}
    made = joined(found, data, _reached(found) if len(found) > 1 else {})
    if not any(member.taken for member in found):
        return made  # for the host that watches it: this run does nothing there
    lost = [member.host for member in found if not (member.taken or member.limited)]
    lines = agreement.lacking(name, {one: of.settings for one, of in made.items()}, lost) if lost else []
    if lines:
        raise PlanError(*lines)
    if lost:
        logger.warning(_goes_on_without(name, lost))
    _limited(found, {host: servers(host, one.settings) for host, one in made.items()})
    return made


def _reached(found: tuple[Member, ...]) -> dict[str, tuple[str, str]]:
    """Host -> address and interface where the others reach it. Raises PlanError."""
    asked = [member for member in found if member.taken]
    with ThreadPoolExecutor(len(asked) or 1) as side_by_side:
        told = dict(zip([member.host for member in asked], side_by_side.map(_addresses, asked), strict=True))
    reached: dict[str, tuple[str, str]] = {}
    lines: list[str] = []
    for member in found:
        try:
            answer = told.get(member.host)
            if isinstance(answer, PlanError):
                raise answer
            reached[member.host] = members.resolved(member, answer)
        except PlanError as fault:
            lines += fault.lines
    if lines:
        raise PlanError(*lines)
    return reached


def _addresses(member: Member) -> dict[str, list[str]] | PlanError:
    one: Host = state.inventory.get_host(member.host)
    with ctx_host.use(one):
        try:
            connection.prepare()
            return members.addresses(one.get_fact(Addresses))
        except PlanError as fault:
            return PlanError(*(f"{member.host}: {line}" for line in fault.lines))


def _limited(found: tuple[Member, ...], running: dict[str, tuple[Remote, ...]]) -> None:
    """What --limit leaves out must serve already; a dry run, such as that of drift, tells of it. Raises PlanError."""
    service = found[0].service
    out = {member.host: running[member.host] for member in found if member.limited}
    if not out:
        return
    urls = {name: [f"{one.url}/health" for one in servers] for name, servers in out.items()}
    asked = [url for of_host in urls.values() for url in of_host]
    lines = members.left_out(found, host.get_fact(Healthy, urls=asked) if asked else {}, urls)
    if lines and not is_dry():
        raise PlanError(*lines)
    for line in lines:
        logger.warning(f"service {service}: {line}")
    told = host.get_fact(Told, urls=[url.replace("/health", "/server_info") for url in asked]) if asked else {}
    _left_out[service] = [(one, told.get(f"{one.url}/server_info", {})) for servers in out.values() for one in servers]
    logger.warning(f"service {service}: {members.told_of_limit(found)}")


separately = ""  # the option of pyinfra's with which hosts do not wait for each other, where the run has it
_looking = Lock()
_members: dict[str, Member | PlanError] | None = None
_services: dict[str, dict[str, Together] | PlanError] = {}
_rollouts: dict[str, Rollout] = {}
_left_out: dict[str, list[tuple[Remote, dict[str, Any]]]] = {}  # by service: what servers told that --limit leaves out
_told: dict[str, list[str]] = {}  # by service: what was said last of hosts that failed
