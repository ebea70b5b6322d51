"""Who plays what in a service: from groups and settings, or one line for each fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.fleet import members
from tasks.plan.fleet.members import Inventoried, Member
from tests.plan.builders import TWO_HOSTS, defaults, inventoried

FOUR = {"gpu-1": ("prefill", "router"), "gpu-2": ("decode",), "gpu-3": ("decode",)}
SHOWN = """\
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
1: lo    inet6 ::1/128 scope host \\       valid_lft forever preferred_lft forever
2: eth0    inet 192.0.2.7/24 brd 192.0.2.255 scope global eth0\\       valid_lft forever preferred_lft forever
2: eth0    inet6 fe80::1/64 scope link \\       valid_lft forever preferred_lft forever
3: eth1@if4    inet 10.1.0.1/24 brd 10.1.0.255 scope global eth1\\       valid_lft forever preferred_lft forever
3: eth1@if4    inet6 fd00::1/64 scope global \\       valid_lft forever preferred_lft forever
"""
TOLD = {"lo": ["127.0.0.1", "::1"], "eth0": ["192.0.2.7"], "eth1": ["10.1.0.1", "fd00::1"]}


def found(hosts: list[Inventoried], service: str = "main") -> tuple[Member, ...]:
    return members.together(members.known(members.members(hosts)), service)


def fault(hosts: list[Inventoried], service: str = "main") -> str:
    with pytest.raises(PlanError) as refused:
        found(hosts, service)
    (line,) = refused.value.lines
    return line


def test_a_host_that_no_group_names_serves_alone() -> None:
    assert members.members([Inventoried("gpu-1", ("all", "gpu-1"), defaults())]) == {}


def test_groups_and_the_setting_roles_say_the_same() -> None:
    by_groups = found(inventoried())
    nobody = dict.fromkeys(TWO_HOSTS, ())
    by_setting = found(inventoried(nobody, gpu_1={"roles": ["router", "prefill"]}, gpu_2={"roles": ["decode"]}))
    assert by_groups == by_setting
    assert [(one.host, one.roles) for one in by_groups] == [("gpu-1", ("prefill", "router")), ("gpu-2", ("decode",))]


def test_one_inventory_holds_several_services_and_hosts_that_serve_alone() -> None:
    every = {"gpu-1": ("prefill", "decode", "router"), "gpu-2": ("prefill", "decode", "router"), "gpu-3": ()}
    hosts = inventoried(every, gpu_2={"service": "chat"})
    assert [one.host for one in found(hosts)] == ["gpu-1"]
    assert [one.host for one in found(hosts, "chat")] == ["gpu-2"]
    assert "gpu-3" not in members.members(hosts)


@pytest.mark.parametrize(
    ("groups", "changes", "said"),
    [
        ({"gpu-1": ("prefill", "router")}, {}, "service 'main' (gpu-1) has no decode: put a host into the group decode"),
        ({**TWO_HOSTS, "gpu-1": ("prefill",)}, {}, "service 'main' (gpu-1, gpu-2) has no router"),
        ({**TWO_HOSTS, "gpu-1": ("router",)}, {}, "service 'main' (gpu-1, gpu-2) has no prefill"),
        (TWO_HOSTS, {"gpu_2": {"service_address": None}}, "gpu-2 serves together with gpu-1 (service 'main'): set "
         "service_address in group_data/gpu-2.py"),
        (TWO_HOSTS, {"gpu_1": {"service_address": "127.0.0.1"}}, "gpu-1: setting service_address = '127.0.0.1' is "
         "loopback"),
        (TWO_HOSTS, {"gpu_1": {"service_address": "lo"}}, "is loopback"),
        (TWO_HOSTS, {"gpu_1": {"service_address": "10.1.0.2"}}, "gpu-1 and gpu-2 both have service_address = '10.1.0.2'"),
        ({**TWO_HOSTS, "gpu-3": ("router",)}, {"gpu_3": {"service": "chat", "service_address": "10.1.0.2"}}, "gpu-2 and "
         "gpu-3 both have service_address = '10.1.0.2': one host is named twice"),
        ({"gpu-1": ("server",), "gpu-2": ("server",)}, {}, "service 'main' (gpu-1, gpu-2) has no router"),
        ({"gpu-1": ("server", "router"), "gpu-2": ("decode",)}, {}, "service 'main': gpu-2 plays decode, and gpu-1 "
         "server: servers that move KV and such that do not never serve together"),
        (TWO_HOSTS, {"gpu_2": {"roles": ["decod"]}}, "gpu-2: setting roles names 'decod': a host plays prefill, decode, "
         "server, router. Did you mean decode?"),
        (TWO_HOSTS, {"gpu_2": {"roles": "decode"}}, "gpu-2: setting roles = 'decode': write a list"),
        (TWO_HOSTS, {"gpu_2": {"service": 5}}, "gpu-2: setting service = 5: write text"),
        (TWO_HOSTS, {"gpu_2": {"service_address": ["10.1.0.2"]}}, "gpu-2: setting service_address = ['10.1.0.2']: write "
         "text"),
        (TWO_HOSTS, {"gpu_2": {"roles": ["prefill"]}}, "gpu-2: setting roles = ['prefill'], but the inventory has it in "
         "the groups decode"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    groups: Mapping[str, tuple[str, ...]], changes: Mapping[str, Mapping[str, object]], said: str
) -> None:
    assert said in fault(inventoried(groups, **changes))


def test_addresses_are_read_as_ip_prints_them() -> None:
    assert members.addresses(SHOWN) == TOLD


def test_an_answer_that_is_cut_short_is_no_fault_of_ours() -> None:
    assert members.addresses("2: eth0    inet 192.0.2.7/24\n3: eth1    inet") == {"eth0": ["192.0.2.7"]}


def member(reached: str) -> Member:
    return Member("gpu-1", "main", ("prefill",), reached, taken=True)


@pytest.mark.parametrize(
    ("reached", "settled"),
    [
        ("10.1.0.1", ("10.1.0.1", "eth1")),
        ("fd00::1", ("fd00::1", "eth1")),
        ("fd00:0:0::1", ("fd00::1", "eth1")),
        ("eth0", ("192.0.2.7", "eth0")),
    ],
)
def test_an_address_or_an_interface_says_where_a_host_is_reached(reached: str, settled: tuple[str, str]) -> None:
    assert members.resolved(member(reached), members.addresses(SHOWN)) == settled


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        ("10.9.9.9", "the host does not have it, it has 192.0.2.7 (eth0); 10.1.0.1, fd00::1 (eth1)"),
        ("eth9", "is neither an address nor an interface with one: the host has 192.0.2.7 (eth0)"),
        ("eth1", "has several addresses, 10.1.0.1, fd00::1: write the one to be used"),
    ],
)
def test_an_address_that_the_host_does_not_have_is_refused(reached: str, said: str) -> None:
    with pytest.raises(PlanError, match=r"gpu-1: setting service_address = ") as refused:
        members.resolved(member(reached), members.addresses(SHOWN))
    assert said in refused.value.lines[0]


def test_a_host_that_limit_leaves_out_is_reached_at_a_written_address_alone() -> None:
    assert members.resolved(member("10.1.0.1"), None) == ("10.1.0.1", "")
    with pytest.raises(PlanError, match="--limit leaves it out"):
        members.resolved(replace(member("eth1"), limited=True), None)
    with pytest.raises(PlanError, match="it cannot be reached"):
        members.resolved(member("eth1"), None)


def test_limit_may_leave_out_what_serves_already() -> None:
    hosts = inventoried(FOUR)
    every = found([*hosts[:2], replace(hosts[2], taken=False, limited=True)])
    urls = {"gpu-3": ["http://10.1.0.3:30001/health"]}
    assert members.left_out(every, {urls["gpu-3"][0]: True}, urls) == []
    (line,) = members.left_out(every, {urls["gpu-3"][0]: False}, urls)
    assert line.startswith("--limit leaves out gpu-3, and its decode does not serve at http://10.1.0.3:30001/health")
    assert members.told_of_limit(every) == "--limit leaves out gpu-3, which stay as they are"
    assert "no question is asked" in members.told_of_limit(
        found([replace(hosts[0], taken=False, limited=True), *hosts[1:]])
    )


# ---- services by name


def test_hosts_of_a_service_by_its_name() -> None:
    every = members.members(
        [*inventoried(), *inventoried({"gpu-3": ("prefill", "decode", "router")}, gpu_3={"service": "chat"})]
    )
    assert (members.of_service(every, "main"), members.of_service(every, "chat")) == (["gpu-1", "gpu-2"], ["gpu-3"])
    assert members.services(every).keys() == {"main"}


@pytest.mark.parametrize(
    ("groups", "line"),
    [
        (TWO_HOSTS, "no host is in a service 'mian': the inventory has main. Did you mean main?"),
        ({"gpu-1": ()}, "no host is in a service 'mian': every host serves alone: name the host."),
    ],
)
def test_a_service_that_is_none_is_one_line(groups: Mapping[str, tuple[str, ...]], line: str) -> None:
    with pytest.raises(PlanError) as fault:
        members.of_service(members.members(inventoried(groups)), "mian")
    assert fault.value.lines == (line,)
