"""Goodput: which rate of requests is answered in time, by each request's own figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.plan.bench import figures as bench
from tasks.plan.bench import goodput
from tasks.plan.bench.figures import compare
from tasks.plan.bench.goodput import Limits
from tasks.plan.bench.page import view
from tasks.plan.errors import PlanError
from tests.plan.benches import at_rate, curve, one_pass, planned, result
from tests.plan.builders import settings

LIMITS = Limits(450, 40)
LOAD = (256, 128)
IN_TIME, LATE, STALLS = (450.0, 40.0), (450.1, 1.0), (1.0, 40.1)


def some(rate: float, good: int, of: int = 10) -> dict[str, Any]:
    return at_rate(rate, [IN_TIME] * good + [LATE] * (of - good))


def test_the_limits_of_the_setting() -> None:
    assert Limits.of(planned().settings.bench_limits) == LIMITS


@pytest.mark.parametrize("given", ["1,2.5,4", [4, 1, 2.5], "2.5,4,1,1"])
def test_passes_at_rates_come_after_those_in_flight(given: object) -> None:
    found = bench.passes(planned(bench_loads="256/128", bench_concurrency=1, bench_rates=given, bench_repeats=1))
    assert [(p["concurrency"], p["rate"], p["requests"]) for p in found] == [
        (1, None, 8), (None, 1.0, 60), (None, 2.5, 150), (None, 4.0, 240),
    ]  # fmt: skip


def test_a_rate_alone_on_the_command_line() -> None:
    assert planned(bench_rates=2).settings.bench_rates == [2]


def test_passes_at_rates_alone() -> None:
    found = bench.passes(planned(bench_loads="256/128", bench_concurrency="", bench_rates="1,2", bench_repeats=1))
    assert [(p["concurrency"], p["rate"]) for p in found] == [(None, 1.0), (None, 2.0)]
    with pytest.raises(PlanError, match="bench_concurrency and bench_rates are both empty"):
        settings(bench_concurrency="", bench_rates="")


@pytest.mark.parametrize("each", [[IN_TIME, LATE], [IN_TIME, STALLS]])
def test_a_request_is_in_time_by_both_limits(each: list[tuple[float, float]]) -> None:
    [one] = result([at_rate(1, each)]).passes
    assert goodput.share(one, LIMITS) == 0.5


def test_a_request_without_an_answer_is_not_in_time() -> None:
    [one] = result([{**at_rate(1, [IN_TIME] * 8), "requests": 16}]).passes
    assert goodput.share(one, LIMITS) == 0.5


@pytest.mark.parametrize(
    ("passes", "rate", "words"),
    [
        ([some(1, 10), some(2, 9), some(4, 8)], 2, "2"),
        ([some(1, 10), some(2, 10)], 2, "2 or more"),
        ([some(1, 8), some(2, 10)], 0, "below 1"),  # what a lower rate does not keep, a higher one kept by chance
        ([some(1, 10), some(1, 8), some(1, 9), some(4, 0)], 1, "1"),  # the middle one of the repeats
        ([some(4, 0), some(0.5, 10)], 0.5, "0.5"),
    ],
)
def test_the_highest_rate_that_is_kept(passes: list[dict[str, Any]], rate: float, words: str) -> None:
    found = goodput.goodput(result(passes), LOAD, LIMITS)
    assert found is not None
    assert (found.rate, str(found)) == (rate, words)


def test_without_rates_there_is_none() -> None:
    found = result([one_pass()])
    assert goodput.goodput(found, LOAD, LIMITS) is None
    assert goodput.sentence({"pd": found}, LIMITS) == ""


def test_every_layout_is_told_for_every_load() -> None:
    both = {
        "pd": result([some(1, 10), some(2, 10), at_rate(1, [LATE] * 8, (1024, 1024))]),
        "single": result([some(1, 10), some(2, 0)], "single"),
    }
    assert goodput.sentence(both, LIMITS) == (
        "Requests a second answered in time (first token within 450 ms, 40 ms between tokens): at 256/128 prefill + "
        "decode 2 or more, one server 1; at 1024/1024 prefill + decode below 1."
    )


def test_passes_at_a_rate_are_no_points_of_a_concurrency() -> None:
    found = result([one_pass(), some(1, 10)])
    assert list(found.points) == [bench.Point(256, 128, 1)]


def test_the_page_shows_shares_of_each_layout() -> None:
    pd = curve("pd").model_copy(update={"passes": [*curve("pd").passes, *result([some(1, 10), some(2, 5)]).passes]})
    page = view(compare([pd]), LIMITS)
    rates = page["loads"][0].rates
    assert rates.names == ["prefill + decode"]
    assert [(rate, [cell.text for cell in cells]) for rate, cells in rates.rows] == [("1", ["100"]), ("2", ["50"])]
    assert page["loads"][1].rates is None
    assert page["goodput"].endswith("at 256/128 prefill + decode 1.")
    assert "90 % of its requests" in page["goodput_rule"]


@pytest.mark.parametrize("change", [{"rate": 1}, {"concurrency": None}, {"rate": -1, "concurrency": None}])
def test_a_pass_of_two_paces_or_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as error:
        result([{**one_pass(), **change}])
    assert "passes.0" in error.value.lines[0]


@pytest.mark.parametrize("each", [[[1.0]], [[1.0, -1.0]], [["soon", 1.0]]])
def test_figures_of_requests_that_are_none_are_named(each: list[Any]) -> None:
    with pytest.raises(PlanError) as error:
        result([{**some(1, 1), "each": each}])
    assert "passes.0.each.0" in error.value.lines[0]


def test_one_server_on_an_h200() -> None:
    """Measured at rates: long prompts hold up the tokens of others, long before the server is full."""
    path = Path(__file__).parents[1] / "fixtures" / "bench-h200" / "single-rates.json"
    kept = bench.from_json(path.read_text(), path.name)
    assert goodput.shares(kept, (1024, 256), LIMITS) == {1.0: [1.0], 4.0: [56 / 60], 8.0: [72 / 120], 16.0: [0.0]}
    assert str(goodput.goodput(kept, (1024, 256), LIMITS)) == "4"
    assert str(goodput.goodput(kept, (8192, 256), LIMITS)) == "below 1"
    assert str(goodput.goodput(kept, (8192, 256), Limits(1000, 250))) == "1", "judged anew with other limits"
