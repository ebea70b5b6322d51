"""Panels of the dashboards with what a host's Prometheus has kept for them, as a page of our own shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tasks.plan.errors import PlanError, one_line
from tasks.plan.report.page import MARKS
from tasks.plan.report.plot import Plot, over_time, spell

POINTS = 240  # along the axis
LEAST_STEP_S = 15  # Prometheus asks no more often
MOST_LINES = 16  # of one panel that are drawn; a host with more is told of in words
HOUR = 3600
HOURS = 3  # that are shown unless somebody asks for more; dashboards begin with as many
LONGEST_H = 24 * 90
LATEST = 2**33  # seconds since 1970 that a clock may show
# Servers tell what they like: the largest value that is drawn, and characters of a label.
LARGEST, LONGEST_LABEL = 1e100, 200
# Unit of Grafana -> (from which value on, divided by, what the title says).
UNITS: dict[str, tuple[tuple[float, float, str], ...]] = {
    "short": ((0, 1, ""),),
    "reqps": ((0, 1, "a second"),),
    "s": ((0, 1e-3, "ms"), (1, 1, "s")),
    "ms": ((0, 1, "ms"), (1e3, 1e3, "s")),
    "percentunit": ((0, 1e-2, "%"),),
    "decmbytes": ((0, 1e-3, "kB"), (1, 1, "MB"), (1e3, 1e3, "GB")),
    "bytes": ((0, 2**20, "MiB"), (2**30, 2**30, "GiB"), (2**40, 2**40, "TiB")),
    "celsius": ((0, 1, "°C"),),
    "watt": ((0, 1, "W"),),
    "hertz": ((0, 1e6, "MHz"), (1e9, 1e9, "GHz")),
}
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    nothing: str  # what it means where there is no data
    queries: tuple[tuple[str, str], ...]  # each with its legend


@dataclass(frozen=True)
class Dashboard:
    title: str
    panels: tuple[Panel, ...]


def dashboard(text: str) -> Dashboard:
    """From a file of Grafana's."""
    found = json.loads(text)
    return Dashboard(found["title"], tuple(_panel(one) for one in found["panels"]))


def _panel(found: Mapping[str, Any]) -> Panel:
    defaults = found["fieldConfig"]["defaults"]
    queries = tuple((target["expr"], target["legendFormat"]) for target in found["targets"])
    return Panel(found["title"], defaults["unit"], defaults.get("noValue", ""), queries)


def queries(dashboards: Iterable[Dashboard]) -> list[str]:
    """Every query once."""
    every = (query for one in dashboards for panel in one.panels for query, _ in panel.queries)
    return list(dict.fromkeys(every))


def span(hours: object) -> tuple[int, int]:
    """(seconds, step) of what is asked for. hours: as somebody typed it. Raises PlanError."""
    try:
        seconds = round(float(str(hours)) * HOUR)
    except (ValueError, OverflowError):
        seconds = 0
    if not LEAST_STEP_S * 4 <= seconds <= LONGEST_H * HOUR:
        raise PlanError(f"HOURS={one_line(str(hours))}: write how many hours to show, such as 24; at most {LONGEST_H}")
    return seconds, max(LEAST_STEP_S, -(-seconds // POINTS))


# ---- what Prometheus said


@dataclass(frozen=True)
class Series:
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]  # seconds since 1970, value

    def name(self, legend: str, hidden: Collection[str] = ()) -> str:
        """hidden: labels that tell nothing, unless they are all there is."""
        shown = {name: value for name, value in self.labels.items() if name not in hidden}
        return _filled(legend, shown) or _filled(legend, self.labels)


def _filled(legend: str, labels: Mapping[str, str]) -> str:
    return " ".join(_LABEL.sub(lambda found: labels.get(found[1], ""), legend).split())


@dataclass(frozen=True)
class Answer:
    """To one query. fault: what Prometheus said instead of series."""

    series: tuple[Series, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class Alert:
    """One that fires."""

    name: str
    pages: bool  # whether somebody has to act at once
    summary: str
    do: str
    since: str
    of: tuple[str, ...]  # labels that tell which host, server or card


@dataclass(frozen=True)
class Told:
    """By a host's Prometheus."""

    answers: Mapping[str, Answer]  # by query
    now: float  # end of the time that was asked for
    alerts: tuple[Alert, ...] | None  # None: not known


def read(told: Sequence[Mapping[str, Any]]) -> Told:
    """What the fact Panels brought. Raises PlanError where there is nothing."""
    if not told:
        raise PlanError("the host gave no answer about what Prometheus has kept; run again")
    if told[0].get("silent"):
        raise PlanError(
            f"{one_line(str(told[0].get('fault')))}: `systemctl status prometheus` on the host; where it was never "
            "there, run deploy.py with monitoring = True; docs/monitoring.md"
        )
    answers: dict[str, Answer] = {}
    alerts: tuple[Alert, ...] | None = None
    for one in told:
        if "alerts" in one:
            alerts = _alerts(one["alerts"])
            continue
        try:
            fault = one_line(str(one["fault"])) if "fault" in one else ""
            answers[str(one["query"])] = Answer(tuple(map(_series, one.get("result") or ())), fault)
        except (KeyError, TypeError, ValueError, AttributeError):
            answers[str(one.get("query"))] = Answer(fault="its answer cannot be read")
    now = told[0].get("now")
    if not isinstance(now, int | float) or not 0 <= now <= LATEST:
        raise PlanError("the host's answer about what Prometheus has kept is cut short; run again")
    return Told(answers, now, alerts)


def _alerts(found: object) -> tuple[Alert, ...] | None:
    """Those that fire, of Prometheus' list; None where it cannot be read."""
    try:
        firing = [one for one in found if one["state"] == "firing"]  # type: ignore[attr-defined]
        alerts = [_alert(one["labels"], one.get("annotations") or {}, str(one["activeAt"])) for one in firing]
    except (KeyError, TypeError, AttributeError):
        return None
    return tuple(sorted(alerts, key=lambda one: (not one.pages, one.name, one.of)))


def _alert(labels: Mapping[str, str], notes: Mapping[str, str], since: str) -> Alert:
    shown = {name: value for name, value in labels.items() if name not in ("alertname", "severity", "job")}
    return Alert(
        str(labels["alertname"]),
        labels.get("severity") == "page",
        str(notes.get("summary", "")),
        str(notes.get("do", "")),
        since[:16].replace("T", " "),
        tuple(f"{name} {value}" for name, value in sorted(shown.items())),
    )


def _series(found: Mapping[str, Any]) -> Series:
    points = ((float(at), float(value)) for at, value in found["values"])
    labels = {str(name): str(value)[:LONGEST_LABEL] for name, value in found["metric"].items()}
    return Series(labels, tuple((at, value) for at, value in points if 0 <= at <= LATEST and abs(value) < LARGEST))


# ---- the page


@dataclass(frozen=True)
class Named:
    """A line of a panel, for its legend."""

    kind: str
    name: str
    last: str  # the newest value; "gone" where there is none at the end
    most: str


@dataclass(frozen=True)
class Shown:
    """A panel as the page shows it. plot: None where nothing is to be drawn; then `words` says why."""

    title: str
    plot: Plot | None
    lines: tuple[Named, ...]
    words: tuple[str, ...]


def view(host: str, dashboards: Iterable[Dashboard], told: Told, seconds: int, step: int) -> dict[str, Any]:
    """What templates/status.html.j2 shows."""
    now = told.now
    hidden = {label for label in ("service", "host") if len(_values(told.answers, label)) < 2}
    return {
        "host": host,
        "verdict": _verdict(told.alerts),
        "alerts": [_finding(alert) for alert in told.alerts or ()],
        "written": _at(now),
        "begin": _at(now - seconds),
        "hours": spell(seconds / HOUR),
        "parts": [
            (one.title, [_shown(panel, told, hidden, seconds, step) for panel in one.panels]) for one in dashboards
        ],
    }


def in_words(view: Mapping[str, Any]) -> str:
    """How many panels have data, and what fires."""
    panels = [panel for _, of_part in view["parts"] for panel in of_part]
    drawn = sum(panel.plot is not None for panel in panels)
    return f"{drawn} of {len(panels)} panels have data; {view['verdict']['word'].lower()}"


def _verdict(alerts: Sequence[Alert] | None) -> dict[str, str]:
    if alerts is None:
        return {"level": "incomplete", "mark": MARKS["incomplete"], "word": "Alerts not known",
                "sentence": "Prometheus did not tell its alerts."}  # fmt: skip
    if not alerts:
        return {"level": "healthy", "mark": MARKS["healthy"], "word": "No alert fires", "sentence": ""}
    level = "error" if any(alert.pages for alert in alerts) else "warning"
    names = ", ".join(dict.fromkeys(alert.name for alert in alerts))
    word = "1 alert fires" if len(alerts) == 1 else f"{len(alerts)} alerts fire"
    return {"level": level, "mark": MARKS[level], "word": word, "sentence": names}


def _finding(alert: Alert) -> dict[str, Any]:
    """As the page shows what is to fix."""
    level = "error" if alert.pages else "warning"
    evidence = (f"since {alert.since} UTC" + "".join(f", {one}" for one in alert.of),)
    return {
        "level": level, "mark": MARKS[level], "id": alert.name, "line": alert.summary, "evidence": evidence,
        "advice": alert.do, "reason": "",
    }  # fmt: skip


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _values(answers: Mapping[str, Answer], label: str) -> set[str]:
    """Of a label, in all that Prometheus told."""
    return {one.labels[label] for answer in answers.values() for one in answer.series if label in one.labels}


def _shown(panel: Panel, told: Told, hidden: Collection[str], seconds: int, step: int) -> Shown:
    answers, now = told.answers, told.now
    found: list[tuple[str, Series]] = []
    faults: list[tuple[str, str]] = []  # of queries without data: what they ask for, and what Prometheus said
    for query, legend in panel.queries:
        answer = answers.get(query, Answer(fault="Prometheus was not asked"))
        series = sorted(
            ((one.name(legend, hidden), one) for one in answer.series if one.points),
            key=lambda named: _in_order(named[0]),
        )
        found += series
        if not series:
            faults.append((_spoken(legend), answer.fault))
    recently = f"in the last {spell(seconds / HOUR)} h"
    if not found:
        said = dict.fromkeys(fault or panel.nothing or f"nothing was recorded {recently}" for _, fault in faults)
        return Shown(panel.title, None, (), tuple(f"no data: {line}" for line in said))
    words = [f"{name}: no data {recently}{f': {fault}' if fault else ''}" for name, fault in faults]
    if len(found) > MOST_LINES:
        words.append(f"{len(found) - MOST_LINES} more lines are not drawn")
    drawn = found[:MOST_LINES]
    divisor, unit = _unit(panel.unit, max(value for _, one in drawn for _, value in one.points))
    lines = {f"s{number}": [(at, value / divisor) for at, value in one.points] for number, (_, one) in enumerate(drawn)}
    named = tuple(
        Named(
            kind,
            name,
            spell(points[-1][1]) if points[-1][0] >= now - step else "gone",
            spell(max(value for _, value in points)),
        )
        for (kind, points), (name, _) in zip(lines.items(), drawn, strict=True)
    )
    title = f"{panel.title}, {unit}" if unit else panel.title
    return Shown(title, over_time(title, lines, now - seconds, now, step), named, tuple(words))


def _unit(unit: str, highest: float) -> tuple[float, str]:
    """(divisor, words) for values up to the highest."""
    return next((divisor, words) for least, divisor, words in reversed(UNITS[unit]) if abs(highest) >= least)


def _in_order(name: str) -> list[tuple[int, str]]:
    """GPU 2 before GPU 10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _spoken(legend: str) -> str:
    """A legend whose labels nobody fills in."""
    return _LABEL.sub("…", legend).strip(" :,…") or "another line"
