"""Where a host stands among those that serve together: what it plays, and where the others reach it."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.plan.settings.roles import LOOPBACK, ROLES

ROUTER = "router"
PARTS = (*ROLES, ROUTER)  # what a host of a service can play: a group of the inventory, or a word of the setting roles
LOOPBACK_INTERFACE = "lo"


@dataclass(frozen=True)
class Place:
    """Of one host."""

    roles: tuple[str, ...] | None = None  # of PARTS; None: whatever the layout has, and the router
    address: str = LOOPBACK  # where the service's other hosts reach its servers
    interface: str = LOOPBACK_INTERFACE  # that has the address
    peers: tuple[str, ...] = ()  # addresses of the service's other hosts

    @property
    def alone(self) -> bool:
        return not self.peers

    def plays(self, role: str) -> bool:
        return self.roles is None or role in self.roles


ALONE = Place()
