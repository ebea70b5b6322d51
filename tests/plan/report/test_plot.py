"""Coordinates of a plot over concurrency."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.report.plot import HEIGHT, LEFT, WIDTH, nice, plot, short, spell


@pytest.mark.parametrize(
    ("value", "step"),
    [(0.9, 1), (1, 1), (1.1, 2), (2.2, 2.5), (30, 50), (51, 100), (250, 250), (0.03, 0.05), (1000, 1000)],
)
def test_steps_are_round(value: float, step: float) -> None:
    assert nice(value) == pytest.approx(step)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1,234"),
        (99.94, "99.9"),
        (10, "10"),
        (2.5, "2.5"),
        (0.123, "0.12"),
        (0.025, "0.025"),
        (0.004, "0.004"),
    ],
)
def test_figures(value: float, text: str) -> None:
    assert spell(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(2500, "2,500"), (10000, "10k"), (12500, "12.5k"), (2.5e6, "2.5M"), (1.5e10, "15G"), (5, "5")]
)
def test_figures_of_an_axis_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_concurrency_is_drawn_by_its_logarithm() -> None:
    found = plot("t", {"pd": {1: [10.0], 8: [20.0], 64: [30.0]}})
    assert found
    first, middle, last = found.lines[0].marks
    assert middle.x - first.x == pytest.approx(last.x - middle.x)
    assert [tick.label for tick in found.x] == ["1", "8", "64"]


def test_the_axis_starts_at_zero_and_ends_above_the_highest() -> None:
    found = plot("t", {"pd": {1: [930.0]}})
    assert found
    assert (found.y[0].label, found.y[0].at) == ("0", found.bottom)
    assert found.y[-1].label == "1,000"


def test_the_median_of_the_repeats_with_their_range() -> None:
    found = plot("t", {"pd": {1: [30.0, 10.0, 20.0]}})
    assert found
    (mark,) = found.lines[0].marks
    assert mark.high < mark.y < mark.low
    assert "20 (10 to 30 in 3 repeats)" in mark.title
    assert found.lines[0].path == ""


@pytest.mark.parametrize("values", [{}, {"pd": {}}, {"pd": {1: [0.0]}}])
def test_nothing_to_draw(values: dict[str, dict[int, list[float]]]) -> None:
    assert plot("t", values) is None


@given(
    st.dictionaries(
        st.sampled_from(["pd", "single", "previous"]),
        st.dictionaries(st.integers(1, 4096), st.lists(st.floats(0.001, 1e7), min_size=1, max_size=4), min_size=1),
        min_size=1,
    )
)
def test_every_mark_is_inside(values: dict[str, dict[int, list[float]]]) -> None:
    found = plot("t", values)
    assert found
    for line in found.lines:
        for mark in line.marks:
            assert LEFT <= mark.x <= WIDTH
            assert all(0 <= y <= HEIGHT for y in (mark.y, mark.low, mark.high))
    assert 2 <= len(found.y) <= 7
