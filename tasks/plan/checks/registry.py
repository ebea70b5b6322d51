"""The checks of a host as data: each has an id, reads what was found, and gives one finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tasks.plan.errors import quoted
from tasks.plan.findings import Finding, Level, silence
from tasks.plan.host.answers import Answer, Gpu, Hardware, System
from tasks.plan.plan import Plan
from tasks.plan.release.manifest import Manifest
from tasks.plan.settings.settings import Settings

GB = 1_000_000_000
TIMED_OUT = (124, 137)  # of coreutils' timeout: its own status, and 128 + KILL
NO_SUCH_TOOL = 127
Needs = Literal["system", "hardware", "plan"]


@dataclass(frozen=True)
class Found:
    """What is known about a host when it is judged: settings, release, parsed values, raw answers."""

    settings: Settings
    manifest: Manifest
    system: System
    answers: Mapping[str, Answer]  # every section that was asked for, by name
    now: float  # seconds since 1970 by the control machine's clock, when the host told its own
    known_hardware: Hardware | None = None  # None before it was read
    known_plan: Plan | None = None  # None before it was made

    @property
    def hardware(self) -> Hardware:
        """Raises Unreadable where it is not read yet."""
        if self.known_hardware is None:
            raise Unreadable("the hardware is not read yet")
        return self.known_hardware

    @property
    def plan(self) -> Plan:
        """Raises Unreadable where there is none yet."""
        if self.known_plan is None:
            raise Unreadable("there is no plan yet")
        return self.known_plan

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.known_hardware.gpus if self.known_hardware else ()

    @property
    def wanted(self) -> frozenset[int]:
        """Indices of the GPUs that the plan gives to a server; all of them as long as there is no plan."""
        if self.known_plan is None:
            return frozenset(gpu.index for gpu in self.gpus)
        return frozenset(gpu for worker in self.plan.workers for gpu in worker.gpus)

    def text(self, name: str) -> str:
        """What a section says. Raises Unreadable where it ended badly, or said nothing."""
        answer = self.answers.get(name)
        if answer is None:
            raise Unreadable("the host's answer is cut short")
        if answer.status in TIMED_OUT:
            raise Unreadable("no answer within the limit: it hangs")
        if answer.status == NO_SUCH_TOOL:
            raise Unreadable("the host has no such tool")
        if answer.status != 0:
            raise Unreadable(f"it failed with {answer.status}", *answer.text.strip().splitlines()[:3])
        if not answer.text.strip():
            raise Unreadable("the answer is empty")
        return answer.text

    def text_or_empty(self, name: str) -> str:
        """As `text`, for a section that may have nothing to say."""
        answer = self.answers.get(name)
        return "" if answer and answer.status == 0 and not answer.text.strip() else self.text(name)

    def rows(self, name: str) -> list[str]:
        """The lines of a section, blank ones left out. Raises Unreadable as `text` does."""
        return [line for line in self.text(name).splitlines() if line.strip()]


class Unreadable(ValueError):
    """What a check needs could not be had. `evidence` is what the host said instead."""

    def __init__(self, why: str, *evidence: str) -> None:
        super().__init__(why)
        self.evidence = evidence


class Later(ValueError):
    """What a check needs is not there yet, but this run makes it. The message says when it is judged."""


@dataclass(frozen=True)
class Verdict:
    """What a check says about what it read: level, one line with figures, advice, and the lines that it judged."""

    level: Level
    line: str
    advice: str = ""
    evidence: tuple[str, ...] = ()


def healthy(line: str, *evidence: str) -> Verdict:
    return Verdict(Level.HEALTHY, line, "", evidence)


def warning(line: str, advice: str, *evidence: str) -> Verdict:
    return Verdict(Level.WARNING, line, advice, evidence)


def error(line: str, advice: str, *evidence: str) -> Verdict:
    return Verdict(Level.ERROR, line, advice, evidence)


@dataclass(frozen=True)
class Check:
    """One check. Its text is what docs/refusals.md shows."""

    id: str
    needs: Needs  # what must be known before it can be judged
    judges: str  # what, and which answer gives a warning or an error
    source: str  # of the rule or of its figure
    settings: tuple[str, ...]  # its thresholds
    ask: str  # the command that shows a person the same
    required: bool  # whether an answer that cannot be read stops the run
    of_gpu: bool  # about what a CPU release does not use
    never_silenced: bool  # no plan can be made where it fails: it cannot be silenced
    judge: Callable[[Found], Verdict]

    def finding(self, found: Found) -> Finding:
        """The check's answer. Whatever cannot be read is incomplete, never fine."""
        try:
            verdict = self.judge(found)
        except Later as later:
            return Finding(self.id, Level.INCOMPLETE, str(later), required=False)
        except (ValueError, LookupError) as fault:  # parsers raise these for whatever they do not expect
            evidence = fault.evidence if isinstance(fault, Unreadable) else ()
            why = quoted(str(fault)) + (f" ({quoted(' '.join(evidence))})" if evidence else "")
            advice = f"look at `{self.ask}` on the host" if self.ask else ""
            return Finding(
                self.id, Level.INCOMPLETE, f"could not be read: {why}", tuple(evidence), advice, self.required
            )
        return Finding(self.id, verdict.level, verdict.line, verdict.evidence, verdict.advice, self.required)


CHECKS: dict[str, Check] = {}


def check(
    id: str,
    needs: Needs,
    *,
    judges: str,
    source: str,
    settings: tuple[str, ...] = (),
    ask: str = "",
    required: bool = True,
    of_gpu: bool = False,
    never_silenced: bool = False,
) -> Callable[[Callable[[Found], Verdict]], Callable[[Found], Verdict]]:
    """Enter a function into the list of checks."""

    def enter(judge: Callable[[Found], Verdict]) -> Callable[[Found], Verdict]:
        if id in CHECKS:
            raise TypeError(f"two checks are called {id}")
        CHECKS[id] = Check(id, needs, judges, source, settings, ask, required, of_gpu, never_silenced, judge)
        return judge

    return enter


def judged(found: Found, needs: Needs) -> tuple[Finding, ...]:
    """Every check that needs no more than this, in the order of the list; silenced where a setting says so.

    What a CPU release does not use is judged too, for the report, but silenced.
    """
    findings = [one.finding(found) for one in CHECKS.values() if one.needs == needs]
    if found.manifest.device == "cpu" or not found.settings.serves:
        runs = (
            f"release {found.manifest.name} runs on the CPU" if found.settings.serves else "the router runs alone here"
        )
        findings = list(_unused(findings, f"{runs} and does not use it"))
    return silence(findings, found.settings.silenced_checks)


def table() -> str:
    """The list of checks as docs/refusals.md shows it."""
    lines = ["| check | judges | settings | source |", "| --- | --- | --- | --- |"]
    for one in CHECKS.values():
        marks = "".join((" (GPU)" if one.of_gpu else "", " (cannot be silenced)" if one.never_silenced else ""))
        settings = ", ".join(f"`{name}`" for name in one.settings)
        cells = (f"`{one.id}`{marks}", one.judges, settings, one.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _unused(findings: Iterable[Finding], reason: str) -> Iterable[Finding]:
    for finding in findings:
        fault = CHECKS[finding.id].of_gpu and finding.level is not Level.HEALTHY
        yield replace(finding, level=Level.SILENCED, reason=reason) if fault else finding
