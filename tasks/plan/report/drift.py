"""Wanted, on disk, running: what differs on a host, as rows of a table. What changes it back, deploy.py does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tasks.plan.files import FoundPath, FoundPaths, WantedFile, compare
from tasks.plan.plan import Plan
from tasks.plan.release.manifest import damage
from tasks.plan.service.instances import Instance
from tasks.plan.service.restarts import DOWN, PART_NAMES, Fingerprint, FoundUnits, Running

AS_WANTED, ANOTHER, NOT_RUNNING = "as wanted", "another", "not running"
FILES = ("script", "environment", "unit")  # parts of a fingerprint that are files of an instance


@dataclass(frozen=True)
class Row:
    """One thing that differs. `operation`: that of deploy.py which puts it right."""

    what: str  # "decode: launch script"
    wanted: str
    on_disk: str
    running: str  # "" where no process has it
    operation: str

    def as_data(self) -> dict[str, str]:
        return asdict(self)


def rows(
    plan: Plan,
    files: Mapping[str, Sequence[WantedFile]],
    fingerprints: Mapping[str, Fingerprint],
    found: FoundPaths,
    units: FoundUnits,
) -> tuple[Row, ...]:
    """What differs of servers and release. files: instance name -> its launch script, environment and unit."""
    every = [_release(plan, found, units), *(_packages(plan, part, fingerprints, units) for part in ("env", "router"))]
    for instance in plan.instances:
        running, wanted = units.instances[instance.name], fingerprints[instance.name]
        restarts = running_operation(plan, instance)
        for part, file in zip(FILES, files[instance.name], strict=True):
            every.append(_file(instance, part, file, found[file.path], wanted, running, restarts))
        every += [_key(instance, wanted, running, restarts), _unit(instance, running, units, restarts)]
    return tuple(row for row in every if row)


def running_operation(plan: Plan, instance: Instance) -> str:
    """The operation that starts an instance again."""
    names = [worker.name for worker in plan.workers] if instance.is_worker else [instance.name]
    return f"Services | Running: {', '.join(names)}"


def others(planned: Iterable[str], known: Iterable[Row]) -> tuple[Row, ...]:
    """Rows for operations that a run would change something with, where no row tells of them yet."""
    told = {operation for row in known for operation in row.operation.split("; ")}
    return tuple(Row(name, AS_WANTED, "differs", "", name) for name in planned if name not in told)


def table(found: Sequence[Row]) -> list[str]:
    """Lines for a terminal."""
    cells = [("what", "wanted", "on disk", "running"), *((r.what, r.wanted, r.on_disk, r.running) for r in found)]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def verdict(service: str, found: Mapping[str, Sequence[Row]]) -> str:
    """Of a service whose hosts were compared, one line. found: by host."""
    differ = [host for host, rows in found.items() if rows]
    if not differ:
        return f"service {service}: nothing differs on its {len(found)} hosts"
    return f"service {service}: {len(differ)} of {len(found)} hosts differ: {', '.join(differ)}"


def in_planned(report: Mapping[str, Any], host: str) -> list[str]:
    """Names of the operations that a dry run, by pyinfra's JSON, would change something with on a host."""
    return [operation["name"] for operation in report["plan"] if host in operation["hosts_with_change"]]


def _runs(running: Running, differs: bool) -> str:
    if running.active in DOWN:
        return NOT_RUNNING
    if running.fingerprint is None:
        return "nobody knows"
    return ANOTHER if differs else AS_WANTED


def _file(
    instance: Instance,
    part: str,
    wanted: WantedFile,
    found: FoundPath,
    fingerprint: Fingerprint,
    running: Running,
    restarts: str,
) -> Row | None:
    difference = compare(wanted, found)
    other = running.fingerprint is not None and fingerprint.differs(running.fingerprint, part)
    if not difference and not other:
        return None
    operations = [f"Launch | File {wanted.path}"] if difference else []
    return Row(
        f"{instance.name}: {PART_NAMES[part]}",
        f"{wanted.sha256[:8]} {wanted.mode} {wanted.owner}:{wanted.group}",
        _on_disk(wanted, found),
        _runs(running, other),
        "; ".join([*operations, *([restarts] if other else [])]),
    )


def _on_disk(wanted: WantedFile, found: FoundPath) -> str:
    difference = compare(wanted, found)
    if not difference:
        return AS_WANTED
    if found.kind != "file":
        return {"absent": "not there", "link": f"a link to {found.target}"}.get(found.kind, f"a {found.kind}")
    return f"{found.digest[:8]} {found.mode} {found.owner}:{found.group}"


def _key(instance: Instance, wanted: Fingerprint, running: Running, restarts: str) -> Row | None:
    if running.fingerprint is None or not wanted.differs(running.fingerprint, "secret"):
        return None
    return Row(f"{instance.name}: {PART_NAMES['secret']}", "not shown", "", _runs(running, True), restarts)


def _unit(instance: Instance, running: Running, units: FoundUnits, restarts: str) -> Row | None:
    """Whether it runs, starts at boot, and says all that holds."""
    drop_ins = [path for path in units.drop_ins if f"/{instance.unit}.d/" in path]
    down = running.active not in ("active", "activating") or running.sub.startswith("auto-restart")
    if running.enabled and not drop_ins and not down:
        return None
    operations = [
        *([] if running.enabled else [f"Services | Enabled {instance.unit}"]),
        *(["Services | No drop-ins over single units"] if drop_ins else []),
        *([restarts] if down else []),
    ]
    on_disk = ["enabled" if running.enabled else "not enabled", *drop_ins]
    return Row(
        f"{instance.name}: unit", "enabled, active", ", ".join(on_disk), f"{running.active} ({running.sub})",
        "; ".join(operations),
    )  # fmt: skip


def _release(plan: Plan, found: FoundPaths, units: FoundUnits) -> Row | None:
    wanted, link = plan.release.id, found[plan.paths.current]
    on_disk = link.target.rpartition("/")[2] if link.target == plan.release_directory else link.target or "none"
    left = {i.name: units.instances[i.name].fingerprint for i in plan.instances}
    other = {name: mark.release for name, mark in left.items() if mark and mark.release != wanted}
    if on_disk == wanted and not other:
        return None
    running = ", ".join(f"{name} {release}" for name, release in other.items())
    restarts = {running_operation(plan, instance) for instance in plan.instances if instance.name in other}
    moved = [] if on_disk == wanted else [f"Activate | Current release is {wanted}"]
    return Row("release", wanted, on_disk, running or AS_WANTED, "; ".join([*moved, *sorted(restarts)]))


def _packages(plan: Plan, part: str, fingerprints: Mapping[str, Fingerprint], units: FoundUnits) -> Row | None:
    """Files of an environment, compared with their lock and record. Another release's are told by its own row, and
    what a run starts for another reason by that one's."""
    if plan.release.existing:
        return None
    lines = damage((plan.built or {}).get(part)) if plan.built else ["not built"]
    of_part = [instance for instance in plan.instances if instance.part == part]
    other: dict[str, list[Instance]] = {}  # what is known of those that restart for it
    for instance in of_part:
        running = units.instances[instance.name]
        mark = running.fingerprint
        if mark and running.active not in DOWN and fingerprints[instance.name].differs(mark, "packages"):
            known = "nobody knows" if mark.packages is None else "started before the repair"
            other.setdefault(known, []).append(instance)
    if not lines and not other:
        return None
    on_disk = lines[0] + (f", and {len(lines) - 1} more" if len(lines) > 1 else "") if lines else AS_WANTED
    restarts = sorted({running_operation(plan, instance) for same in other.values() for instance in same})
    repaired = [f"Runtime | Release {plan.release.id}"] if lines else []
    told = [f"{', '.join(instance.name for instance in same)}: {known}" for known, same in other.items()]
    return Row(
        f"packages of {part}", "as locked", on_disk,
        "; ".join(told), "; ".join([*repaired, *restarts]),
    )  # fmt: skip
