"""Where a server's processes open sockets, and with whom a unit may exchange packets.

The address of a role says which interface its processes use: loopback, as long as one host serves alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.plan.service.options import Option
from tasks.plan.settings.place import LOOPBACK_INTERFACE
from tasks.plan.settings.roles import is_loopback
from tasks.plan.settings.settings import Settings

DENY, ALLOW = "IPAddressDeny", "IPAddressAllow"
_NOBODY = Option(DENY, ("any",), "from other hosts nothing comes in, to them nothing goes out")


@dataclass(frozen=True)
class Pin:
    """A variable that keeps a library's sockets on one interface."""

    name: str
    value: str
    reason: str


def pins(interface: str) -> tuple[Pin, ...]:
    """What keeps the sockets of a server on its interface.

    Found by their owner (SGLang 0.5.20, torch 2.13, NIXL 1.5.1): gloo listens on the address of the host's name, once
    for each process group; each UCX worker of NIXL listens on every interface that is up; NCCL does so for its
    bootstrap. UCX_NET_DEVICES names devices of the network alone: cuda_ipc and shared memory are none.
    """
    name = interface
    return (
        Pin("GLOO_SOCKET_IFNAME", name, "gloo would listen on the address of the host's name"),
        Pin(
            "NCCL_SOCKET_IFNAME",
            name if name == LOOPBACK_INTERFACE else f"={name}",
            "NCCL would take the first other interface that is up",
        ),
        Pin("UCX_NET_DEVICES", name, "UCX would listen on every interface; cuda_ipc and shared memory are no devices"),
    )


def of_server(settings: Settings, address: str) -> tuple[Option, ...]:
    """systemd's filter for a server that is reached at `address`."""
    return (_NOBODY, _allowed(settings, (address,)))


def of_router(settings: Settings) -> tuple[Option, ...]:
    """As of_server; () where it serves everybody, since the filter tells no client from anybody else."""
    addresses = (settings.router_host, settings.router_metrics_host)
    if not settings.router_clients and not all(map(is_loopback, addresses)):
        return ()
    return (_NOBODY, _allowed(settings, addresses, settings.router_clients))


def of_service(settings: Settings) -> tuple[Option, ...]:
    """More of the filter of a server or router: the hosts of its service, this one too, as they see each other."""
    if settings.place.alone or ALLOW in settings.unit_options:
        return ()
    hosts = (settings.place.address, *settings.place.peers)
    return (Option(ALLOW, hosts, "the hosts that it serves with"),)


def of_tool(settings: Settings) -> tuple[Option, ...]:
    """As of_server, for a unit that measures as the servers do, or asks the router."""
    return (_NOBODY, _allowed(settings, (settings.router_host, *(role.address for role in settings.roles.values()))))


def of_figures(own: Sequence[str], asked_from: str) -> tuple[Option, ...]:
    """As of_server, for what shows figures to one other host and to nobody else. own: addresses where it asks."""
    beyond = (address for address in own if not is_loopback(address) and _is_one(address))
    allowed = tuple(dict.fromkeys(("localhost", *beyond, asked_from)))
    return (_NOBODY, Option(ALLOW, allowed, "this host, and the one that asks"))


def _allowed(settings: Settings, own: tuple[str, ...], networks: Sequence[str] = ()) -> Option:
    """Loopback, the host's own addresses beyond it, and networks."""
    beyond = [address for address in own if not is_loopback(address) and _is_one(address)]
    names = dict.fromkeys(("localhost", *beyond, *networks, *settings.peer_networks))
    return Option(ALLOW, tuple(names), "this host's loopback" + (", and what settings name" if len(names) > 1 else ""))


def _is_one(address: str) -> bool:
    """Whether it is one address: no name, and not every address there is."""
    try:
        return not ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False
