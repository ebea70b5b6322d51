"""Where the time to the first token goes: what servers measured while a command ran, from their own histograms.

python -m tests.gpu.stages URL [URL ...] -- COMMAND...: reads /metrics of each server before and after, and prints JSON:
for each server and each histogram that counted something, how often, the mean, and the bucket that holds the median.

Standard library only, so that it runs where the services do.

exit codes: that of the command; 2 wrong usage; 3 a server did not answer
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections import defaultdict
from typing import Any

LINE = re.compile(r"^([a-zA-Z_:][\w:]*)_(bucket|sum|count)(\{.*\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# What tells nothing here: the same for every line of a server
COMMON = {"model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "moe_ep_rank", "pid", "priority", "le"}

Series = tuple[str, tuple[tuple[str, str], ...]]  # name of a histogram and its labels


def read(text: str) -> dict[Series, dict[str, float]]:
    """Histograms of a page of Prometheus' text: "sum", "count" and cumulative counts by upper bound."""
    found: dict[Series, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in text.splitlines():
        if not (parts := LINE.match(line)):
            continue
        name, kind, labels, value = parts.groups()
        given = dict(LABEL.findall(labels or ""))
        series = (name, tuple(sorted((key, word) for key, word in given.items() if key not in COMMON)))
        found[series][given["le"] if kind == "bucket" else kind] += float(value)
    return found


def between(before: dict[Series, dict[str, float]], after: dict[Series, dict[str, float]]) -> list[dict[str, Any]]:
    """What was counted in between, the histogram with the largest mean first."""
    found = []
    for (name, labels), now in after.items():
        then = before.get((name, labels), {})
        grown = {key: value - then.get(key, 0.0) for key, value in now.items()}
        count = grown.pop("count", 0.0)
        total = grown.pop("sum", 0.0)
        if count <= 0:
            continue
        bounds = sorted(grown, key=float)
        median = next((bound for bound in bounds if grown[bound] * 2 >= count), "+Inf")
        below = next((bounds[at - 1] for at, bound in enumerate(bounds) if bound == median and at), "0")
        found.append(
            {
                "name": name,
                **dict(labels),
                "count": round(count),
                "mean": round(total / count, 5),
                "median_between": [float(below), None if median == "+Inf" else float(median)],
            }
        )
    return sorted(found, key=lambda one: (one["name"], -one["mean"]))


def page(url: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{url.rstrip('/')}/metrics", timeout=30) as answer:
        content: bytes = answer.read()
    return content.decode()


def main(words: list[str]) -> int:
    if "--" not in words or not (urls := words[: words.index("--")]) or not (command := words[words.index("--") + 1 :]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        before = {url: read(page(url)) for url in urls}
        ended = subprocess.run(command, stdout=sys.stderr).returncode
        told = {url: between(before[url], read(page(url))) for url in urls}
    except OSError as error:
        print(f"stages: no metrics: {error}", file=sys.stderr)
        return 3
    print(json.dumps(told, indent=1))
    return ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
