"""Lines over concurrency, over a rate or over time, as coordinates, for a template to write down as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import log2
from statistics import median

WIDTH, HEIGHT = 300, 206
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 30, 34  # margins: figures of the axis, last mark, title, concurrency
TICKS = 4
TIME_WIDTH, TIME_HEIGHT = 360, 176
TIME_LEFT, TIME_RIGHT, TIME_BOTTOM = 50, 18, 22  # without a line for the axis' name
TIME_TICKS = 6
TIMES = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)  # seconds between two of them
DAY = 86400
LEAST = 1e-9  # a highest value below it has no axis of its own


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    low: float  # y of the worst and of the best repeat, the same where there is one
    high: float
    title: str


@dataclass(frozen=True)
class Line:
    kind: str  # class of its looks
    path: str  # "" for a single mark
    marks: list[Mark]


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Plot:
    title: str
    axis: str  # what x is
    width: int
    height: int
    left: float
    right: float
    bottom: float
    x: list[Tick]
    y: list[Tick]
    lines: list[Line]


def plot(title: str, values: Mapping[str, Mapping[float, Sequence[float]]], axis: str = "concurrency") -> Plot | None:
    """Medians with their range. values: kind of line -> concurrency, or what `axis` says -> repeats.

    The y axis starts at 0. None where nothing was measured.
    """
    every = {at for line in values.values() for at in line}
    highest = max((max(found) for line in values.values() for found in line.values()), default=0.0)
    if not every or highest <= 0:
        return None
    values_told = _ticks(highest)
    low, high = log2(min(every)), log2(max(every))

    def x(at: float) -> float:
        share = (log2(at) - low) / (high - low) if high > low else 0.5
        return round(LEFT + 8 + share * (WIDTH - LEFT - RIGHT - 16), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / values_told[-1] * (HEIGHT - TOP - BOTTOM), 1)

    lines = []
    for kind, found in values.items():
        marks = []
        for at, repeats in sorted(found.items()):
            middle = median(repeats)
            told = f"{axis} {at:g}: {spell(middle)}"
            if len(repeats) > 1:
                told += f" ({spell(min(repeats))} to {spell(max(repeats))} in {len(repeats)} repeats)"
            marks.append(Mark(x(at), y(middle), y(min(repeats)), y(max(repeats)), told))
        path = "M" + "L".join(f"{mark.x:g} {mark.y:g}" for mark in marks) if len(marks) > 1 else ""
        lines.append(Line(kind, path, marks))
    return Plot(
        title=title,
        axis=axis,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
        x=[Tick(x(at), f"{at:g}") for at in sorted(every)],
        y=[Tick(y(value), short(value)) for value in values_told],
        lines=lines,
    )


def over_time(
    title: str, lines: Mapping[str, Sequence[tuple[float, float]]], begin: float, end: float, step: float
) -> Plot:
    """lines: kind of line -> (seconds since 1970, value), in their order. A line has a gap where more than `step`
    seconds lie between two points; a point between two gaps is a mark. The y axis starts at 0, times are UTC."""
    highest = max((value for found in lines.values() for _, value in found), default=0.0)
    values_told = _ticks(highest if highest > LEAST else 1.0)

    def x(at: float) -> float:
        return round(TIME_LEFT + (at - begin) / (end - begin) * (TIME_WIDTH - TIME_LEFT - TIME_RIGHT), 1)

    def y(value: float) -> float:
        share = min(1.0, max(0.0, value / values_told[-1]))
        return round(TIME_HEIGHT - TIME_BOTTOM - share * (TIME_HEIGHT - TOP - TIME_BOTTOM), 1)

    drawn = []
    for kind, found in lines.items():
        pieces = _pieces(found, step)
        path = "".join("M" + "L".join(f"{x(at):g} {y(value):g}" for at, value in one) for one in pieces if len(one) > 1)
        alone = [one[0] for one in pieces if len(one) == 1]
        marks = [Mark(x(at), y(v), y(v), y(v), f"{_clock(at, end - begin)}: {spell(v)}") for at, v in alone]
        drawn.append(Line(kind, path, marks))
    every = next(
        (one for one in TIMES if (end - begin) / one <= TIME_TICKS), DAY * -(-(end - begin) // (DAY * TIME_TICKS))
    )
    first = -(-begin // every) * every
    times = [first + every * number for number in range(int((end - first) // every) + 1)]
    return Plot(
        title=title,
        axis="",
        width=TIME_WIDTH,
        height=TIME_HEIGHT,
        left=TIME_LEFT,
        right=TIME_WIDTH - TIME_RIGHT,
        bottom=TIME_HEIGHT - TIME_BOTTOM,
        x=[Tick(x(at), _clock(at, end - begin)) for at in times],
        y=[Tick(y(value), short(value)) for value in values_told],
        lines=drawn,
    )


def _pieces(points: Sequence[tuple[float, float]], step: float) -> list[list[tuple[float, float]]]:
    """Points without a gap between them."""
    pieces = [[one] for one in points[:1]]
    for before, one in pairwise(points):
        if one[0] - before[0] > step * 1.5:
            pieces.append([])
        pieces[-1].append(one)
    return pieces


def _clock(at: float, seconds: float) -> str:
    """The hour, with the day of the month where the axis is longer than a day."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M" if seconds <= DAY else "%d. %H:%M")


def _ticks(highest: float) -> list[float]:
    """Values of an axis, from 0 to one that is not below the highest."""
    step = nice(highest / TICKS)
    return [step * number for number in range(round(-(-highest // step)) + 1)]


def nice(value: float) -> float:
    """The next number of 1, 2, 2.5, 5 times a power of ten that is not below."""
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 <= value:
        power *= 10
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= value * (1 - 1e-9))


def short(value: float) -> str:
    """For an axis: 2,500, 12.5k, 2.5M, 15G."""
    if 1e9 <= value < 1e12:
        return f"{value / 1e9:g}G"
    if 1e6 <= value < 1e9:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if 1e4 <= value < 1e6 else spell(value)


def spell(value: float) -> str:
    """Three digits, thousands by commas: 12.3, 123, 12,345; two below 0.1: 0.025."""
    if value >= 1e12:
        return f"{value:.3g}".replace("e+", "e")
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").removesuffix(".") if value >= 0.1 else f"{value:.2g}"
