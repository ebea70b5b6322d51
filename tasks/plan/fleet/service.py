"""The settings of every host of a service, and the servers that its hosts have for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.fleet import agreement
from tasks.plan.fleet.members import Member, shared
from tasks.plan.service.instances import Remote
from tasks.plan.service.watching import Watching
from tasks.plan.settings.place import Place
from tasks.plan.settings.settings import Settings, load


@dataclass(frozen=True)
class Together:
    """What one host is to do, and the servers of the others."""

    settings: Settings
    others: tuple[Remote, ...] = ()
    watching: Watching | None = None  # None without monitoring


def joined(
    found: Sequence[Member], data: Mapping[str, Mapping[str, object]], reached: Mapping[str, tuple[str, str]]
) -> dict[str, Together]:
    """By host. data: of its settings. reached: address and interface; not needed for one host alone.

    Raises PlanError, one line a fault.
    """
    if len(found) == 1:
        (alone,) = found
        return {alone.host: Together(load(data[alone.host], Place(alone.roles)))}
    # again, now that interfaces are addresses too
    lines = shared({member.host: reached[member.host][0] for member in found})
    loaded: dict[str, Settings] = {}
    for member in found:
        address, interface = reached[member.host]
        peers = tuple(reached[other.host][0] for other in found if other is not member)
        try:
            loaded[member.host] = load(data[member.host], Place(member.roles, address, interface, peers))
        except PlanError as fault:
            lines += [f"{member.host}: {line}" for line in fault.lines]
    if lines:
        raise PlanError(*lines)
    agreement.settings(found[0].service, loaded)
    agreement.releases(found, loaded)
    agreement.minimums(loaded)
    every = {one: servers(one, wanted) for one, wanted in loaded.items()}
    return {
        one: Together(wanted, tuple(server for other in loaded if other != one for server in every[other]))
        for one, wanted in loaded.items()
    }


def servers(host: str, settings: Settings) -> tuple[Remote, ...]:
    """The servers that a host runs, as the service's other hosts reach them."""
    return tuple(
        Remote(
            name=f"{role.server(number)}@{host}",
            host=host,
            role=role.name,
            address=role.address,
            port=role.ports(number)[f"{role.name}_port"],
            bootstrap_port=role.ports(number).get(f"{role.name}_bootstrap_port"),
        )
        for role in settings.roles.values()
        for number in range(role.instances)
    )
