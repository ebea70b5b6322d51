"""Panels of the dashboards with what Prometheus said: lines, units, and words where there is nothing."""

import json
import re
from typing import Any

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.report.plot import TIME_HEIGHT, over_time
from tasks.plan.report.status import (
    LEAST_STEP_S,
    MOST_LINES,
    POINTS,
    UNITS,
    Shown,
    dashboard,
    in_words,
    queries,
    read,
    span,
    view,
)
from tasks.support import catalogue

NOW, HOUR, STEP = 1_800_000_000, 3600, 15


def panel(unit: str = "short", nothing: str = "", **targets: str) -> str:
    """A dashboard of one panel. targets: query -> legend."""
    defaults = {"unit": unit, **({"noValue": nothing} if nothing else {})}
    asked = [{"expr": query, "legendFormat": legend} for query, legend in targets.items()]
    return json.dumps(
        {"title": "d", "panels": [{"title": "p", "fieldConfig": {"defaults": defaults}, "targets": asked}]}
    )


def said(query: str, *series: tuple[dict[str, str], list[float | str]]) -> dict[str, Any]:
    """What Prometheus keeps of the last points before NOW."""
    return {"query": query, "now": NOW, "result": [
        {"metric": labels, "values": [[NOW - (len(values) - 1 - at) * STEP, str(value)] for at, value in enumerate(values)]}
        for labels, values in series
    ]}  # fmt: skip


def shown(text: str, *answers: dict[str, Any]) -> Shown:
    [(_, [one])] = view("gpu-1", [dashboard(text)], read(answers), HOUR, STEP)["parts"]
    assert isinstance(one, Shown)
    return one


def test_every_panel_of_the_playbook_has_a_unit_that_the_page_knows() -> None:
    panels = [panel for one in catalogue.dashboards() for panel in one.panels]
    assert {panel.unit for panel in panels} <= UNITS.keys()
    assert len(queries(catalogue.dashboards())) > 30


def test_lines_are_named_by_their_labels_in_the_order_of_numbers() -> None:
    series = [({"gpu": str(number), "host": "gpu-1"}, [1.0, 2.0]) for number in (10, 9, 2)]
    one = shown(panel(q="{{host}} GPU {{gpu}}"), said("q", *series))
    assert [line.name for line in one.lines] == ["GPU 2", "GPU 9", "GPU 10"]
    assert [(line.last, line.most) for line in one.lines] == [("2", "2")] * 3
    assert one.plot and len(one.plot.lines) == 3


def test_hosts_are_named_where_there_are_several() -> None:
    both = [({"host": host, "gpu": "0"}, [1.0]) for host in ("gpu-2", "gpu-1")]
    assert [line.name for line in shown(panel(q="{{host}} GPU {{gpu}}"), said("q", *both)).lines] == [
        "gpu-1 GPU 0",
        "gpu-2 GPU 0",
    ]
    assert shown(panel(q="{{host}}"), said("q", both[0])).lines[0].name == "gpu-2", "there is no other name"


def test_a_label_that_nobody_has_leaves_no_hole() -> None:
    assert shown(panel(q="{{host}} {{instance}} runs"), said("q", ({"instance": "prefill"}, [1.0]))).lines[0].name == (
        "prefill runs"
    )


@pytest.mark.parametrize(
    ("unit", "value", "title", "text"),
    [
        ("s", 0.25, "p, ms", "250"),
        ("s", 2.5, "p, s", "2.5"),
        ("percentunit", 0.5, "p, %", "50"),
        ("bytes", 2**33, "p, GiB", "8"),
        ("decmbytes", 0.25, "p, kB", "250"),
        ("hertz", 1.5e9, "p, GHz", "1.5"),
        ("reqps", 2, "p, a second", "2"),
        ("short", 0, "p", "0"),
    ],
)
def test_values_are_in_a_unit_that_fits(unit: str, value: float, title: str, text: str) -> None:
    one = shown(panel(unit, q="x"), said("q", ({}, [value, value])))
    assert (one.title, one.lines[0].last) == (title, text)


def test_what_is_not_there_any_more_is_gone() -> None:
    answer = said("q", ({}, [5.0, 1.0]))
    answer["result"][0]["values"] = [[NOW - 600, "5"], [NOW - 585, "1"]]
    assert (shown(panel(q="x"), answer).lines[0].last, shown(panel(q="x"), answer).lines[0].most) == ("gone", "5")


def test_a_panel_without_data_says_so() -> None:
    one = shown(panel(nothing="no failure yet", q="{{instance}}: transfer", r="y"), said("q"), said("r"))
    assert (one.plot, one.words) == (None, ("no data: no failure yet",))
    assert shown(panel(q="x"), said("q")).words == ("no data: nothing was recorded in the last 1 h",)


def test_a_line_without_data_says_so_below_the_others() -> None:
    one = shown(panel(q="moved", r="proved"), said("q", ({}, [1.0])), said("r", ({}, ["NaN", "+Inf"])))
    assert one.plot and one.words == ("proved: no data in the last 1 h",)


def test_what_prometheus_refuses_is_told() -> None:
    one = shown(panel(q="x"), {"query": "q", "now": NOW, "fault": "parse error:\nunexpected end"})
    assert one.words == ("no data: parse error: unexpected end",)


@pytest.mark.parametrize("result", [[{}], [{"metric": {}, "values": [[1]]}], [{"metric": 5, "values": []}], 5])
def test_an_answer_that_cannot_be_read_is_told(result: object) -> None:
    assert shown(panel(q="x"), {"query": "q", "now": NOW, "result": result}).words == (
        "no data: its answer cannot be read",
    )


@pytest.mark.parametrize(("value", "last"), [(-5.0, "-5"), (5e-324, "4.9e-324")])
def test_what_no_server_should_tell_is_drawn_at_the_bottom(value: float, last: str) -> None:
    one = shown(panel(q="x"), said("q", ({}, [value, value])))
    assert one.plot and [line.last for line in one.lines] == [last]
    assert re.findall(r" ([0-9.]+)", one.plot.lines[0].path) == [str(one.plot.bottom)] * 2


@pytest.mark.parametrize("value", ["1e300", "-1e300", "NaN", "+Inf"])
def test_what_no_axis_holds_is_no_data(value: str) -> None:
    assert shown(panel("s", q="x"), said("q", ({}, [value]))).plot is None


def test_a_label_without_end_is_cut() -> None:
    (line,) = shown(panel(q="{{name}}"), said("q", ({"name": "1" * 5000}, [1.0]))).lines
    assert 0 < len(line.name) < 5000


def test_a_query_that_was_not_asked_is_told() -> None:
    assert shown(panel(q="x"), said("another")).words == ("no data: Prometheus was not asked",)


def test_more_lines_than_fit_are_counted() -> None:
    one = shown(panel(q="{{n}}"), said("q", *[({"n": str(n)}, [1.0]) for n in range(MOST_LINES + 3)]))
    assert len(one.lines) == MOST_LINES and one.words == ("3 more lines are not drawn",)


def test_the_last_line_counts_panels_with_data() -> None:
    found = read([said("q", ({}, [1.0])), {"alerts": []}])
    boards = [dashboard(panel(q="x")), dashboard(panel(r="y"))]
    assert in_words(view("gpu-1", boards, found, HOUR, STEP)) == "1 of 2 panels have data; no alert fires"


def alert(name: str, severity: str, state: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "labels": {"alertname": name, "severity": severity, "job": "server", **labels},
        "annotations": {"summary": f"{name} summed up", "do": "systemctl status x"},
        "state": state,
        "activeAt": "2026-12-01T15:30:12.5Z",
    }


def test_alerts_that_fire_stand_on_top_those_that_page_first() -> None:
    fires = [
        alert("Slow", "warning"),
        alert("Soon", "page", "pending"),
        alert("Down", "page", host="gpu-1", role="decode"),
    ]
    shown = view("gpu-1", [dashboard(panel(q="x"))], read([said("q"), {"alerts": fires}]), HOUR, STEP)
    assert (shown["verdict"]["level"], shown["verdict"]["word"], shown["verdict"]["sentence"]) == (
        "error",
        "2 alerts fire",
        "Down, Slow",
    )
    assert [one["level"] for one in shown["alerts"]] == ["error", "warning"]
    assert shown["alerts"][0]["evidence"] == ("since 2026-12-01 15:30 UTC, host gpu-1, role decode",)


@pytest.mark.parametrize("alerts", [None, 5, [5], [{}], [{"state": "firing"}], [{"state": "firing", "labels": 5}]])
def test_alerts_that_cannot_be_read_are_not_known(alerts: object) -> None:
    shown = view("gpu-1", [dashboard(panel(q="x"))], read([said("q"), {"alerts": alerts}]), HOUR, STEP)
    assert shown["verdict"]["word"] == "Alerts not known"


@pytest.mark.parametrize(
    ("told_by_host", "words"),
    [
        ([], "the host gave no answer"),
        ([{"query": "q", "now": NOW, "fault": "http://127.0.0.1:9090 does not answer", "silent": True}], "monitoring = True"),
    ],
)  # fmt: skip
def test_a_prometheus_that_does_not_answer_is_one_line(told_by_host: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read(told_by_host)


@pytest.mark.parametrize("hours", ["", "x", "0", "-1", "nan", "inf", "1e9", None])
def test_hours_that_are_none_are_one_line(hours: object) -> None:
    with pytest.raises(PlanError, match="HOURS="):
        span(hours)


@pytest.mark.parametrize("hours", ["0.5", 3, "24", "720"])
def test_the_axis_has_a_bounded_number_of_points(hours: object) -> None:
    seconds, step = span(hours)
    assert step >= LEAST_STEP_S and seconds / step <= POINTS


# ---- the plot


def test_a_gap_is_a_gap_and_a_lone_point_a_mark() -> None:
    points = [(0.0, 1.0), (15.0, 1.0), (60.0, 1.0), (120.0, 0.0), (135.0, 2.0)]
    [line] = over_time("t", {"s0": points}, 0, 150, STEP).lines
    assert line.path.count("M") == 2 and len(line.marks) == 1


def test_a_flat_zero_is_drawn_at_the_bottom() -> None:
    made = over_time("t", {"s0": [(0.0, 0.0), (15.0, 0.0)]}, 0, 150, STEP)
    assert made.y[0].label == "0" and made.y[-1].label == "1"
    assert re.findall(r" ([\d.]+)", made.lines[0].path) == [f"{made.bottom:g}"] * 2


@pytest.mark.parametrize("hours", [0.1, 1, 3, 24, 24 * 7, 24 * 90])
def test_times_are_few_and_round(hours: float) -> None:
    made = over_time("t", {"s0": [(NOW, 1.0)]}, NOW - hours * HOUR, NOW, STEP)
    assert 2 <= len(made.x) <= 7 and made.height == TIME_HEIGHT
    assert all(tick.label.endswith(("0", "5")) or hours < 1 for tick in made.x)
    assert made.left <= made.x[0].at and made.x[-1].at <= made.right
