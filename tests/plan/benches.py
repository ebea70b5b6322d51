"""Benchmark results for tests, as pd-bench and SGLang's client give them."""

import json
from typing import Any

from tasks.plan.bench import figures as bench
from tasks.plan.plan import Plan
from tests.plan.builders import TWO_SOCKETS, hardware, plan, settings

LOADS = [(256, 128), (1024, 1024)]


def written(speed: float = 100.0, ttft: float = 40.0, tpot: float = 10.0, **changes: object) -> dict[str, Any]:
    """The figures that the client wrote about a pass, those that nobody reads among them."""
    return {
        "backend": "sglang", "duration": 12.5, "completed": 8, "output_throughput": speed, "total_throughput": 3 * speed,
        "median_ttft_ms": ttft, "p99_ttft_ms": 2 * ttft, "median_tpot_ms": tpot, "p99_tpot_ms": 1.5 * tpot,
        "median_itl_ms": tpot, "p99_itl_ms": 2 * tpot, "max_concurrent_requests": 4, **changes,
    }  # fmt: skip


def one_pass(
    load: tuple[int, int] = (256, 128), concurrency: int = 1, requests: int = 8, **figures: Any
) -> dict[str, Any]:
    return {
        "input": load[0], "output": load[1], "concurrency": concurrency, "requests": requests, "seed": 1,
        "status": "done", "seconds": 14.0, "reason": "", "result": written(completed=requests, **figures),
    }  # fmt: skip


def at_rate(
    rate: float, each: list[tuple[float, float]], load: tuple[int, int] = (256, 128), **figures: Any
) -> dict[str, Any]:
    """A pass whose requests arrive at a rate. each: TTFT and 99th percentile of the gaps of each request, ms."""
    one = one_pass(load, requests=len(each), **figures)
    return {**one, "concurrency": None, "rate": rate, "each": each}


def failed(status: str = "failed", reason: str = "Warmup failed", **changes: Any) -> dict[str, Any]:
    return {**one_pass(**changes), "status": status, "reason": reason, "result": None}


def told(passes: list[dict[str, Any]], started: str = "2026-11-30T08:15:00Z") -> str:
    """What pd-bench prints."""
    return json.dumps({"format": 1, "started": started, "seconds": 300.0, "passes": passes})


def planned(layout: str = "pd", **changes: object) -> Plan:
    shares = {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2, "server_tensor_parallel": 2}
    return plan(settings(layout=layout, **{**shares, **changes}), hardware(TWO_SOCKETS))


def result(
    passes: list[dict[str, Any]], layout: str = "pd", started: str = "2026-11-30T08:15:00Z", host: str = "gpu-1"
) -> bench.Result:
    return bench.result(planned(layout), host, told(passes, started))


def curve(layout: str, factor: float = 1.0, started: str = "2026-11-30T08:15:00Z") -> bench.Result:
    """A whole measurement: figures as such layouts have them, three repeats that differ by a percent or two."""
    shape = {
        "single": {1: (60, 30, 16), 16: (290, 160, 45), 64: (520, 500, 90)},
        "data_parallel": {1: (60, 30, 16), 16: (480, 100, 30), 64: (900, 300, 60)},
        "pd": {1: (58, 45, 16.5), 16: (300, 90, 24), 64: (640, 180, 33)},
    }[layout]
    passes = []
    for repeat in (0.99, 1.0, 1.02):
        for load in LOADS:
            longer = load[1] / 128
            for concurrency, (speed, ttft, tpot) in shape.items():
                passes.append(
                    one_pass(load, concurrency, max(8, 4 * concurrency), speed=speed * factor * repeat,
                             ttft=ttft * repeat * longer**0.5, tpot=tpot * repeat)
                )  # fmt: skip
    return result(passes, layout, started)
