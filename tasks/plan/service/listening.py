"""Do the running servers listen where they are planned to, and who else can reach what is wider?

torch.distributed's store listens on every address of the host, whatever address it is given, and asks for no key.
What a server opens wider than planned is therefore closed from outside, by systemd's filter for its unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.plan.host.answers import Answer, Listener, read_listeners
from tasks.plan.service.instances import Instance
from tasks.plan.service.network import ALLOW, DENY
from tasks.plan.settings.roles import is_loopback
from tasks.plan.settings.settings import Settings

ID = "service/listeners/planned"  # as the setting silenced_checks names it
ENFORCED, NOT_ENFORCED = "refused", "passed"  # what the section "enforced" says
_EVERY = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Verdict:
    """faults: a line for each socket that others can reach against the plan. closed: wider ones that the filter closes.
    seen: sockets that were looked at."""

    faults: tuple[str, ...]
    closed: tuple[str, ...]
    seen: int


def judge(sections: Mapping[str, Answer], instances: tuple[Instance, ...], settings: Settings) -> Verdict:
    """Every socket of every process of the units. Raises PlanError where the host's answer cannot be read."""
    unit_of = {instance.unit: instance for instance in instances}
    enforced = sections.get("enforced", Answer(1, "")).text.strip() == ENFORCED
    faults: list[str] = []
    closed: list[str] = []
    seen: list[str] = []
    for listener in read_listeners(sections):
        instance = unit_of.get(listener.unit or "")
        if instance is None:
            continue
        seen.append(instance.name)
        if _planned(listener, instance, settings):
            continue
        where = f"{_spoken(listener)}, port {listener.port}/{listener.protocol}{_setting(listener, instance)}"
        if not _denies(sections.get(instance.unit)):
            why = "its unit has no address filter"
        elif not enforced:
            why = "the address filter of its unit is not enforced on this host"
        else:
            closed.append(f"{instance.name}: {where}")
            continue
        faults.append(
            f"{instance.name}: pid {listener.pid} ({listener.command}) listens on {where}; planned is "
            f"{_wanted(instance, settings)}, and {why}"
        )
    for instance in instances:
        if instance.name not in seen:
            faults.append(f"{instance.name}: no socket of {instance.unit} could be seen, although it answers")
    return Verdict(tuple(faults), tuple(closed), len(seen))


def _planned(listener: Listener, instance: Instance, settings: Settings) -> bool:
    if is_loopback(listener.address) or listener.address == instance.address:
        return True
    wanted = {settings.router_port: settings.router_host, settings.router_metrics_port: settings.router_metrics_host}
    host = wanted.get(listener.port) if not instance.is_worker and listener.protocol == "tcp" else None
    return host is not None and not is_loopback(host)  # beyond loopback by the user's own word


def _wanted(instance: Instance, settings: Settings) -> str:
    if instance.is_worker:
        return instance.address
    hosts = dict.fromkeys((settings.router_host, settings.router_metrics_host))
    return " and ".join(hosts)


def _denies(answer: Answer | None) -> bool:
    """Whether systemd's filter of a unit closes every address that is not listed: as `systemctl show` prints it."""
    said = dict(line.partition("=")[::2] for line in (answer.text if answer else "").splitlines())
    denied, allowed = (set(said.get(name, "").split()) for name in (DENY, ALLOW))
    every = {"0.0.0.0/0", "::/0"}
    return every <= denied and not every & allowed


def _spoken(listener: Listener) -> str:
    return "every address" if listener.address in _EVERY else listener.address


def _setting(listener: Listener, instance: Instance) -> str:
    name = dict(instance.ports).get(listener.port)
    return f" ({name})" if name else ""
