"""The benchmark of a running service: which passes, what the client measured, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.plan.errors import PlanError
from tasks.plan.files import WantedFile
from tasks.plan.plan import Plan

CLIENT = "sglang.bench_serving"  # by this name in every release; since 0.5.16 it warns that it will be renamed
LEAST_REQUESTS = 8  # of a pass: the percentiles of fewer say nothing
TOOL_FORMAT = 1
# Below this share of the better one a difference is none, however steady the repeats: the client's own scheduling,
# the router's choice of a server. A rule of this playbook, not measured.
LEAST_DIFFERENCE = 0.03
LEAST_DIFFERENCE_ONCE = 0.10  # likewise where a pass ran once only, so that its spread is not known

Layout = Literal["pd", "single", "data_parallel"]
NAMES = {"pd": "prefill + decode", "single": "one server", "data_parallel": "data-parallel"}  # for people


Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Figures(BaseModel):
    """What the client found in one pass. Times in milliseconds, rates in tokens per second, over answered requests."""

    model_config = ConfigDict(frozen=True)

    duration: float = Field(ge=0, allow_inf_nan=False)  # seconds
    completed: int = Field(ge=0)
    output_throughput: float = Field(ge=0, allow_inf_nan=False)
    median_ttft_ms: float = Field(ge=0, allow_inf_nan=False)
    p99_ttft_ms: float = Field(ge=0, allow_inf_nan=False)
    median_tpot_ms: float = Field(ge=0, allow_inf_nan=False)
    median_itl_ms: float = Field(ge=0, allow_inf_nan=False)
    p99_itl_ms: float = Field(ge=0, allow_inf_nan=False)


class Pass(BaseModel):
    """One pass as pd-bench tells it. figures: None where it ended without."""

    model_config = ConfigDict(frozen=True)

    input: int = Field(ge=1)  # tokens of each prompt
    output: int = Field(ge=1)  # tokens of each answer
    concurrency: int | None = Field(ge=1)  # requests in flight, None where they arrive at a rate
    rate: float | None = Field(None, gt=0, allow_inf_nan=False)  # requests a second that arrive
    requests: int = Field(ge=1)
    status: Literal["done", "failed", "timeout"]
    seconds: float = Field(ge=0)
    reason: str
    figures: Figures | None = Field(alias="result")
    # Of each answered request, ms: time to first token; what 99 % of the gaps between its tokens stay within.
    each: list[tuple[Milliseconds, Milliseconds]] = []

    @model_validator(mode="after")
    def _one_pace(self) -> Pass:
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("a pass has a concurrency or a rate")
        return self

    @property
    def load(self) -> tuple[int, int]:
        return (self.input, self.output)

    @property
    def name(self) -> str:
        """For people: "1024/512 x 16", "1024/512 at 4 requests/s"."""
        pace = f"x {self.concurrency}" if self.rate is None else f"at {self.rate:g} requests/s"
        return f"{self.input}/{self.output} {pace}"

    @property
    def failures(self) -> int:
        return self.requests - (self.figures.completed if self.figures else 0)


class Server(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    role: str
    gpus: list[int]


class Result(BaseModel):
    """A measurement of one host in one layout, as it is kept."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    format: Literal[1] = 1
    host: str
    # UTC; it comes from the host, and names a file here
    started: Annotated[str, Field(pattern=r"^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}Z$")]
    seconds: float
    layout: Layout
    release: str
    release_id: str
    model: str
    device: Literal["cuda", "cpu"]
    hardware: str  # "2 x NVIDIA H200"
    versions: dict[str, str]
    servers: list[Server]
    passes: list[Pass]

    @property
    def gpus(self) -> int:
        """GPUs that its servers hold."""
        return sum(len(server.gpus) for server in self.servers)

    @property
    def points(self) -> dict[Point, list[Pass]]:
        """The passes of each load and concurrency, those at a rate left out."""
        found: dict[Point, list[Pass]] = {}
        for one in self.passes:
            if one.concurrency is not None:
                found.setdefault(Point(one.input, one.output, one.concurrency), []).append(one)
        return found

    def values(self, point: Point, name: str) -> list[float]:
        """One figure of each pass that has any, [] where the point was not measured."""
        return [
            getattr(one.figures, name) for one in self.points.get(point, []) if one.figures and one.figures.completed
        ]


@dataclass(frozen=True, order=True)
class Point:
    input: int
    output: int
    concurrency: int

    @property
    def load(self) -> tuple[int, int]:
        return (self.input, self.output)


# ---- what is asked of a host


def loads(plan: Plan) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, _, b in (load.partition("/") for load in plan.settings.bench_loads)]


def config_file(plan: Plan) -> WantedFile:
    """What pd-bench is told. Raises PlanError for a load that the service cannot take."""
    settings, paths, router = plan.settings, plan.paths, plan.router
    if router is None or not plan.workers:
        raise PlanError("the benchmark runs where a router and a server are: name such a host of this service")
    too_long = [load for load in loads(plan) if sum(load) > plan.context_length]
    if too_long:
        raise PlanError(
            *(
                f"setting bench_loads: {a}/{b} needs {a + b} tokens, context_length is {plan.context_length}: "
                "choose others (LOADS=... of make bench-serving)"
                for a, b in too_long
            )
        )
    config = {
        "python": plan.python,
        "module": CLIENT,
        "environment": {variable.name: variable.value for variable in plan.workers[0].environment},
        "url": router.url,
        "workers": [worker.url for worker in plan.served],
        "api_key_file": paths.secret if plan.api_key else None,
        "model": plan.profile.served_name,
        "tokenizer": paths.model,
        "limit_s": settings.bench_limit,
        "passes": passes(plan),
    }
    content = json.dumps(config, indent=1) + "\n"
    return WantedFile(paths.bench, content.encode(), "640", "root", plan.group, gist="what pd-bench measures")


def passes(plan: Plan) -> list[dict[str, float | None]]:
    """Each load at each concurrency and rate, all of them before the first is repeated: what drifts meets all alike."""
    settings = plan.settings
    paces: list[dict[str, float | None]] = [
        {"concurrency": found, "rate": None, "requests": max(LEAST_REQUESTS, settings.bench_requests * found)}
        for found in settings.bench_concurrency
    ]
    paces += [
        {"concurrency": None, "rate": rate, "requests": max(LEAST_REQUESTS, round(settings.bench_rate_seconds * rate))}
        for rate in sorted(set(settings.bench_rates))
    ]
    return [
        {"input": a, "output": b, **pace}
        for _ in range(settings.bench_repeats)
        for a, b in loads(plan)
        for pace in paces
    ]


def result(plan: Plan, host: str, text: str) -> Result:
    """What pd-bench left, with what it was measured on. Raises PlanError, one line, for an answer cut short."""
    where = "pd-bench's result"
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PlanError(f"{where} is cut short or no JSON ({error}): {text[-60:]!r}; measure again") from None
    if not isinstance(data, dict) or data.get("format") != TOOL_FORMAT:
        raise PlanError(f"{where} is of another format: run the deploy, it brings the tool, then measure again")
    counts: dict[str, int] = {}
    for gpu in plan.hardware.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    manifest = plan.release.manifest
    return _typed(
        {
            "host": host,
            "started": data.get("started"),
            "seconds": data.get("seconds"),
            "layout": plan.settings.layout,
            "release": manifest.name,
            "release_id": plan.release.id,
            "model": plan.profile.name,
            "device": manifest.device,
            "hardware": ", ".join(f"{count} x {name}" for name, count in counts.items()),
            "versions": {
                "SGLang": manifest.sglang,
                "torch": manifest.torch,
                "router": f"{plan.release.router} {manifest.routers[plan.release.router]}",
                "driver": plan.hardware.driver or "",
            },
            "servers": [
                {"name": worker.name, "role": worker.role, "gpus": list(worker.gpus)} for worker in plan.workers
            ],
            "passes": data.get("passes"),
        },
        where,
    )


# ---- results on disk


def to_json(result: Result) -> str:
    return json.dumps(result.model_dump(by_alias=True), indent=1, ensure_ascii=False) + "\n"


def from_json(text: str, name: str) -> Result:
    """A kept result. Raises PlanError, one line, where it cannot be read."""
    try:
        return _typed(json.loads(text), name)
    except ValueError as error:
        raise PlanError(f"{name} is no JSON ({error}): move it away") from None


def _typed(data: object, name: str) -> Result:
    try:
        return Result.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise PlanError(f"{name}: {place}: {fault['msg'].lower()}; measure again") from None


def file_name(result: Result) -> str:
    """RELEASE.LAYOUT.TIME.json: every measurement of a host stays."""
    return f"{result.release}.{result.layout}.{result.started.replace('-', '').replace(':', '')}.json"


@dataclass(frozen=True)
class Comparison:
    """The newest measurement of a host and what stands beside it, each of the same model and loads where it can."""

    newest: Result
    layouts: dict[
        str, Result
    ]  # the newest of each layout with the same release and device, the newest itself among them
    previous: Result | None  # the one before it in its layout, of whatever release


def compare(results: Iterable[Result]) -> Comparison:
    """Raises PlanError where there is none."""
    by_age = sorted(results, key=lambda one: one.started)
    if not by_age:
        raise PlanError("no measurement is kept for this host")
    newest = by_age[-1]
    alike = [one for one in by_age if (one.model, one.device) == (newest.model, newest.device)]
    same_release = [one for one in alike if one.release == newest.release]
    before = [one for one in alike if one.layout == newest.layout and one is not newest]
    layouts = {name: [one for one in same_release if one.layout == name] for name in NAMES}
    return Comparison(newest, {n: found[-1] for n, found in layouts.items() if found}, before[-1] if before else None)


# ---- what follows


@dataclass(frozen=True)
class Metric:
    """Something that layouts are judged by."""

    name: str  # field of Figures
    title: str  # with its unit
    wish: str  # what a user wants who judges by it
    most: bool  # whether more is better


JUDGED = (
    Metric("output_throughput", "tok/s", "most tokens per second", most=True),
    Metric("median_ttft_ms", "TTFT p50, ms", "first token soonest", most=False),
    Metric("median_tpot_ms", "TPOT p50, ms", "fastest answer once it has begun (TPOT)", most=False),
    Metric("p99_itl_ms", "inter-token p99, ms", "fewest stalls (inter-token p99)", most=False),
)


def best(results: Mapping[str, Result], point: Point, metric: Metric) -> tuple[str, ...]:
    """The layouts that no other one beats at a point, in the order of NAMES; () where fewer than two have it.

    One beats another where all its repeats are better than all of the other's, and its median by LEAST_DIFFERENCE
    (LEAST_DIFFERENCE_ONCE where either ran once).
    """
    values = {name: one.values(point, metric.name) for name, one in results.items()}
    values = {name: found for name, found in values.items() if found}
    if len(values) < 2:
        return ()
    return tuple(
        name
        for name in values
        if not any(beats(values[other], values[name], metric) for other in values if other != name)
    )


def beats(a: Sequence[float], b: Sequence[float], metric: Metric) -> bool:
    """Whether repeats `a` are better than repeats `b` beyond noise."""
    least = LEAST_DIFFERENCE if min(len(a), len(b)) > 1 else LEAST_DIFFERENCE_ONCE
    apart = min(a) > max(b) if metric.most else max(a) < min(b)
    larger = max(median(a), median(b))
    return apart and abs(median(a) - median(b)) >= least * larger


def sentence(results: Mapping[str, Result]) -> str:
    """Which layout to use for which load, "" where fewer than two were measured."""
    points = sorted({point for one in results.values() for point in one.points})
    wishes: dict[str, list[str]] = {}  # what is answered alike -> who asks
    for metric in JUDGED:
        answers: dict[str, list[Point]] = {}
        for point in points:
            found = best(results, point, metric)
            if found:
                measured = [name for name in results if results[name].values(point, metric.name)]
                names = " or ".join(NAMES[name] for name in found)
                answers.setdefault("no difference" if len(found) == len(measured) else names, []).append(point)
        if answers:
            wishes.setdefault(_answer(answers), []).append(metric.wish)
    told = "; ".join(f"{_listed(wish)}: {answer}" for answer, wish in wishes.items())
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def _answer(answers: Mapping[str, Sequence[Point]]) -> str:
    """Names with the points where they are the answer, those with most points first."""
    every = {point for points in answers.values() for point in points}
    by_count = sorted(answers.items(), key=lambda one: -len(one[1]))
    return ", ".join(f"{names} {_where(set(points), every)}" for names, points in by_count)


def _where(points: set[Point], every: set[Point]) -> str:
    """Whole concurrencies or whole loads where the points are these, else each load with its concurrencies."""
    if points == every:
        return "at every load"
    at_once = {point.concurrency for point in points}
    loads = {point.load for point in points}
    if points == {point for point in every if point.concurrency in at_once}:
        return f"at concurrency {_listed(map(str, sorted(at_once)))}"
    if points == {point for point in every if point.load in loads}:
        return f"at {_listed(f'{a}/{b}' for a, b in sorted(loads))}"
    each = {load: sorted(point.concurrency for point in points if point.load == load) for load in sorted(loads)}
    return f"at {_listed(f'{a}/{b} x {_listed(map(str, found))}' for (a, b), found in each.items())}"


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# ---- the first deployment

REFERENCE_GPUS = {"single": 4, "pd": 8}
REFERENCE_OF = "the first deployment, 8 x RTX PRO 6000, DeepSeek-V4-Flash, single TP 4 against PD TP 4 + TP 4"
# Measured by hand there, 256 tokens in and 128 out; None where nothing was written down.
REFERENCE: dict[str, dict[Point, dict[str, float | None]]] = {
    "single": {
        Point(256, 128, 1): {"output_throughput": 58.7, "median_tpot_ms": None},
        Point(256, 128, 16): {"output_throughput": 279.0, "median_tpot_ms": 43.0},
        Point(256, 128, 64): {"output_throughput": 509.0, "median_tpot_ms": 88.0},
    },
    "pd": {
        Point(256, 128, 1): {"output_throughput": 56.6, "median_tpot_ms": None},
        Point(256, 128, 16): {"output_throughput": 280.0, "median_tpot_ms": 25.5},
        Point(256, 128, 64): {"output_throughput": 385.0, "median_tpot_ms": 32.0},
    },
}
