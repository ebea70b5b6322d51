"""The tables of docs/measurements.md from what tests.gpu.measure left: python -m tests.gpu.tables FOLDER [--limits 450/40]

Speeds of each layout, requests in time at each rate, what kv_checksum costs, and where the first token of layout pd
spends its time. A cell holds the median of the repeats; tokens a second with the lowest and the highest.

exit codes: 0 written; 2 wrong usage; 3 nothing was measured there
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tasks.plan.bench import goodput
from tasks.plan.bench.figures import NAMES, Point, Result, from_json
from tasks.plan.bench.goodput import Limits

CHECKSUM = {"checksum-off": "without", "checksum-on": "with kv_checksum", "checksum-off-again": "without again"}
MILLISECONDS = ("median_ttft_ms", "median_tpot_ms", "p99_itl_ms")
UNITS = "tok/s (lowest to highest); TTFT p50, TPOT p50, ITL p99 in ms"


def results(folder: Path, names: Iterable[str]) -> dict[str, Result]:
    """By name, those that are there."""
    paths = {name: folder / f"{name}.json" for name in names}
    return {name: from_json(path.read_text(), path.name) for name, path in paths.items() if path.exists()}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(result: Result, point: Point) -> str:
    speeds = result.values(point, "output_throughput")
    if not speeds:
        return "-"
    spread = f" ({min(speeds):,.0f} to {max(speeds):,.0f})" if len(speeds) > 1 else ""
    times = [f"{median(result.values(point, name)):,.{1 if name != 'median_ttft_ms' else 0}f}" for name in MILLISECONDS]
    return f"{median(speeds):,.0f}{spread}; {', '.join(times)}"


def speeds(found: dict[str, Result]) -> str:
    """found: head of the column -> what was measured."""
    points = sorted({point for result in found.values() for point in result.points})
    rows = [
        [f"{one.input:,} / {one.output:,}, {one.concurrency}", *(cell(result, one) for result in found.values())]
        for one in points
    ]
    return table(["in / out, in flight", *found], rows)


def rates(found: dict[str, Result], limits: Limits) -> str:
    rows = []
    for load in goodput.loads(found.values()):
        every = {name: goodput.shares(result, load, limits) for name, result in found.items()}
        for rate in sorted({rate for of in every.values() for rate in of}):
            cells = [f"{median(of[rate]):.0%}".replace("%", " %") if rate in of else "-" for of in every.values()]
            rows.append([f"{load[0]:,} / {load[1]:,}, {rate:g} a second", *cells])
        goods = [str(goodput.goodput(result, load, limits) or "-") for result in found.values()]
        rows.append([f"{load[0]:,} / {load[1]:,}, **goodput**", *goods])
    return table(["in / out, requests", *found], rows)


def stages(found: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for server, histograms in found.items():
        for one in histograms:
            if one["name"].endswith("_seconds"):
                what = one.get("stage", "")
                rows.append([server, one["name"].split(":")[-1], what, str(one["count"]), f"{one['mean'] * 1000:.1f}"])
    return table(["server", "histogram", "stage", "requests", "mean, ms"], rows)


def page(folder: Path, limits: Limits) -> str:
    """Markdown; "" where nothing was measured."""
    parts = []
    load = {NAMES[name]: one for name in NAMES for one in results(folder, [f"load-{name}"]).values()}
    if load:
        parts.append(f"Each cell: {UNITS}.\n\n{speeds(load)}")
    rate = {NAMES[name]: one for name in NAMES for one in results(folder, [f"rates-{name}"]).values()}
    if rate:
        parts.append(f"Answered in time, {limits}:\n\n{rates(rate, limits)}")
    checksum = {CHECKSUM[name]: one for name, one in results(folder, CHECKSUM).items()}
    if checksum:
        parts.append(f"Prefill and decode. Each cell: {UNITS}.\n\n{speeds(checksum)}")
    measured = folder / "measured.json"
    if measured.exists() and (told := json.loads(measured.read_text()).get("stages", {}).get("stages")):
        parts.append(f"What the servers' histograms counted:\n\n{stages(told)}")
    return "\n".join(parts)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--limits", default="450/40", help="ms to the first token / ms between tokens")
    given = parser.parse_args(words)
    told = page(given.folder, Limits.of(given.limits))
    if not told:
        print(f"tables: nothing was measured in {given.folder}", file=sys.stderr)
        return 3
    print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
