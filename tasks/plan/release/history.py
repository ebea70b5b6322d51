"""The releases that a host keeps: which is current, which served before it, and a pin that holds it on one of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.release import lock
from tasks.plan.release.manifest import Release

# What pd-build and a removal leave behind where they are killed: .ID.building and the like.
LEFTOVER = re.compile(r"\.[A-Za-z0-9][A-Za-z0-9._+-]*\.(building|replaced|repairing|removing)")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # what a release's folder can be called


class Pin(BaseModel):
    """CONFIG_DIR/pin.json: a rollback that later runs leave alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release: Annotated[str, Field(pattern=rf"^{ID.pattern}$")]  # id
    instead_of: Annotated[str, Field(pattern=rf"^{ID.pattern}$")]  # id of the release that the settings asked for
    by: str  # user and machine that ran the rollback
    at: str  # UTC, ISO 8601
    why: str  # the setting rollback_reason, "" where nobody gave one

    def also(self, why: str) -> Pin:
        """Held for a further reason too: the first one stays."""
        reasons = [*filter(None, self.why.split("; ")), *([why] if why and why not in self.why else [])]
        return self.model_copy(update={"why": "; ".join(reasons)})

    @property
    def told(self) -> str:
        return f"pinned to {self.release} by {self.by} at {self.at}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class History:
    """Releases by id, "" where there is none. `served`: those that have given right answers."""

    current: str = ""
    previous: str = ""  # the last that served before the current one
    built: tuple[str, ...] = ()
    served: frozenset[str] = frozenset()
    leftovers: tuple[str, ...] = ()  # names of what an interrupted run left beside them
    pin: Pin | None = None

    def previous_once(self, wanted: str) -> str:
        """What `previous` names when `wanted` is current: a release that never served is nothing to go back to."""
        return self.current if self.current != wanted and self.current in self.served else self.previous

    def superseded(self, wanted: str, pin: Pin | None) -> tuple[str, ...]:
        """Releases to remove once `wanted` serves: all but it, the one before, and what a pin is there instead of."""
        staying = {wanted, self.previous_once(wanted), pin.instead_of if pin else ""}
        return tuple(release for release in self.built if release not in staying)


NOTHING = History()


def read(answers: Mapping[str, Answer], pin_path: str, unpin: bool) -> History:
    """From the fact ReleaseHistory. Raises PlanError for a cut answer, or a pin that cannot be read and is to hold."""

    def text(name: str) -> str:
        if name not in answers:
            raise PlanError(f"the host's list of releases is cut short: it holds no {name!r}; run again")
        return answers[name].text.strip()

    built, served, hidden = (tuple(text(name).splitlines()) for name in ("built", "served", "hidden"))
    pin = None
    if text("pin") and not unpin:
        try:
            pin = Pin.model_validate_json(text("pin"))
        except ValidationError:
            raise PlanError(
                f"{pin_path} says on which release the host stays, and cannot be read: to remove it and go on to the "
                "release of the settings, run with --data unpin=True"
            ) from None
    return History(
        current=_id(text("current")),
        previous=_id(text("previous")),
        built=tuple(filter(ID.fullmatch, built)),
        served=frozenset(filter(ID.fullmatch, served)),
        leftovers=tuple(name for name in hidden if LEFTOVER.fullmatch(name)),
        pin=pin,
    )


def goal(history: History, rollback: bool) -> str:
    """Id of the kept release that the host goes to or stays on, "" where the settings' own is wanted.

    A host that was rolled back is not rolled back further. Raises PlanError where there is nothing to go back to.
    """
    if history.pin:
        return history.pin.release
    if not rollback:
        return ""
    if not history.previous or history.previous == history.current:
        there = ", ".join(history.built) or "no release"
        raise PlanError(
            f"setting rollback = True: no other release has served here before {history.current or 'now'} "
            f"(the host keeps {there}): name the wanted one in the setting release"
        )
    return history.previous


@dataclass(frozen=True)
class Description:
    """A release as the host keeps it: enough to plan with it, whatever this checkout holds by now."""

    release: Release
    arguments: tuple[str, ...]  # long options that its server knows, sorted

    def to_json(self) -> bytes:
        return _DESCRIPTION.dump_json(self, indent=1) + b"\n"


_DESCRIPTION = TypeAdapter(Description)


def read_description(text: str, release: str, path: str) -> Description:
    """Raises PlanError where the host holds none, or another."""
    try:
        found = _DESCRIPTION.validate_json(text)
    except ValidationError:
        what = "is not there" if not text.strip() else "cannot be read"
        raise PlanError(
            f"the host cannot go back to release {release}: its description {path} {what}; name the release that you "
            "want in the setting release, and where the host is pinned add --data unpin=True"
        ) from None
    if found.release.id != release:
        raise PlanError(
            f"the host cannot go back to release {release}: {path} describes {found.release.id}, somebody has changed "
            "it; name the release that you want in the setting release, and where the host is pinned add "
            "--data unpin=True"
        )
    return found


def package_changes(wanted: Release, kept: str) -> list[str]:
    """What a switch from another release does to packages, a line for each environment. kept: text of its description.

    [] where nothing can be said: no release served, or what is kept of it is damaged or an environment of others.
    """
    try:
        serving = _DESCRIPTION.validate_json(kept).release
        pairs = {"servers": (serving.lock, wanted.lock), "router": (serving.router_lock, wanted.router_lock)}
        moves = {
            name: lock.moves(lock.read(before, name), lock.read(now, name)) for name, (before, now) in pairs.items()
        }
    except (ValidationError, PlanError):
        return []
    return [f"{name}: {told}" for name, told in moves.items() if told]


def _id(target: str) -> str:
    name = target.rpartition("/")[2]
    return name if ID.fullmatch(name) else ""
