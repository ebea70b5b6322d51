"""The place of this host among those that serve together: all are asked at once, by the first that comes here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from pyinfra import host, logger, state
from pyinfra.api import Host
from pyinfra.context import ctx_host

from tasks.facts.network import Addresses, Healthy
from tasks.plan.errors import PlanError
from tasks.plan.fleet import agreement, members, rollout
from tasks.plan.fleet.members import Inventoried, Member
from tasks.plan.fleet.rollout import Found
from tasks.plan.fleet.service import Together, joined, servers
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Remote
from tasks.plan.settings import settings
from tasks.plan.settings.place import ROUTER
from tasks.support import connection
from tasks.support.dry import is_dry


def here() -> Together:
    """Of this host. Raises PlanError, one line a fault."""
    with _looking:
        every = _known()
        member = every.get(host.name)
        if member is None:
            return Together(settings.load(host.data.dict()))
        if isinstance(member, PlanError):
            raise member
        if member.service not in _services:
            try:
                _services[member.service] = _service(member.service, every)
            except PlanError as fault:
                _services[member.service] = PlanError(
                    f"service {member.service!r} cannot be, for what {host.name} is told"
                )
                raise fault
        found = _services[member.service]
    if isinstance(found, PlanError):
        raise found
    return found[host.name]


def routers() -> tuple[Host, ...]:
    """Other hosts with a router that sends requests to this host's servers, connected also where --limit leaves them
    out. Raises PlanError where one is not reached."""
    with _looking:
        every = members.known(_known())
        own = [member for member in every if member.host == host.name]
        found = [
            state.inventory.get_host(member.host)
            for member in every
            if ROUTER in member.roles and member.host != host.name and member.service in {one.service for one in own}
        ]
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
        _members = members.members(
            Inventoried(one.name, tuple(one.groups), one.data.dict(), state.is_host_in_limit(one))
            for one in state.inventory
        )
    return _members


class Rollout:
    """What the hosts of one service tell each other while they restart their servers."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}  # by host
        self.found: list[Found] = []
        self.turn = Lock()  # one server at a time
        self.halted = ""  # why no more server is restarted

    @property
    def at_once(self) -> str | None:
        plan = next(iter(self.plans.values()))
        roles = [one.role for one in plan.served]
        return rollout.at_once(self.found, {role: roles.count(role) for role in roles})

    @property
    def routers(self) -> list[tuple[Host, Plan]]:
        """Hosts of this run that have a router."""
        return [(state.inventory.get_host(one), plan) for one, plan in self.plans.items() if plan.router]


def rolls(plan: Plan) -> Rollout | None:
    """Of this host's service; None where it serves alone."""
    return None if plan.settings.place.alone else _rollouts[plan.settings.service]


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


def _service(name: str, every: dict[str, Member | PlanError]) -> dict[str, Together]:
    found = members.together(members.known(every), name)
    data = {member.host: state.inventory.get_host(member.host).data.dict() for member in found}
    made = joined(found, data, _reached(found) if len(found) > 1 else {})
    _limited(found, {host: servers(host, one.settings) for host, one in made.items()})
    return made


def _reached(found: tuple[Member, ...]) -> dict[str, tuple[str, str]]:
    """Host -> address and interface where the others reach it. Raises PlanError."""
    asked = [member for member in found if member.taken]
    with ThreadPoolExecutor(len(asked)) as side_by_side:
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
    urls = {member.host: [f"{one.url}/health" for one in running[member.host]] for member in found if not member.taken}
    if not urls:
        return
    asked = [url for of_host in urls.values() for url in of_host]
    health = host.get_fact(Healthy, urls=asked) if asked else {}
    lines = members.left_out(found, health, urls)
    if lines and not is_dry():
        raise PlanError(*lines)
    for line in lines:
        logger.warning(f"service {found[0].service}: {line}")
    logger.warning(f"service {found[0].service}: {members.told_of_limit(found)}")


_looking = Lock()
_members: dict[str, Member | PlanError] | None = None
_services: dict[str, dict[str, Together] | PlanError] = {}
_rollouts: dict[str, Rollout] = {}
