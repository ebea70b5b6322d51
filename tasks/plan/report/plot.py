"""Lines over concurrency, or over a rate, as coordinates, for a template to write down as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import median

WIDTH, HEIGHT = 300, 206
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 30, 34  # margins: figures of the axis, last mark, title, concurrency
TICKS = 4


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
    step = nice(highest / TICKS)
    top_value = step * -(-highest // step)
    low, high = log2(min(every)), log2(max(every))

    def x(at: float) -> float:
        share = (log2(at) - low) / (high - low) if high > low else 0.5
        return round(LEFT + 8 + share * (WIDTH - LEFT - RIGHT - 16), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top_value * (HEIGHT - TOP - BOTTOM), 1)

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
    count = round(top_value / step)
    return Plot(
        title=title,
        axis=axis,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
        x=[Tick(x(at), f"{at:g}") for at in sorted(every)],
        y=[Tick(y(step * number), short(step * number)) for number in range(count + 1)],
        lines=lines,
    )


def nice(value: float) -> float:
    """The next number of 1, 2, 2.5, 5 times a power of ten that is not below."""
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 <= value:
        power *= 10
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= value * (1 - 1e-9))


def short(value: float) -> str:
    """For an axis: 2,500, 12.5k, 2.5M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 else spell(value)


def spell(value: float) -> str:
    """Three digits, thousands by commas: 12.3, 123, 12,345."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{value:.2f}".rstrip("0").removesuffix(".")
