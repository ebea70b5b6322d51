"""The benchmark of a running service: passes, the client's figures, kept results, and what follows from them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.bench import figures as bench
from tasks.plan.bench.figures import JUDGED, Point, beats, best, compare, sentence
from tasks.plan.bench.goodput import Limits
from tasks.plan.bench.page import view
from tasks.plan.errors import PlanError
from tests.plan.benches import LOADS, curve, failed, one_pass, planned, result, told, written
from tests.plan.builders import API_KEY, TWO_SOCKETS, hardware, plan, settings

SPEED, FIRST, *_ = JUDGED


def line_of(error: pytest.ExceptionInfo[PlanError]) -> str:
    (line,) = error.value.lines
    assert "\n" not in line
    return line


def figures(result: bench.Result, point: Point) -> list[float]:
    return result.values(point, "output_throughput")


# ---- what is asked of a host


def test_passes_of_the_defaults() -> None:
    found = bench.passes(planned())
    assert len(found) == 3 * 3 * 3
    assert found[:9] == found[9:18], "everything once before anything is repeated"
    assert [(p["input"], p["output"], p["concurrency"], p["requests"]) for p in found[:4]] == [
        (256, 128, 1, 8), (256, 128, 16, 64), (256, 128, 64, 256), (1024, 1024, 1, 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "loads", "concurrency"),
    [
        ({"bench_loads": "64/8", "bench_concurrency": 1}, [(64, 8)], [1]),
        ({"bench_loads": "64/8,128/16", "bench_concurrency": "1,2"}, [(64, 8), (128, 16)], [1, 2]),
    ],
)
def test_loads_as_the_command_line_gives_them(
    given: dict[str, object], loads: list[tuple[int, int]], concurrency: list[int]
) -> None:
    wanted = planned(**given)
    assert bench.loads(wanted) == loads
    assert wanted.settings.bench_concurrency == concurrency


@pytest.mark.parametrize(
    ("name", "value"),
    [("bench_rates", "1,fast"), ("bench_rates", [0]), ("bench_rates", -1), ("bench_limits", "450"), ("bench_limits", "0/40"), ("bench_loads", "256"), ("bench_loads", "0/8"), ("bench_loads", []), ("bench_concurrency", "1,many"), ("bench_concurrency", 0)],
)  # fmt: skip
def test_loads_that_make_no_sense(name: str, value: object) -> None:
    with pytest.raises(PlanError) as error:
        settings(**{name: value})
    assert all(line.startswith(f"setting {name}") for line in error.value.lines)


@pytest.mark.parametrize("value", [64, "64", "256/128,64"])
def test_half_a_load_is_told_how_one_is_written(value: object) -> None:
    with pytest.raises(PlanError) as error:
        settings(bench_loads=value)
    assert line_of(error) == (
        f"setting bench_loads = {value!r}: 64 is no load: write tokens in / tokens out of a request, such as 64/8"
    )


def test_a_load_beyond_the_context_is_refused() -> None:
    with pytest.raises(PlanError) as error:
        bench.config_file(planned(context_length=1024, bench_loads=["512/512", "1024/1024"]))
    assert line_of(error).startswith("setting bench_loads: 1024/1024 needs 2048 tokens, context_length is 1024")


def test_what_the_tool_is_told() -> None:
    file = bench.config_file(planned())
    told = json.loads(file.content)
    assert (file.path, file.mode) == ("/etc/sglang-pd/bench.json", "640")
    assert (told["url"], told["model"], told["api_key_file"]) == ("http://127.0.0.1:8000", "some", None)
    assert told["tokenizer"] == "/var/lib/sglang-pd/models/some-model-000000000000"
    assert told["environment"]["HF_HUB_OFFLINE"] == "1"


def test_the_key_is_named_and_not_told() -> None:
    file = bench.config_file(plan(settings(), hardware(TWO_SOCKETS), api_key=API_KEY))
    assert json.loads(file.content)["api_key_file"] == "/etc/sglang-pd/api-key"
    assert API_KEY not in file.content.decode()


# ---- what the tool gives back


def test_a_result_knows_what_it_was_measured_on() -> None:
    found = result([one_pass(speed=123.4)])
    assert (found.host, found.layout, found.model, found.release) == ("gpu-1", "pd", "some-model", "sglang-9.9-cu130")
    assert found.hardware == "8 x NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert [(server.name, server.gpus) for server in found.servers] == [("prefill", [0, 1]), ("decode", [4, 5])]
    assert found.gpus == 4
    assert figures(found, Point(256, 128, 1)) == [123.4]


def test_a_pass_without_a_result_keeps_its_reason() -> None:
    found = result([one_pass(), failed(reason="Warmup failed", requests=8), failed("timeout", concurrency=16)])
    assert [(one.status, one.failures) for one in found.passes] == [("done", 0), ("failed", 8), ("timeout", 8)]
    assert figures(found, Point(256, 128, 16)) == []


def test_requests_that_failed_are_counted() -> None:
    (one,) = result([{**one_pass(requests=8), "result": written(completed=5)}]).passes
    assert one.failures == 3


def test_a_pass_that_answered_nothing_has_no_figures() -> None:
    found = result([{**one_pass(), "result": written(completed=0, speed=0.0)}])
    assert figures(found, Point(256, 128, 1)) == []


WHOLE = told([one_pass()])


@given(st.integers(0, len(WHOLE) - 1))
def test_a_result_cut_short_is_one_clear_line(end: int) -> None:
    with pytest.raises(PlanError) as error:
        bench.result(planned(), "gpu-1", WHOLE[:end])
    assert "cut short" in line_of(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"median_ttft_ms": None}, "passes.0.result.median_ttft_ms"),
        ({"output_throughput": "fast"}, "passes.0.result.output_throughput"),
        ({"p99_itl_ms": -1.0}, "passes.0.result.p99_itl_ms"),
        ({"duration": float("nan")}, "passes.0.result.duration"),
    ],
)
def test_a_figure_that_is_none_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError) as error:
        result([{**one_pass(), "result": written(**change)}])
    assert words in line_of(error)


@pytest.mark.parametrize("name", ["duration", "p99_itl_ms", "completed"])
def test_a_figure_that_is_missing_is_named(name: str) -> None:
    figures = {key: value for key, value in written().items() if key != name}
    with pytest.raises(PlanError) as error:
        result([{**one_pass(), "result": figures}])
    assert f"passes.0.result.{name}: field required" in line_of(error)


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 2, "passes": []}', "null"])
def test_another_format_asks_for_the_deploy(text: str) -> None:
    with pytest.raises(PlanError) as error:
        bench.result(planned(), "gpu-1", text)
    assert "run the deploy" in line_of(error)


# ---- kept results


def test_what_is_kept_is_read_again() -> None:
    found = curve("pd")
    assert bench.from_json(bench.to_json(found), "x.json") == found
    assert bench.file_name(found) == "sglang-9.9-cu130.pd.20261130T081500Z.json"


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"format": 9}'])
def test_a_kept_result_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(PlanError) as error:
        bench.from_json(text, "reports/serving/gpu-1/x.json")
    assert line_of(error).startswith("reports/serving/gpu-1/x.json")


def test_the_newest_of_each_layout_and_the_one_before() -> None:
    before = curve("pd", started="2026-11-01T00:00:00Z")
    older = curve("pd", started="2026-10-01T00:00:00Z")
    single = curve("single", started="2026-11-02T00:00:00Z")
    now = curve("pd", started="2026-11-03T00:00:00Z")
    found = compare([now, single, older, before])
    assert (found.newest, found.previous) == (now, before)
    assert found.layouts == {"pd": now, "single": single}


def test_another_release_is_before_and_not_beside() -> None:
    old = {"release": "sglang-9.8", "started": "2026-11-01T00:00:00Z"}
    single, before = (curve(layout).model_copy(update=old) for layout in ("single", "pd"))
    found = compare([single, before, curve("pd")])
    assert found.layouts.keys() == {"pd"}
    assert found.previous == before


def test_another_model_is_nowhere() -> None:
    other = curve("single").model_copy(update={"model": "another", "started": "2026-11-01T00:00:00Z"})
    found = compare([other, curve("pd")])
    assert (found.layouts.keys(), found.previous) == ({"pd"}, None)


def test_no_result_at_all() -> None:
    with pytest.raises(PlanError, match="no measurement"):
        compare([])


# ---- what follows


@pytest.mark.parametrize(
    ("a", "b", "better"),
    [
        ([110, 112, 111], [100, 101, 99], True),  # apart by more than noise
        ([110, 112, 111], [100, 111, 99], False),  # ranges overlap
        ([102, 102, 102], [100, 100, 100], False),  # apart, but by less than 3 %
        ([104, 104, 104], [100, 100, 100], True),
        ([105], [100], False),  # once each: less than 10 %
        ([112], [100], True),
        ([112, 112], [100], True),
        ([105, 105], [100], False),
    ],
)
def test_better_is_beyond_noise(a: list[float], b: list[float], better: bool) -> None:
    assert beats(a, b, SPEED) is better
    assert beats(b, a, SPEED) is False
    assert beats([1000 / one for one in a], [1000 / one for one in b], FIRST) is better


def point_of(**speeds: list[float]) -> dict[str, bench.Result]:
    return {layout: result([one_pass(speed=s) for s in found], layout) for layout, found in speeds.items()}


def test_the_best_layout_at_a_point() -> None:
    found = point_of(pd=[300, 301], single=[280, 281], data_parallel=[480, 481])
    assert best(found, Point(256, 128, 1), SPEED) == ("data_parallel",)


def test_layouts_that_do_not_beat_each_other_are_both_best() -> None:
    found = point_of(pd=[300, 340], single=[200, 201], data_parallel=[320, 330])
    assert best(found, Point(256, 128, 1), SPEED) == ("pd", "data_parallel")


def test_one_layout_has_no_best() -> None:
    assert best(point_of(pd=[300]), Point(256, 128, 1), SPEED) == ()
    assert sentence(point_of(pd=[300])) == ""


def test_a_layout_whose_requests_failed_is_not_judged() -> None:
    found = {**point_of(single=[280]), "pd": result([failed()])}
    assert best(found, Point(256, 128, 1), SPEED) == ()


def test_within_noise_is_no_difference() -> None:
    same = {layout: result([one_pass(), one_pass()], layout) for layout in ("pd", "single")}
    assert sentence(same) == (
        "Most tokens per second, first token soonest, fastest answer once it has begun (TPOT) and fewest stalls "
        "(inter-token p99): no difference at every load."
    )


def three() -> dict[str, bench.Result]:
    """Prefill + decode measured last."""
    earlier = {layout: curve(layout, started="2026-11-30T07:00:00Z") for layout in ("single", "data_parallel")}
    return {"pd": curve("pd"), **earlier}


def test_the_sentence_names_the_layout_for_each_load() -> None:
    assert sentence(three()) == (
        "Most tokens per second: data-parallel at concurrency 16 and 64, one server or data-parallel at concurrency 1; "
        "first token soonest, fastest answer once it has begun (TPOT) and fewest stalls (inter-token p99): prefill + "
        "decode at concurrency 16 and 64, one server or data-parallel at concurrency 1."
    )


def test_the_sentence_names_loads_where_they_decide() -> None:
    pd = [one_pass(load, c, speed=200 if load == LOADS[0] else 100) for load in LOADS for c in (1, 16)]
    single = [one_pass(load, c, speed=150) for load in LOADS for c in (1, 16)]
    found = sentence({"pd": result(pd), "single": result(single, "single")})
    assert found.startswith("Most tokens per second: prefill + decode at 256/128, one server at 1024/1024;")


def test_the_sentence_names_single_points_where_nothing_wider_holds() -> None:
    fast = {(LOADS[0], 1): 200, (LOADS[1], 16): 200}
    pd = [one_pass(load, c, speed=fast.get((load, c), 100)) for load in LOADS for c in (1, 16)]
    single = [one_pass(load, c, speed=150) for load in LOADS for c in (1, 16)]
    found = sentence({"pd": result(pd), "single": result(single, "single")})
    assert "prefill + decode at 256/128 x 1 and 1024/1024 x 16, one server at 256/128 x 16 and 1024/1024 x 1;" in found


# ---- the page's words


def seen(*results: bench.Result) -> dict[str, Any]:
    return view(compare(results), Limits(450, 40))


def test_the_rule_is_said_for_what_was_measured() -> None:
    assert "every one of its repeats" in seen(*three().values())["rule"]
    assert "One pass each" in seen(*point_of(pd=[300], single=[200]).values())["rule"]


def test_a_row_for_each_layout_then_before_then_the_reference() -> None:
    load = seen(curve("pd", 0.9, "2026-11-01T00:00:00Z"), *three().values())["loads"][0]
    assert [row.name for row in load.groups[1].rows] == [
        "prefill + decode", "one server", "data-parallel", "prefill + decode before (2026-11-01)",
        "reference: one server", "reference: prefill + decode",
    ]  # fmt: skip
    assert [row.change for row in load.groups[1].rows] == ["+11%", "", "", "", "", ""]


def test_the_reference_stands_only_beside_the_load_it_was_measured_with() -> None:
    loads = seen(curve("pd"))["loads"]
    assert [load.reference for load in loads] == [True, False]
    reference = loads[0].groups[2].rows[-2:]
    assert [[cell.text for cell in row.cells][:4] for row in reference] == [
        ["509", "-", "-", "88"],
        ["385", "-", "-", "32"],
    ]
    assert [row.per_gpu for row in reference] == ["127", "48.1"]


def test_the_cpu_says_nothing_beside_the_reference() -> None:
    cpu = curve("pd").model_copy(update={"device": "cpu"})
    assert [row.kind for load in seen(cpu)["loads"] for group in load.groups for row in group.rows] == ["pd"] * 6


def test_tokens_per_second_of_each_gpu() -> None:
    rows = seen(*three().values())["loads"][0].groups[1].rows
    assert [row.per_gpu for row in rows if row.kind in bench.NAMES] == ["75", "145", "120"]
    assert "GPUs held: prefill + decode 4, one server 2, data-parallel 4" in seen(*three().values())["gpus"]


def test_failures_are_counted_and_told() -> None:
    page = seen(result([one_pass(), failed(concurrency=16, reason="HTTP 500")]))
    assert [row.failures for group in page["loads"][0].groups for row in group.rows if row.kind == "pd"] == ["0", "8"]
    assert page["failed"] == [{"what": "prefill + decode, 256/128 x 16", "why": "failed: HTTP 500"}]


def test_best_cells_are_marked_only_where_layouts_differ() -> None:
    rows = seen(*three().values())["loads"][0].groups[2].rows
    assert [row.cells[0].best for row in rows[:3]] == [False, False, True]
    same = [result([one_pass(), one_pass()], layout) for layout in ("pd", "single")]
    assert not any(cell.best for group in seen(*same)["loads"][0].groups for row in group.rows for cell in row.cells)


def test_a_newer_measurement_says_how_much_changed() -> None:
    page = seen(curve("pd", 0.9, "2026-11-01T00:00:00Z"), curve("pd"))
    assert [group.rows[0].change for group in page["loads"][0].groups] == ["+11%"] * 3


def test_results_are_immutable() -> None:
    found = compare([curve("pd")])
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.previous = None  # type: ignore[misc]


# ---- as SGLang 0.5.20's client wrote it

FIXTURES = Path(__file__).parents[1] / "fixtures" / "bench"


def test_three_layouts_of_a_simulated_host() -> None:
    """Measured one after the other on a busy machine: figures of the client, good for reading and for nothing else."""
    found = compare(bench.from_json(path.read_text(), path.name) for path in sorted(FIXTURES.glob("*.json")))
    assert list(found.layouts) == ["pd", "single", "data_parallel"]
    assert found.newest.layout == "single"
    assert all(one.failures == 0 for result in found.layouts.values() for one in result.passes)
    assert sentence(found.layouts) == (
        "Most tokens per second, first token soonest and fastest answer once it has begun (TPOT): data-parallel at every "
        "load; fewest stalls (inter-token p99): data-parallel at concurrency 1, one server or data-parallel at "
        "concurrency 2."
    )


@pytest.mark.parametrize(("name", "passes"), [("single", 6), ("single-0.5.23", 2)])
def test_one_server_on_an_h200(name: str, passes: int) -> None:
    """A machine with one GPU: nothing to compare it with, so no layout is recommended."""
    path = FIXTURES.with_name("bench-h200") / f"{name}.json"
    kept = bench.from_json(path.read_text(), path.name)
    assert (kept.layout, len(kept.passes), sum(one.failures for one in kept.passes)) == ("single", passes, 0)
    found = compare([kept])
    assert list(found.layouts) == ["single"] and found.previous is None
    assert sentence(found.layouts) == ""


def test_prefill_and_decode_on_two_h200() -> None:
    path = FIXTURES.with_name("bench-h200") / "pd.json"
    kept = bench.from_json(path.read_text(), path.name)
    assert (kept.layout, kept.gpus, len(kept.passes), sum(one.failures for one in kept.passes)) == ("pd", 2, 6, 0)
    assert kept.hardware == "2 x NVIDIA H200"
