"""Which interface a server's sockets stay on, and with whom its unit may exchange packets."""

from __future__ import annotations

import pytest

from tasks.plan.phases import confinement
from tasks.plan.service import network
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware


def test_a_server_on_loopback_keeps_every_library_on_it() -> None:
    assert {pin.name: pin.value for pin in network.pins("lo")} == {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "UCX_NET_DEVICES": "lo",
    }


def test_a_server_that_others_reach_is_pinned_to_the_interface_of_its_address() -> None:
    assert {pin.name: pin.value for pin in network.pins("eth1")} == {
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",  # without =, NCCL takes eth10 too
        "UCX_NET_DEVICES": "eth1",
    }


def allowed(name: str, **changes: object) -> tuple[str, ...] | None:
    """Whom a unit may exchange packets with; None where it has no filter."""
    made = catalogue_plan(changes, hardware(TWO_SOCKETS), api_key="k" * 16)
    found = next((confinement.of_instance(made, i) for i in made.instances if i.name == name), None)
    options = {option.name: option.values for option in found or confinement.of_tool(made)}
    assert options.get("IPAddressDeny", ("any",)) == ("any",)
    assert ("IPAddressDeny" in options) == ("IPAddressAllow" in options)
    return options.get("IPAddressAllow")


@pytest.mark.parametrize("unit", ["prefill", "decode", "router", "a tool"])
def test_a_unit_exchanges_packets_with_its_own_host_alone_and_with_what_a_setting_names(unit: str) -> None:
    assert allowed(unit) == ("localhost",)
    assert allowed(unit, peer_networks=["10.1.0.0/24"]) == ("localhost", "10.1.0.0/24")


@pytest.mark.parametrize("name", ["router_host", "router_metrics_host"])
def test_a_router_beyond_loopback_is_filtered_by_the_networks_of_its_clients(name: str) -> None:
    wide = {name: "0.0.0.0", "router_api_key_env": "KEY"}
    assert allowed("router", **wide) is None, "it serves everybody"
    assert allowed("router", **wide, router_clients=["10.0.0.0/8"]) == ("localhost", "10.0.0.0/8")
    assert allowed("router", **{**wide, name: "10.2.3.4"}, router_clients=["10.0.0.0/8"]) == (
        "localhost",
        "10.2.3.4",
        "10.0.0.0/8",
    )
    assert allowed("prefill", **wide) == ("localhost",)


def test_a_tool_reaches_the_router_on_the_hosts_own_address() -> None:
    assert allowed("a tool", router_host="10.2.3.4", router_api_key_env="KEY") == ("localhost", "10.2.3.4")
