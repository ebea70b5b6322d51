"""Folders of root's and of the service user's, and the user itself: what root may trust, and what it may give away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy
from tasks.plan.files import WantedDirectory
from tasks.plan.phases.system import directories


@dataclass(frozen=True)
class Part:
    """A folder on the way to one of ours, as it is on the host; of a link, mode and owner are those of its target."""

    kind: str  # directory, link, other
    mode: str
    owner: str
    group: str
    path: str
    target: str  # of a link


def _parts(text: str) -> tuple[list[Part], bool]:
    """The parts that are there, from the top, and whether something lies in the last one."""
    lines = text.splitlines()
    filled = lines[-1:] == ["filled"]
    return [Part(*line.split("\t")) for line in (lines[:-1] if filled else lines)], filled


def _others_may_write(part: Part) -> bool:
    return part.owner != "root" or bool(int(part.mode or "0", 8) & (0o002 if part.group == "root" else 0o022))


def _faults(wanted: WantedDirectory, text: str, tops: tuple[str, ...]) -> Iterator[str]:
    """Why root cannot make, or give away, this folder: one line each, with what to do."""
    parts, filled = _parts(text)
    for part in parts:
        ours = any(part.path == top or part.path.startswith(f"{top}/") for top in tops)
        if ours and part.kind == "link":
            yield (
                f"{part.path} is a link to {part.target}, a folder belongs there: take the link away; "
                "to have it on another disk, mount that there or name it in the setting"
            )
            return
        if part.kind == "other" or not part.mode:
            yield f"{part.path} is no folder: take it away, or name another one"
            return
        if not ours and _others_may_write(part):
            yield (
                f"{part.path} belongs to {part.owner}:{part.group} with mode {part.mode}: whoever may write there "
                f"can put a link in the place of {wanted.path}; name a folder below one that only root writes to"
            )
            return
    if not parts or parts[-1].path != wanted.path:
        return
    last = parts[-1]
    same = last.owner == wanted.owner and (wanted.owner == wanted.group == "root" or last.group == wanted.group)
    if not same and (filled or last.owner != "root" or wanted.by != "root"):
        yield (
            f"{wanted.path} belongs to {last.owner}:{last.group}, not to {wanted.owner}:{wanted.group}: "
            "name another folder, or give it to them if it is meant for this service"
        )


@check(
    "host/folders/ours",
    "plan",
    judges="root_dir, config_dir, state_dir and what this run makes in them: no links, on the way to them only root "
    "writes, and what belongs to somebody else is not given away",
    source="root runs what lies there, and would follow a link that another user put there",
    settings=("root_dir", "config_dir", "state_dir", "service_user"),
    ask="namei -l",
    never_silenced=True,
)
def ours(found: Found) -> Verdict:
    settings = found.settings
    tops = (settings.root_dir, settings.config_dir, settings.state_dir)
    wanted = directories(found.plan)
    faults = dict.fromkeys(
        fault for one in wanted for fault in _faults(one, found.text_or_empty(f"place {one.path}"), tops)
    )
    if faults:
        return error("; ".join(faults), "")
    return healthy(f"{len(wanted)} folders are ours, or are made by this run")


@check(
    "host/user/service",
    "system",
    judges="the service user is not root under another name",
    source="servers parse what strangers send",
    settings=("service_user",),
    ask="getent passwd",
    never_silenced=True,
)
def service_user(found: Found) -> Verdict:
    name, entry = found.settings.service_user, found.system.user
    if entry and entry.split(":")[2:3] == ["0"]:
        return error(f"service_user = {name!r} is root under another name", "name another user", entry)
    return healthy(f"user {name} is {'there' if entry else 'made by this run'}")
