"""Where a server's processes open sockets.

The address of a role says which interface its processes use: loopback, as long as one host serves alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.plan.settings.roles import is_loopback

LOOPBACK_INTERFACE = "lo"


@dataclass(frozen=True)
class Pin:
    """A variable that keeps a library's sockets on one interface."""

    name: str
    value: str
    reason: str


def pins(address: str) -> tuple[Pin, ...]:
    """What keeps the sockets of a server at `address` on its interface.

    Found by their owner (SGLang 0.5.20, torch 2.13, NIXL 1.5.1): gloo listens on the address of the host's name, once
    for each process group; each UCX worker of NIXL listens on every interface that is up; NCCL does so for its
    bootstrap. UCX_NET_DEVICES names devices of the network alone: cuda_ipc and shared memory are none.
    """
    if not is_loopback(address):
        return ()
    name = LOOPBACK_INTERFACE
    return (
        Pin("GLOO_SOCKET_IFNAME", name, "gloo would listen on the address of the host's name"),
        Pin("NCCL_SOCKET_IFNAME", name, "NCCL would take the first other interface that is up"),
        Pin("UCX_NET_DEVICES", name, "UCX would listen on every interface; cuda_ipc and shared memory are no devices"),
    )
