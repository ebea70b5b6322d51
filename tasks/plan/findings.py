"""What a check says: its id, a level, the line it judged, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from tasks.plan.errors import PlanError, one_line


class Level(StrEnum):
    HEALTHY = "healthy"
    SILENCED = "silenced"  # a warning or error that a setting silences, with its reason
    WARNING = "warning"
    INCOMPLETE = "incomplete"  # what the check needs could not be read
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One check's answer on one host."""

    id: str  # "gpu/driver/match": subject, thing, question
    level: Level
    line: str  # one line: what was found, with figures and units
    evidence: tuple[str, ...] = ()  # the lines that were judged, as the host said them
    advice: str = ""  # what to do, "" where nothing is to be done
    required: bool = True  # whether an incomplete answer stops the run
    reason: str = ""  # why it is silenced

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", one_line(self.line))
        object.__setattr__(self, "advice", one_line(self.advice))

    @property
    def stops(self) -> bool:
        """Whether a run must end here: an error, or a required answer that could not be had."""
        return self.level is Level.ERROR or (self.level is Level.INCOMPLETE and self.required)

    @property
    def doubtful(self) -> bool:
        """Whether somebody should look at it: neither healthy nor silenced."""
        return self.level not in (Level.HEALTHY, Level.SILENCED)

    @property
    def sentence(self) -> str:
        """For a terminal: id, line and advice."""
        return f"{self.id}: {self.line}" + (f": {self.advice}" if self.advice else "")

    def as_data(self) -> dict[str, Any]:
        """For the report: plain values only."""
        return {**asdict(self), "level": str(self.level), "evidence": list(self.evidence)}


def silence(findings: Iterable[Finding], reasons: Mapping[str, str]) -> tuple[Finding, ...]:
    """Findings with those silenced whose id stands in `reasons`; healthy ones stay as they are."""
    return tuple(
        replace(finding, level=Level.SILENCED, reason=reasons[finding.id])
        if finding.id in reasons and finding.level is not Level.HEALTHY
        else finding
        for finding in findings
    )


class Refused(PlanError):
    """A host that ends here. `findings` say why; their sentences are the lines."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(*(finding.sentence for finding in findings))
        self.findings = findings


def error(id: str, line: str, advice: str = "", *evidence: str) -> Finding:
    """A finding that stops the run."""
    return Finding(id, Level.ERROR, line, evidence, advice)


@contextmanager
def named(check: str) -> Iterator[None]:
    """What cannot be read or planned becomes a finding of this check, where the fault names none itself."""
    try:
        yield
    except Refused:
        raise
    except PlanError as fault:
        raise Refused(*(error(check, line) for line in fault.lines)) from None
