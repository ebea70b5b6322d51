"""A benchmark as its page shows it: words and figures in their units. The template only sets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tasks.plan.bench import goodput
from tasks.plan.bench.figures import (
    JUDGED,
    LEAST_DIFFERENCE,
    LEAST_DIFFERENCE_ONCE,
    NAMES,
    REFERENCE,
    REFERENCE_GPUS,
    REFERENCE_OF,
    Comparison,
    Point,
    Result,
    best,
    sentence,
)
from tasks.plan.bench.goodput import Limits
from tasks.plan.report.plot import Plot, plot, spell

NO_FIGURE = "-"
COLUMNS = (
    ("output_throughput", "tok/s"),
    ("median_ttft_ms", "TTFT p50"),
    ("p99_ttft_ms", "TTFT p99"),
    ("median_tpot_ms", "TPOT p50"),
    ("median_itl_ms", "ITL p50"),
    ("p99_itl_ms", "ITL p99"),
)
PLOTS = (
    ("output_throughput", "tok/s out"),
    ("median_ttft_ms", "TTFT p50, ms"),
    ("median_tpot_ms", "TPOT p50, ms"),
    ("p99_itl_ms", "inter-token p99, ms"),
)
JUDGED_BY = {metric.name: metric for metric in JUDGED}


@dataclass(frozen=True)
class Cell:
    text: str
    range: str = ""  # of the repeats
    best: bool = False


@dataclass(frozen=True)
class Row:
    kind: str  # class of its looks: a layout, "previous", "reference"
    name: str
    cells: list[Cell]
    per_gpu: str
    change: str  # of tok/s against the previous measurement
    failures: str


@dataclass(frozen=True)
class Group:
    concurrency: int
    requests: str
    rows: list[Row]


@dataclass(frozen=True)
class Load:
    title: str
    groups: list[Group]
    plots: list[Plot]
    kinds: list[tuple[str, str]]  # class and name, for the legend
    reference: bool
    rates: Rates | None


@dataclass(frozen=True)
class Rates:
    """Share of requests in time: a row for each rate, a column for each layout."""

    names: list[str]
    rows: list[tuple[str, list[Cell]]]


def view(found: Comparison, limits: Limits) -> dict[str, Any]:
    """What templates/serving.html.j2 shows."""
    newest = found.newest
    every = [*found.layouts.values(), *([found.previous] if found.previous else [])]
    points = sorted({point for one in every for point in one.points})
    at_rates = goodput.loads(found.layouts.values())
    return {
        "host": newest.host,
        "layout": NAMES[newest.layout],
        "started": newest.started,
        "took": f"{newest.seconds / 60:.0f} min" if newest.seconds >= 90 else f"{newest.seconds:.0f} s",
        "about": f"{newest.model} on {newest.hardware}" + (", served by the CPU" if newest.device == "cpu" else ""),
        "sentence": sentence(found.layouts),
        "alone": NAMES[newest.layout] if len(found.layouts) < 2 else "",
        "missing": [NAMES[name] for name in NAMES if name not in found.layouts],
        "rule": _rule(found.layouts.values()),
        "goodput": goodput.sentence(found.layouts, limits),
        "goodput_rule": _goodput_rule(limits),
        "gpus": _gpus(list(found.layouts.values())),
        "loads": [_load(found, load, points, limits) for load in sorted({*(p.load for p in points), *at_rates})],
        "columns": [title for _, title in COLUMNS],
        "previous": found.previous is not None,
        "per_gpu": newest.device == "cuda",
        "reference_of": REFERENCE_OF,
        "failed": [
            {"what": f"{NAMES[one.layout]}, {p.name}", "why": f"{p.status}: {p.reason}"}
            for one in every
            for p in one.passes
            if p.failures
        ],
        "results": [_about(one, "previous" if one is found.previous else one.layout) for one in every],
    }


def _rule(results: Any) -> str:
    repeats = min((len(passes) for one in results for passes in one.points.values()), default=1)
    if repeats < 2:
        return (
            f"One pass each, so the spread is not known: a difference below {LEAST_DIFFERENCE_ONCE:.0%} counts as none."
        )
    return (
        f"A layout is named where every one of its repeats is better than all of another's and its median by "
        f"{LEAST_DIFFERENCE:.0%} or more; anything less is no difference."
    )


def _goodput_rule(limits: Limits) -> str:
    return (
        f"A rate counts if {goodput.LEAST_SHARE * 100:.0f} % of its requests get their first token within "
        f"{limits.ttft_ms} ms and 99 % of the others within {limits.itl_ms} ms of the one before, and if all lower "
        "rates count too."
    )


def _gpus(results: Sequence[Result]) -> str:
    """A word of warning where layouts hold different numbers of GPUs."""
    if results[0].device == "cpu" or len({one.gpus for one in results}) < 2:
        return ""
    held = ", ".join(f"{NAMES[one.layout]} {one.gpus}" for one in results)
    return f"GPUs held: {held}. The table gives tokens per second of each GPU too."


def _load(found: Comparison, load: tuple[int, int], points: Sequence[Point], limits: Limits) -> Load:
    here = [point for point in points if point.load == load]
    reference = found.newest.device == "cuda" and any(point in line for point in here for line in REFERENCE.values())
    sources: list[tuple[str, str, Result]] = [
        (one.layout, NAMES[one.layout], one) for one in found.layouts.values() if _has(one, here)
    ]
    if found.previous and _has(found.previous, here):
        name = f"{NAMES[found.previous.layout]} before ({found.previous.started[:10]})"
        sources.append(("previous", name, found.previous))
    kinds = [(kind, name) for kind, name, _ in sources]
    if reference:
        kinds += [(f"reference {layout}", f"reference: {NAMES[layout]}") for layout in REFERENCE]
    drawn = []
    for name, title in PLOTS:
        values: dict[str, Mapping[float, Sequence[float]]] = {
            kind: _by_concurrency(one, here, name) for kind, _, one in sources
        }
        if reference:
            values |= {f"reference {layout}": _reference(layout, here, name) for layout in REFERENCE}
        made = plot(title, {kind: line for kind, line in values.items() if line})
        drawn += [made] if made else []
    rated = {kind: goodput.shares(one, load, limits) for kind, one in found.layouts.items()}
    percent = {
        kind: {rate: [100 * one for one in repeats] for rate, repeats in line.items()}
        for kind, line in rated.items()
        if line
    }
    made = plot("answered in time, %", percent, axis="requests a second")
    drawn += [made] if made else []
    kinds += [(kind, NAMES[kind]) for kind in percent if kind not in dict(kinds)]
    groups = [_group(found, point, sources) for point in here]
    return Load(f"{load[0]:,} tokens in, {load[1]:,} out", groups, drawn, kinds, reference, _rates(percent))


def _rates(percent: Mapping[str, Mapping[float, Sequence[float]]]) -> Rates | None:
    """percent: layout -> rate -> share of each repeat, in %."""
    every = sorted({rate for line in percent.values() for rate in line})
    rows = [(f"{rate:g}", [_cell(line.get(rate, []), best=False) for line in percent.values()]) for rate in every]
    return Rates([NAMES[kind] for kind in percent], rows) if rows else None


def _has(result: Result, points: Sequence[Point]) -> bool:
    return any(point in result.points for point in points)


def _by_concurrency(result: Result, points: Sequence[Point], name: str) -> dict[float, list[float]]:
    values: dict[float, list[float]] = {point.concurrency: result.values(point, name) for point in points}
    return {concurrency: found for concurrency, found in values.items() if found}


def _reference(layout: str, points: Sequence[Point], name: str) -> dict[float, list[float]]:
    values = {point.concurrency: REFERENCE[layout].get(point, {}).get(name) for point in points}
    return {concurrency: [value] for concurrency, value in values.items() if value is not None}


def _group(found: Comparison, point: Point, sources: Sequence[tuple[str, str, Result]]) -> Group:
    winners = {name: best(found.layouts, point, metric) for name, metric in JUDGED_BY.items()}
    measured = [one.layout for _, _, one in sources if one is not found.previous and point in one.points]
    rows = [
        _row(kind, name, one, point, found, winners if len(measured) > 1 else {})
        for kind, name, one in sources
        if point in one.points
    ]
    if found.newest.device == "cuda":
        rows += [_reference_row(layout, point) for layout, line in REFERENCE.items() if point in line]
    requests = sorted({p.requests for _, _, one in sources for p in one.points.get(point, [])})
    return Group(point.concurrency, " or ".join(map(str, requests)), rows)


def _row(
    kind: str, name: str, one: Result, point: Point, found: Comparison, winners: dict[str, tuple[str, ...]]
) -> Row:
    cells = []
    for figure, _ in COLUMNS:
        values = one.values(point, figure)
        names = winners.get(figure, ())
        named = kind in names and len(names) < len(found.layouts)
        cells.append(_cell(values, named))
    speed = one.values(point, "output_throughput")
    per_gpu = spell(median(speed) / one.gpus) if speed else NO_FIGURE
    failures = sum(p.failures for p in one.points[point])
    return Row(kind, name, cells, per_gpu, _change(one, point, found), str(failures) if failures else "0")


def _cell(values: Sequence[float], best: bool) -> Cell:
    if not values:
        return Cell(NO_FIGURE)
    spread = f"{spell(min(values))} to {spell(max(values))}" if len(values) > 1 else ""
    return Cell(spell(median(values)), spread, best)


def _change(one: Result, point: Point, found: Comparison) -> str:
    """Of tokens per second against the measurement before, "" where there is none or for another layout."""
    if one is not found.newest or found.previous is None:
        return ""
    now, before = (each.values(point, "output_throughput") for each in (one, found.previous))
    if not now or not before or not median(before):
        return ""
    return f"{median(now) / median(before) - 1:+.0%}"


def _reference_row(layout: str, point: Point) -> Row:
    known = REFERENCE[layout][point]
    cells = [Cell(NO_FIGURE if known.get(name) is None else spell(known[name] or 0)) for name, _ in COLUMNS]
    per_gpu = spell((known["output_throughput"] or 0) / REFERENCE_GPUS[layout])
    return Row("reference", f"reference: {NAMES[layout]}", cells, per_gpu, "", NO_FIGURE)


def _about(one: Result, kind: str) -> dict[str, Any]:
    servers = ", ".join(
        f"{server.name} (GPU {', '.join(map(str, server.gpus))})" if one.device == "cuda" else server.name
        for server in one.servers
    )
    versions = ", ".join(f"{name} {value}" for name, value in one.versions.items() if value)
    repeats = max((len(passes) for passes in one.points.values()), default=0)
    return {
        "kind": kind,
        "name": NAMES[one.layout],
        "started": one.started,
        "servers": servers,
        "release": one.release_id,
        "versions": versions,
        "repeats": repeats,
    }
