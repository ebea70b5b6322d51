"""Which interface a server's sockets stay on."""

from __future__ import annotations

import pytest

from tasks.plan.service import network


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "127.0.1.1"])
def test_a_server_on_loopback_keeps_every_library_on_it(address: str) -> None:
    assert {pin.name: pin.value for pin in network.pins(address)} == {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "UCX_NET_DEVICES": "lo",
    }


def test_a_server_on_another_address_is_not_pinned_to_loopback() -> None:
    assert network.pins("10.1.2.3") == ()
