"""What a run did, in the few lines that a user reads last: hosts one by one, then the verdict and how to go on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tasks.plan.errors import one_line, without_passwords
from tasks.plan.plan import Plan
from tasks.plan.service import caches

MOST_SHOWN = 6  # names of changes, and warnings; the report has them all
IN_FULL = 3  # hosts; of more than that those with nothing to tell get one line each


class Ending(StrEnum):
    """How a run ended on a host."""

    WELL = "ended well"
    DRY = "was a dry run"
    REFUSED = "was refused"
    FAILED = "failed"
    UNREACHED = "was not reached"
    UNFINISHED = "was not finished"  # the run ended elsewhere, or was interrupted
    UNBEGUN = "was not begun"  # nobody pressed Enter, or the run ended before its first operation

    @property
    def is_good(self) -> bool:
        return self in (Ending.WELL, Ending.DRY)

    @property
    def is_halfway(self) -> bool:
        """Whether an operation was begun and did not come to its end: what it did of it, nobody knows."""
        return self in (Ending.FAILED, Ending.UNFINISHED)


class Tone(StrEnum):
    """How a line looks on a terminal."""

    PLAIN = ""
    GOOD = "green"
    WARNS = "yellow"
    BAD = "red"


@dataclass(frozen=True)
class Line:
    text: str
    tone: Tone = Tone.PLAIN
    is_head: bool = False  # begins a part


@dataclass(frozen=True)
class Service:
    """What a host serves."""

    model: str
    address: str
    release: str
    servers: tuple[str, ...]  # those that run
    is_proven: bool = False  # whether this run has asked it
    is_routed: bool = True  # False: its router is on another host

    @classmethod
    def of(cls, plan: Plan, failed: Collection[str] = ()) -> Service:
        """What a plan leaves behind once every question is answered right. failed: hosts that were left out."""
        elsewhere = [one.role for one in plan.others if one.host not in failed] if plan.router else []
        names = (*(instance.name for instance in plan.instances), *elsewhere)
        address, routed = (plan.router.url, True) if plan.router else ("", False)
        return cls(plan.profile.served_name, address, plan.release.id, names, is_proven=True, is_routed=routed)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Service | None:
        """From the fact Serving; None where nothing of ours runs."""
        servers = tuple(map(str, found.get("servers") or ()))
        releases = sorted({str(one) for one in found.get("releases") or () if one})
        if not servers:
            return None
        release, routed = " and ".join(releases) or "unknown", found.get("routes") is not False
        return cls(str(found.get("model")), str(found.get("url")), release, servers, is_routed=routed)

    @property
    def layout(self) -> str:
        roles = [re.sub(r"-\d+$", "", name) for name in self.servers]
        counts = {role: roles.count(role) for role in roles if role != "router"}
        named = " and ".join(role if count == 1 else f"{count} {role}" for role, count in counts.items())
        return f"{named} apart" if len(counts) > 1 else named or "no server"

    @property
    def told(self) -> str:
        if not self.is_routed:
            return f"{self.layout} for the router on another host, release {self.release}"
        if "router" not in self.servers:
            running = f", only {self.layout} runs" if self.servers else ""
            return f"nothing: its router does not run{running}"
        asked = ", answers right" if self.is_proven else ", not asked by this run"
        return f"{self.model} at {self.address}, {self.layout}, release {self.release}{asked}"


@dataclass(frozen=True)
class HostRun:
    """A run as one host saw it."""

    name: str
    ending: Ending
    service: Service | None = None  # None where nothing serves, or nobody knows
    at: str = ""  # the operation that failed, or at which the run ended
    reasons: tuple[str, ...] = ()  # why it was refused or failed
    changed: tuple[str, ...] = ()  # operations that changed something; of a dry run those that would
    operations: int = 0
    restarts: Mapping[str, str] = field(default_factory=dict)  # server -> why
    compiled: Mapping[str, int] | None = None  # files that servers put into caches at their start; None: none started
    seconds: Mapping[str, float] = field(default_factory=dict)  # phase -> how long, in the order of the run
    warnings: tuple[str, ...] = ()
    report: str = ""  # path of the page
    routers: tuple[str, ...] = ()  # hosts with a router of its service
    is_compared: bool = True  # False of a dry run that was told not to look for changes
    is_taken_back: bool = False  # what served before a failed change serves again, and was asked
    is_asked: bool = True  # False where nobody knows: the host was not asked at the end, or gave no answer

    def as_data(self) -> dict[str, object]:
        """For the report."""
        return {
            "ending": str(self.ending),
            "good": self.ending.is_good,
            "serves": self.service.told if self.service else "",
            "answers": bool(self.service and self.service.is_proven and self.service.is_routed),
            "at": self.at,
            "reasons": list(self.reasons),
            "changed": list(self.changed),
            "operations": self.operations,
            "taken_back": self.is_taken_back,
            "restarts": dict(self.restarts),
            "compiled": None if self.compiled is None else dict(self.compiled),
            "seconds": {phase: round(took, 1) for phase, took in self.seconds.items()},
        }


def lines(hosts: Sequence[HostRun], again: str, services: Mapping[str, str] | None = None) -> list[Line]:
    """The last lines of a run. again: the command that goes on with what is not done. services: service of several
    hosts -> path of its page."""
    if not hosts:
        return []
    found = []
    short = len(hosts) > IN_FULL
    for host in hosts:
        if short and host.ending is Ending.WELL and not (host.restarts or host.warnings):
            found.append(Line(f"{host.name}: serves {_serves(host)}", is_head=True))
        else:
            found += _host(host)
    pages = [Line(f"service {name}: {page}", is_head=True) for name, page in (services or {}).items()]
    return [*found, *pages, *_verdict(hosts, again)]


def command(words: Sequence[str], hosts: Sequence[HostRun]) -> str:
    """The command line of this run, for those hosts alone that are not done. words: as the user typed them."""
    undone = [host for host in hosts if not host.ending.is_good]
    needed = {host.name for host in undone}.union(*(host.routers for host in undone))  # a router knows its servers
    left = [host.name for host in hosts if host.name in needed]
    kept, skip = [], False
    narrowed = len(left) < len(hosts)
    for word in words:
        if skip:
            skip = False
        elif narrowed and (word == "--limit" or word.startswith("--limit=")):
            skip = word == "--limit"
        else:
            kept.append(word)
    limits = [word for name in left for word in ("--limit", name)] if narrowed else []
    return shlex.join([*kept[:1], *limits, *_without_secrets(kept[1:])])


_SECRET = re.compile(r"(?i)(password|secret|token|api_?key)(?!_env)(?!.*_env=)")


_NAME = re.compile(r"((?:--data=)?[^=]*)=")  # of NAME=VALUE, also where it hangs on its option


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Values that nobody should read over somebody's shoulder are left out."""
    found, hide = [], False
    for word in words:
        if hide:
            found.append("...")
        elif (name := _NAME.match(word)) and _SECRET.search(word if name[1].endswith("_environment") else name[1]):
            found.append(f"{name[1]}=...")
        else:
            found.append(without_passwords(word))
        hide = word in ("--ssh-password", "--ssh-key-password")
    return found


def _host(host: HostRun) -> list[Line]:
    tone = Tone.GOOD if host.ending.is_good else Tone.BAD
    where = f" at {host.at!r}" if host.at and not host.ending.is_good else ""
    rows = [Line(f"{host.name}: {host.ending}{where}", tone, is_head=True)]
    rows += [
        _row("why" if number == 0 else "", reason, Tone.BAD) for number, reason in enumerate(_few(host, host.reasons))
    ]
    if host.ending is not Ending.UNREACHED:
        rows.append(_row("serves", _serves(host)))
        rows.append(_row("changed", _changes(host)))
    for number, (server, why) in enumerate(host.restarts.items()):
        rows.append(_row("servers" if number == 0 else "", f"{server}: {why}"))
    if host.compiled is not None:
        rows.append(_row("kernels", caches.told(host.compiled)))
    if host.seconds:
        rows.append(_row("took", _took(host.seconds)))
    warnings = enumerate(_few(host, host.warnings))
    rows += [_row("warns" if number == 0 else "", line, Tone.WARNS) for number, line in warnings]
    if host.report:
        rows.append(_row("report", host.report))
    return rows


def _row(name: str, text: str, tone: Tone = Tone.PLAIN) -> Line:
    return Line(f"  {name:9} {one_line(text)}", tone)


def _serves(host: HostRun) -> str:
    if host.service:
        return host.service.told
    return "nothing" if host.is_asked else "not known: the host gave no answer at the end"


def _changes(host: HostRun) -> str:
    """Few changes by their names, many by the number of each phase."""
    would = "would change " if host.ending is Ending.DRY else ""
    if not host.is_compared:
        return "nothing; what a run would change was not looked at, since -y skips that"
    if not host.changed:
        return f"{would}nothing{' before that' if host.ending.is_halfway else ''}"
    back = "; taken back, since it failed" if host.is_taken_back else ""
    if len(host.changed) <= MOST_SHOWN:
        return would + "; ".join(host.changed) + back
    return f"{would}{len(host.changed)} of {host.operations} things: {by_phase(host.changed)}{back}"


def by_phase(operations: Sequence[str]) -> str:
    """How many of each phase: "Launch 3, Services 1"."""
    counts: dict[str, int] = {}
    for name in operations:
        phase = phase_of(name) or name
        counts[phase] = counts.get(phase, 0) + 1
    return ", ".join(f"{phase} {count}" for phase, count in counts.items())


def phase_of(operation: str) -> str:
    """ "Launch" of "Launch | File /etc/sglang-pd/prefill.sh"; "" of an operation outside any phase."""
    phase, bar, _ = operation.partition(" | ")
    return phase if bar else ""


def _took(seconds: Mapping[str, float]) -> str:
    longest = ", ".join(f"{phase} {took:.0f}" for phase, took in seconds.items() if took >= 0.5)
    return f"{sum(seconds.values()):.0f} s" + (f": {longest}" if longest else "")


def _few(host: HostRun, told: Sequence[str]) -> list[str]:
    more = len(told) - MOST_SHOWN
    if more <= 0 or not host.report:
        return [*told]
    return [*told[:MOST_SHOWN], f"and {more} more: the report has them all"]


def _verdict(hosts: Sequence[HostRun], again: str) -> list[Line]:
    left = [host for host in hosts if not host.ending.is_good]
    if left:
        named = ", ".join(f"{host.name} ({host.ending})" for host in left)
        good = f"{len(hosts) - len(left)} of {len(hosts)} hosts are done; " if len(hosts) > 1 else ""
        touched = any(host.changed or host.ending.is_halfway for host in hosts)
        nothing = "" if touched else "nothing was changed; "
        broken = any(host.ending in (Ending.REFUSED, Ending.FAILED, Ending.UNREACHED) for host in left)
        how = "To go on, once that is mended:" if broken else "To go on:"
        return [
            Line(f"{good}{nothing}not done: {named}. {how}", Tone.BAD, is_head=True),
            Line(again),
        ]
    changed = sum(bool(host.changed) for host in hosts)
    names = hosts[0].name if len(hosts) == 1 else f"all {len(hosts)} hosts"
    verb = "is" if len(hosts) == 1 else "are"
    if not all(host.is_compared for host in hosts):
        return [Line("Dry run, nothing was changed. Leave out -y to see what a run would change.", Tone.GOOD, True)]
    if all(host.ending is Ending.DRY for host in hosts):
        told = f"a run would change {_of(changed, hosts)}" if changed else f"{names} {verb} as wanted"
        return [Line(f"Dry run, nothing was changed: {told}.", Tone.GOOD, is_head=True)]
    if any(host.service and host.service.is_routed for host in hosts):
        answers = "answers right" if len(hosts) == 1 else "answer right"
    else:
        answers = "ready; the router on another host was not asked"
    if not changed:
        return [Line(f"Nothing to change: {names} {verb} as wanted and {answers}.", Tone.GOOD, is_head=True)]
    return [Line(f"Done: {names} {verb} as wanted and {answers}; {_of(changed, hosts)} changed.", Tone.GOOD, True)]


def _of(changed: int, hosts: Sequence[HostRun]) -> str:
    if len(hosts) == 1:
        return f"{len(hosts[0].changed)} of {hosts[0].operations} things"
    return f"{changed} of {len(hosts)} hosts"
