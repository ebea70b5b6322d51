"""The record of a run: who, from where, since when, at which phase, with which playbook and settings, how it ended.

While a run holds a host's lock its record lies beside the lock. Once it has changed something, the record is also the
host's stamp, which outlives a reboot.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.settings.settings import Settings

# Settings of one run: two runs that differ in these alone leave the same host behind.
OF_ONE_RUN = {"wait", "allow_older", "rollback", "rollback_reason", "unpin", "reprove", "report_dir"}
LOST = "lost"  # what the lock's holder writes where a run leaves it without a word


class Locked(PlanError):
    """Another run is on: of this one nothing is known, and nothing is reported."""


@dataclass(frozen=True)
class Checkout:
    """The playbook that runs. Without git, or outside of its own repository, commit and time are not known."""

    version: str
    commit: str = ""
    committed: int = 0  # seconds since 1970

    @property
    def shown(self) -> str:
        if not self.commit:
            return f"{self.version} (commit unknown)"
        return f"{self.version} (commit {self.commit[:10]} of {datetime.fromtimestamp(self.committed, UTC):%Y-%m-%d})"


class Record(BaseModel):
    """As JSON on one line, `ended` last: the holder of the lock puts "lost" in the place of its null."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # a newer playbook may tell more

    version: str
    commit: str
    committed: int
    settings: str  # SALT:SHA256, of the settings
    by: str  # user@machine that runs pyinfra
    since: str  # UTC, ISO 8601
    phase: str
    ended: str | None = None

    @classmethod
    def begun(cls, checkout: Checkout, settings: Settings, by: str) -> Record:
        return cls(
            version=checkout.version,
            commit=checkout.commit,
            committed=checkout.committed,
            settings=_salted(settings, secrets.token_hex(16)),
            by=by,
            since=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            phase="looks at its hosts, or waits for its user",
        )

    @property
    def checkout(self) -> Checkout:
        return Checkout(self.version, self.commit, self.committed)

    @property
    def line(self) -> str:
        return json.dumps(self.model_dump(), separators=(",", ":"))

    @property
    def told(self) -> str:
        return f"{self.by}, since {self.since}, {self.phase}"

    def has(self, settings: Settings) -> bool:
        """Whether it ran with these settings."""
        salt = self.settings.partition(":")[0]
        return _salted(settings, salt) == self.settings


@dataclass(frozen=True)
class Found:
    """What a host says of runs, before this one has its lock."""

    holder: str  # pids of the run that holds the lock and of what takes a change back, "" where nobody does
    run: Record | None  # that holds the lock, or held it last since the host booted
    stamp: Record | None  # of the last run that changed something
    resuming: bool  # what served before a broken-off run is coming back, or will when no run is on

    @property
    def held_by(self) -> str:
        """Who holds the lock, for a sentence."""
        return f"{self.run.told if self.run else 'nobody knows who'} (pid {self.holder} on the host)"

    def told(self, dry: bool) -> list[str]:
        """What somebody must know who begins now, a line each."""
        lines = []
        if self.holder:
            lines.append(f"a run of the playbook is on here: {self.held_by}; what you see may change")
        before = self.run or self.stamp
        if not self.holder and before and before.ended in (None, LOST):
            lines.append(f"{'a run' if dry else 'takes over: a run'} broke off here without a word: {before.told}")
        if self.resuming:
            lines.append("what served before a run that broke off was coming back" + (", and still is" if dry else ""))
        return lines

    def last(self, settings: Settings) -> str:
        """One line on the last run that changed something, "" where there is none that came to its end."""
        if self.stamp is None or self.stamp.ended in (None, LOST):
            return ""
        same = "the same" if self.stamp.has(settings) else "other"
        return (
            f"last run: {self.stamp.by} at {self.stamp.since}, playbook {self.stamp.checkout.shown}, {same} settings; "
            f"it {self.stamp.ended}"
        )


def read(answers: Mapping[str, Answer]) -> Found:
    """From the fact Runs. Raises PlanError for a cut answer."""

    def text(name: str) -> str:
        if name not in answers:
            raise PlanError("the host's answer about its lock is cut short; run again")
        return answers[name].text.strip()

    return Found(text("lock"), _read(text("run")), _read(text("stamp")), text("resuming") == "yes")


def older(checkout: Checkout, found: Found, allowed: bool) -> None:
    """Raises PlanError where a newer playbook ran on the host. By version, then by the commit's time."""
    if allowed or found.stamp is None:
        return
    there = found.stamp.checkout
    here, newest = (_order(one.version) for one in (checkout, there))
    same = checkout.commit == there.commit or not (checkout.commit and there.commit)
    if here > newest or (here == newest and (same or checkout.committed >= there.committed)):
        return
    raise PlanError(
        f"this playbook, {checkout.shown}, is older than the one that ran here last, {there.shown}, by "
        f"{found.stamp.by} at {found.stamp.since}: take that one, or go back with --data allow_older=True"
    )


def ending(*, began: bool, rebooting: bool, failed: bool, over: bool) -> str:
    """How a run that lets a host go has ended there.

    began: it has changed something. rebooting: one of its own operations lets the host go. over: pyinfra is through.
    """
    if rebooting:
        return "rebooted the host"
    if failed:
        return "failed"
    if not began:
        return "changed nothing"
    return "ended well" if over else "was broken off"


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _salted(settings: Settings, salt: str) -> str:
    told = settings.model_dump_json(exclude=OF_ONE_RUN)
    return f"{salt}:{hashlib.sha256(salt.encode() + told.encode()).hexdigest()}"


def _read(text: str) -> Record | None:
    try:
        return Record.model_validate_json(text)
    except ValidationError:
        return None
