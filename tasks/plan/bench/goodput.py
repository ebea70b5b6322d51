"""Goodput: how many requests a second may arrive so that answers still come in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from tasks.plan.bench.figures import NAMES, Pass, Result

# Share of the requests that must be answered in time for a rate to count: the attainment goal that DistServe (OSDI 24)
# reports goodput for.
LEAST_SHARE = 0.9

Load = tuple[int, int]  # tokens in and out of each request


@dataclass(frozen=True)
class Limits:
    """What counts as in time, ms: the first token, and 99 % of the gaps between further ones."""

    ttft_ms: int
    itl_ms: int

    @classmethod
    def of(cls, setting: str) -> Limits:
        """From bench_limits, "450/40"."""
        first, _, gap = setting.partition("/")
        return cls(int(first), int(gap))

    def __str__(self) -> str:
        return f"first token within {self.ttft_ms} ms, {self.itl_ms} ms between tokens"


def share(one: Pass, limits: Limits) -> float:
    """Of a pass's requests those that were answered in time, 0 to 1; one that failed was not."""
    good = sum(first <= limits.ttft_ms and gap <= limits.itl_ms for first, gap in one.each)
    return good / one.requests


def shares(result: Result, load: Load, limits: Limits) -> dict[float, list[float]]:
    """Rate -> share of each of its passes, lowest rate first; {} where no rate was measured."""
    found: dict[float, list[float]] = {}
    for one in result.passes:
        if one.rate is not None and one.load == load:
            found.setdefault(one.rate, []).append(share(one, limits))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Goodput:
    """The highest rate measured at which, as at all below it, LEAST_SHARE of the requests were answered in time."""

    rate: float  # requests a second; 0 where not even the lowest was kept
    lowest: float
    highest: float

    def __str__(self) -> str:
        if not self.rate:
            return f"below {self.lowest:g}"
        return f"{self.rate:g} or more" if self.rate == self.highest else f"{self.rate:g}"


def goodput(result: Result, load: Load, limits: Limits) -> Goodput | None:
    """By the median over repeats. None where no rate was measured."""
    found = shares(result, load, limits)
    if not found:
        return None
    kept = 0.0
    for rate, repeats in found.items():
        if median(repeats) < LEAST_SHARE:
            break
        kept = rate
    return Goodput(kept, min(found), max(found))


def loads(results: Iterable[Result]) -> list[Load]:
    """Those that some rate was measured with."""
    return sorted({one.load for result in results for one in result.passes if one.rate})


def sentence(results: Mapping[str, Result], limits: Limits) -> str:
    """How many requests a second each layout answers in time, "" where no rate was measured."""
    told = []
    for load in loads(results.values()):
        each = {name: goodput(result, load, limits) for name, result in results.items()}
        words = [f"{NAMES[name]} {found}" for name, found in each.items() if found]
        told.append(f"at {load[0]}/{load[1]} {', '.join(words)}")
    return f"Requests a second answered in time ({limits}): {'; '.join(told)}." if told else ""
