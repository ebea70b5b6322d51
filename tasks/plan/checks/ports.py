"""TCP ports of the plan: who holds them, and whether an outgoing connection may take them."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, error, healthy, warning
from tasks.plan.host.answers import Listener, read_listeners
from tasks.plan.host.matrices import number_list
from tasks.plan.service.units import is_ours


def _ports(found: Found) -> list[tuple[str, int, str]]:
    """Server, port, and the setting that says so."""
    return [(i.name, port, setting) for i in found.plan.instances for port, setting in i.ports]


def _holder(listener: Listener) -> str:
    return f"pid {listener.pid} ({listener.command})" if listener.pid else listener.command


@check(
    "host/ports/free",
    "plan",
    judges="each port of the plan is free, or one of our own units has it",
    source="sglang PR#21268, #37215",
    ask="ss -ltnp",
)
def free(found: Found) -> Verdict:
    found.text_or_empty("listeners")
    listeners = read_listeners(found.answers)
    holder = {each.port: each for each in listeners if not is_ours(each.unit or "")}
    taken = [(name, port, setting) for name, port, setting in _ports(found) if port in holder]
    if taken:
        return error(
            "; ".join(f"port {p} of {name} ({setting}) is taken by {_holder(holder[p])}" for name, p, setting in taken),
            f"end it, or set {' and '.join(dict.fromkeys(setting for *_, setting in taken))} to a free port",
            *(f"port {p}: {_holder(holder[p])}" for _, p, _ in taken),
        )
    return healthy(f"{len(_ports(found))} ports are free or held by our own units")


@check(
    "host/ports/ephemeral",
    "plan",
    judges="no port of the plan lies in the range of outgoing connections, unless it is reserved",
    source="sglang PR#37215; kernel documentation, ip_local_reserved_ports",
    settings=("reserve_ports",),
    ask="sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports",
    required=False,
)
def ephemeral(found: Found) -> Verdict:
    if found.settings.reserve_ports:
        return healthy("this run reserves the ports of the plan")
    words = (found.system.sysctls.get("net.ipv4.ip_local_port_range") or "").split()
    if len(words) != 2:
        raise Unreadable("no range in it", *words)
    reserved = number_list(found.system.sysctls.get("net.ipv4.ip_local_reserved_ports") or "")
    low, high = map(int, words)
    inside = [(name, p) for name, p, _ in _ports(found) if low <= p <= high and p not in reserved]
    if inside:
        named = ", ".join(f"{port} ({name})" for name, port in inside)
        return warning(
            f"an outgoing connection may take port {named}", "set reserve_ports = True", f"range {low}-{high}"
        )
    return healthy(f"no port of the plan lies in {low}-{high} unreserved")
