"""Three states of a server, compared separately: wanted, on disk, running. What must restart, and why."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer, json_object
from tasks.plan.service.api_key import is_of
from tasks.plan.service.instances import Instance, goes_with, kv_pairs
from tasks.plan.service.paths import DEVICES, UNITS, WATCHDOG
from tasks.plan.service.units import written_by_us
from tasks.plan.settings.settings import Settings

BESIDE = frozenset((DEVICES, WATCHDOG))  # units of ours that run neither a server nor the router
DOWN = ("inactive", "failed")  # ActiveState of a unit that holds nothing
# Of a unit file, what stands below this line never reaches the process: a daemon-reload applies it, no restart.
SYSTEMDS_OWN = "# Systemd alone reads what follows: a change of it restarts nothing."
PARTS = ("script", "environment", "unit", "secret", "release", "packages")
PART_NAMES = {
    "script": "launch script", "environment": "environment file", "unit": "unit file",
    "secret": "API key or certificate", "release": "release", "packages": "state of its packages",
}  # fmt: skip

REPAIRED = "repaired"  # packages that this run puts right: no server was started from what they will be


@dataclass(frozen=True)
class Fingerprint:
    """What a server executes: hashes of what it sees of its files, and the id of its release."""

    script: str
    environment: str
    unit: str
    secret: str | bytes | None = field(repr=False)  # the key's file where it is wanted, a salted hash where it runs
    release: str
    packages: str | None = None  # of its environment's record, which each repair makes anew; None: others made it

    def differs(self, running: Fingerprint, part: str) -> bool:
        """Whether what is wanted is another than what runs."""
        if part == "secret":
            return not is_of(running.secret, self.secret)
        if part == "packages" and (self.packages is None or self.release != running.release):
            return False  # nobody's to repair, or another release, which has other packages
        return bool(getattr(self, part) != getattr(running, part))


def seen(content: bytes) -> bytes:
    """What a server sees of a file that it is started from: no comment line, and nothing that is systemd's own.

    files/bin/pd-launch hashes the same of what it starts.
    """
    lines = content.splitlines(keepends=True)
    end = next((number for number, line in enumerate(lines) if line.startswith(SYSTEMDS_OWN.encode())), None)
    return b"".join(line for line in lines[:end] if not line.startswith(b"#"))


@dataclass(frozen=True)
class Running:
    """A unit of systemd as it was found, with the fingerprint that its launcher left."""

    active: str  # systemd's ActiveState
    sub: str
    enabled: bool
    stale: bool  # systemd has read another unit file than the one on disk
    fingerprint: Fingerprint | None


ABSENT = Running("inactive", "dead", enabled=False, stale=False, fingerprint=None)


@dataclass(frozen=True)
class Serving:
    """Units that run before this run changes anything."""

    units: tuple[str, ...]
    replaced: bool  # every worker among them belongs to another layout: this run ends them anyway


@dataclass(frozen=True)
class FoundUnits:
    """What systemd knows: by instance name, and of every unit file of ours on disk whether it is active."""

    instances: Mapping[str, Running]
    files: Mapping[str, bool]
    target_enabled: bool
    drop_ins: tuple[str, ...] = ()  # files and folders that somebody laid over single units of the plan
    watchdog_enabled: bool = False

    @property
    def stale(self) -> bool:
        return any(running.stale for running in self.instances.values())

    def without_instance(self, instances: tuple[Instance, ...]) -> list[str]:
        """Units of servers that no instance of the plan needs."""
        return sorted(set(self.files) - BESIDE - {instance.unit for instance in instances})

    @property
    def watching(self) -> bool:
        return self.files.get(WATCHDOG, False)

    def left_over(self, instances: tuple[Instance, ...], beside: Collection[str]) -> list[str]:
        """Units of ours that the plan does not have. beside: as Plan.beside."""
        return [*self.without_instance(instances), *sorted(BESIDE & self.files.keys() - {*beside})]

    def serving(self, instances: tuple[Instance, ...]) -> Serving:
        """The units that run now."""
        running = {i.unit for i in instances if self.instances[i.name].active not in DOWN}
        left_over = {unit for unit in self.without_instance(instances) if self.files[unit]}
        workers = {i.unit for i in instances if i.is_worker}
        return Serving(tuple(sorted(running | left_over)), bool(left_over) and not running & workers)


def read_units(sections: Mapping[str, Answer], instances: tuple[Instance, ...], target: str) -> FoundUnits:
    """From the fact Units. A fingerprint that cannot be read counts as none.

    Raises PlanError for a cut answer, and where somebody else's unit has a name that the plan needs.
    """

    def text(name: str) -> str:
        return _text(sections, name)

    def shown_of(unit: str) -> dict[str, str]:
        return {key: value for key, _, value in (line.partition("=") for line in text(unit).splitlines())}

    found = {}
    for instance in instances:
        shown = shown_of(instance.unit)
        if shown.get("LoadState") != "loaded" and shown.get("ActiveState", "inactive") in DOWN:
            found[instance.name] = ABSENT
            continue
        found[instance.name] = Running(
            active=shown.get("ActiveState", "inactive"),
            sub=shown.get("SubState", "dead"),
            enabled=shown.get("UnitFileState") == "enabled",
            stale=shown.get("NeedDaemonReload") == "yes",
            fingerprint=_fingerprint(text(f"{instance.unit} fingerprint")),
        )
    files = {unit: state not in DOWN for unit, state in own_units(sections, [i.unit for i in instances]).items()}
    drop_ins = tuple(text("drop-ins").splitlines())
    at_boot, watching = (shown_of(unit).get("UnitFileState") == "enabled" for unit in (target, WATCHDOG))
    return FoundUnits(found, files, at_boot, drop_ins, watching)


def own_units(sections: Mapping[str, Answer], needed: Sequence[str] = ()) -> dict[str, str]:
    """From the fact Units: every unit on disk that is ours, with systemd's ActiveState.

    needed: names that nobody else may have. Raises PlanError where somebody has, and for a cut answer.
    """
    files, foreign = {}, []
    for unit, state, encoded in re.findall(r"^(\S+) (\S+) ([A-Za-z0-9+/=]*)$", _text(sections, "files"), re.MULTILINE):
        try:
            content = base64.b64decode(encoded, validate=True).decode(errors="replace")
        except ValueError:
            raise PlanError(f"the host's answer about {UNITS}/{unit} is cut short; run again") from None
        if written_by_us(unit, content):
            files[unit] = state
        elif content.strip() and unit in needed:
            foreign.append(f"{UNITS}/{unit} was not written by this playbook, and it needs that name: move it away")
    if foreign:
        raise PlanError(*foreign)
    return files


def _text(sections: Mapping[str, Answer], name: str) -> str:
    if name not in sections:
        raise PlanError(f"systemd's answer is cut short: it holds no {name!r}; run again")
    return sections[name].text


class Phase(StrEnum):
    """How far a unit is that was asked to start."""

    STOPPING = "stopping"  # what ran before drains; the unit itself limits that
    QUEUED = "queued"  # systemd has it in line behind something else, such as the network
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Look:
    """One look at a unit that was asked to start."""

    active: str  # systemd's ActiveState
    sub: str
    job: bool  # systemd has something to do for it
    waiting_for: str  # what its gate waits for, "" where it does not say

    @property
    def phase(self) -> Phase:
        if self.active == "active":
            return Phase.QUEUED if self.job else Phase.READY  # the one before still runs: its restart has not begun
        if self.active == "deactivating":
            return Phase.STOPPING
        if self.active in DOWN:
            return Phase.QUEUED if self.job else Phase.FAILED
        return Phase.FAILED if "auto-restart" in self.sub else Phase.STARTING

    @property
    def words(self) -> str:
        """What it does, for a line of progress."""
        if self.phase is Phase.QUEUED:
            return "queued by systemd behind another unit (systemctl list-jobs)"
        return self.waiting_for or self.phase if self.phase is Phase.STARTING else self.phase


def read_gates(sections: Mapping[str, Answer], units: Sequence[str]) -> dict[str, Look]:
    """From the fact Gates, by unit. One whose answer is cut short is left out."""
    found = {}
    for unit in units:
        if unit in sections and f"{unit} gate" in sections:
            shown = dict(line.partition("=")[::2] for line in sections[unit].text.splitlines())
            waiting_for = (json_object(sections[f"{unit} gate"].text) or {}).get("waiting_for")
            found[unit] = Look(
                shown.get("ActiveState", ""),
                shown.get("SubState", ""),
                shown.get("Job", "0") not in ("", "0"),
                str(waiting_for or ""),
            )
    return found


def reason_to_restart(wanted: Fingerprint, found: Running) -> str | None:
    """Why a server must be (re)started, or None where it runs what is wanted."""
    if found.sub.startswith("auto-restart"):
        return "restarts, it keeps failing"
    if found.active not in ("active", "activating"):
        return f"starts, it is {found.active}"
    if found.fingerprint is None:
        return "restarts, it left no fingerprint of what it runs"
    changed = [part for part in PARTS if wanted.differs(found.fingerprint, part)]
    if changed == ["packages"] and wanted.packages == REPAIRED:
        return "restarts, this run repairs its packages"
    named = " and ".join(PART_NAMES[part] for part in changed)
    return f"restarts, it was started with another {named}" if changed else None


def restarts(
    instances: tuple[Instance, ...],
    wanted: Mapping[str, Fingerprint],
    found: Mapping[str, Running],
    settings: Settings,
) -> dict[str, str]:
    """Instance name -> why it restarts. With restart_scope "pair" prefill and decode of a host go together; a lone
    decode server always takes prefill along."""
    reasons = {}
    for instance in instances:
        reason = reason_to_restart(wanted[instance.name], found[instance.name])
        if reason:
            reasons[instance.name] = reason
    workers = [instance.name for instance in instances if instance.is_worker]
    cause = next((name for name in workers if name in reasons), None)
    if cause and settings.restart_scope == "pair" and kv_pairs(instances):
        for name in workers:
            reasons.setdefault(name, f"restarts with {cause}: a half-replaced pair can stall")
    for prefill, decode in goes_with(instances).items():
        if decode.name in reasons:
            reasons.setdefault(prefill, f"restarts with {decode.name}: it holds that one's KV cache mapped")
    if settings.reprove and settings.place.alone:  # of several hosts they start again at once
        for instance in instances:
            reasons.setdefault(instance.name, "starts again, it was drained for the proof")
    return reasons


def waiting(instances: tuple[Instance, ...], found: Mapping[str, Running]) -> list[str]:
    """Instances whose gate has not passed yet, although nothing has to restart them."""
    return [instance.name for instance in instances if found[instance.name].active == "activating"]


def _fingerprint(text: str) -> Fingerprint | None:
    left = json_object(text) or {}
    if not all(part in left for part in PARTS if part != "packages"):  # which launchers left out until December 2026
        return None
    return Fingerprint(**{part: left[part] for part in PARTS if part in left})


def restarting(instances: Iterable[Instance]) -> str:
    """The command that restarts servers. Their gates say when they are ready: it does not wait."""
    units = shlex.join(instance.unit for instance in instances)
    # reset-failed: an earlier start limit must not stand in the way of a start that is asked for
    return f"systemctl reset-failed {units} 2>/dev/null; systemctl restart --no-block {units}"
