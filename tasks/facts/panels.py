"""What a host's Prometheus has kept, for each query of a panel, and its alerts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from pyinfra.api import FactBase

LIMIT_S = 120
MOST = 32 << 20  # bytes of one answer that are read

_SCRIPT = r"""
import json, sys, time, urllib.error, urllib.parse, urllib.request
url, seconds, step, most, *queries = sys.argv[1:]
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
now = time.time() // int(step) * int(step)
def asked(path, body=None):
    try:
        try:
            with open_url(url + path, body, timeout=20) as answer:
                said = answer.read(int(most))
        except urllib.error.HTTPError as refused:
            said = refused.read(int(most))
        found = json.loads(said)
        return found["data"] if found["status"] == "success" else {"fault": str(found["error"])}
    except (OSError, ValueError, KeyError, TypeError) as fault:
        return {"fault": f"{url} does not answer: {fault}", "silent": True}
for query in queries:
    body = urllib.parse.urlencode({"query": query, "start": now - int(seconds), "end": now, "step": step}).encode()
    told = {name: value for name, value in asked("/api/v1/query_range", body).items() if name != "resultType"}
    print(json.dumps({"query": query, "now": now, **told}), flush=True)
    if "silent" in told:
        break
else:
    print(json.dumps({"alerts": asked("/api/v1/alerts").get("alerts")}))
"""


class Panels(FactBase[list[dict[str, Any]]]):
    """An answer for each query, in their order: {"query", "now", "result": of Prometheus' query_range, or "fault"}.
    "silent": Prometheus did not answer, and no further query was asked. Last {"alerts": of its API, null where it
    did not tell them}. [] where the host told nothing."""

    @staticmethod
    def default() -> list[dict[str, Any]]:
        return []

    def command(self, url: str, queries: Sequence[str], seconds: int, step: int) -> str:
        """seconds: how far back. step: between two points, s."""
        words = shlex.join([url, str(seconds), str(step), str(MOST), *queries])
        return f"timeout -k 5 {LIMIT_S} python3 -I -c {shlex.quote(_SCRIPT)} {words} 2>/dev/null || true"

    def process(self, output: list[str]) -> list[dict[str, Any]]:
        found = []
        for line in output:
            try:
                answer = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the banner of a login, or nested without end
            if isinstance(answer, dict) and (isinstance(answer.get("query"), str) or "alerts" in answer):
                found.append(answer)
        return found
