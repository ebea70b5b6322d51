"""TCP ports of the plan: who holds them, and whether an outgoing connection may take them."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, error, healthy, warning
from tasks.plan.host.answers import Listener, read_listeners
from tasks.plan.host.matrices import number_list
from tasks.plan.phases import monitoring
from tasks.plan.service.strays import Stray, is_stray
from tasks.plan.service.units import is_ours


def _ports(found: Found) -> list[tuple[str, int, str]]:
    """Server, port, and the setting that says so."""
    of_servers = [(i.name, port, setting) for i in found.plan.instances for port, setting in i.ports]
    return of_servers + [("monitoring", port, setting) for setting, port in found.settings.monitoring_ports.items()]


def _holder(listener: Listener) -> str:
    return f"pid {listener.pid} ({listener.command})" if listener.pid else listener.command


@check(
    "host/ports/free",
    "plan",
    judges="each port of the plan is free, or one of our own units has it",
    source="sglang PR#21268, #37215",
    settings=("end_strays",),
    ask="ss -ltnp",
)
def free(found: Found) -> Verdict:
    holder = _strangers(found)
    ended = {port for port, each in holder.items() if found.settings.end_strays and _is_stray(each)}
    taken = [(name, port, setting) for name, port, setting in _ports(found) if port in holder and port not in ended]
    if taken:
        strays = " or, since it is a server of SGLang's outside every unit, set end_strays = True,"
        may_end = strays if any(_is_stray(holder[port]) for _, port, _ in taken) else ","
        return error(
            "; ".join(f"port {p} of {name} ({setting}) is taken by {_holder(holder[p])}" for name, p, setting in taken),
            f"end it{may_end} or set {' and '.join(dict.fromkeys(setting for *_, setting in taken))} to a free port",
            *(f"port {p}: {_holder(holder[p])}" for _, p, _ in taken),
        )
    named = [f"port {port}: this run ends {_holder(holder[port])}" for port in sorted(ended)]
    return healthy(f"{len(_ports(found))} ports are free or held by our own units", *named)


def _strangers(found: Found) -> dict[int, Listener]:
    """Who holds a port without being one of our units, by port."""
    found.text_or_empty("listeners")
    listeners = read_listeners(found.answers)
    watching = monitoring.UNITS_OF_OURS if found.system.monitored else ()
    return {
        each.port: each
        for each in listeners
        if each.protocol == "tcp" and not is_ours(each.unit or "") and each.unit not in watching
    }


def _is_stray(listener: Listener) -> bool:
    return listener.pid is not None and is_stray(listener.unit, listener.command)


def strays(found: Found) -> list[Stray]:
    """Servers of SGLang's outside every unit that hold a port of the plan."""
    wanted = {port for _, port, _ in _ports(found)}
    holders = [each for port, each in _strangers(found).items() if port in wanted and _is_stray(each)]
    return [Stray(each.pid, each.command, f"port {each.port}") for each in holders if each.pid is not None]


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
