"""Every panel of the dashboards, asked of a Prometheus while a client asks the service: they agree with the client.

It takes minutes: make test-faults. RECORD=1 keeps what Prometheus said for the tests of the page.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from urllib.parse import quote

import pytest

from tasks.facts.panels import Panels
from tasks.plan.report import status
from tasks.support import catalogue
from tests.node.deploying import deploy, provisioned
from tests.node.node import REPOSITORY, Node
from tests.node.single import READ, unwatched
from tests.node.steady import Steady, steady
from tests.node.waiting import until
from tests.node.watching import AT_FAILURE, METRIC, URL, asked

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make test-faults")
RECORDED = REPOSITORY / "tests" / "support" / "recorded" / "prometheus.jsonl"
ROUTER = "http://127.0.0.1:29001/metrics"
ANSWERS = "smg_http_responses_total"
ASKED = 150  # questions
WINDOW_S = 300  # of the rates in panels
# Counters: each grows by what the client counted.
REQUESTS = 'smg_router_requests_total{streaming="%s"}'
PROMPT, ANSWER = 'sglang:prompt_tokens_total{role!="decode"}', 'sglang:generation_tokens_total{role!="prefill"}'
FIRST_TOKENS, MOVED = "sglang:time_to_first_token_seconds_count", "sglang:kv_transfer_total_mb_count"
COUNTERS = (REQUESTS % "true", REQUESTS % "false", ANSWERS + '{status_code="200"}', PROMPT, ANSWER, FIRST_TOKENS, MOVED)


def values(node: Node, query: str) -> list[float]:
    found = asked(node, f"/api/v1/query?query={quote(query)}")["result"]
    return [float(one["value"][1]) for one in found]


def total(node: Node, query: str) -> float:
    return sum(values(node, query))


@dataclass(frozen=True)
class Loaded:
    """A node that a client has asked, and what its Prometheus had counted before and after."""

    node: Node
    client: Steady
    grown: dict[str, float]  # counter -> by how much

    def tokens(self, which: int) -> int:
        return sum(one.tokens[which] for one in self.client.asked)

    def panel(self, title: str) -> list[list[float]]:
        """The values of each of its queries, now."""
        return [values(self.node, query) for query, _ in panels()[title].queries]


def panels() -> dict[str, status.Panel]:
    return {panel.title: panel for one in catalogue.dashboards() for panel in one.panels}


@pytest.fixture(scope="module")
def loaded(bare_node: Callable[..., Node]) -> Iterator[Loaded]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MONITORING", "1")
        node = bare_node()
        provisioned(node)
        with unwatched(node):
            router = f"python3 -c '{READ.format(url=ROUTER)}'"
            lines = [line for line in node.run(router).stdout.splitlines() if line.startswith(ANSWERS + "{")]
            told = sum(float(line.rpartition(" ")[2]) for line in lines)
            until(lambda: total(node, ANSWERS) == told, "Prometheus has counted every question before", 60)
            before = {counter: total(node, counter) for counter in COUNTERS}
            with steady(node, rate=3) as client:
                client.answers_more(ASKED, limit=240)
            counted = told + len(client.asked)
            until(lambda: total(node, ANSWERS) >= counted, "Prometheus has counted every question", 60)
            until(lambda: total(node, MOVED) - before[MOVED] >= len(client.asked), "and every transfer", 60)
            yield Loaded(node, client, {counter: total(node, counter) - before[counter] for counter in COUNTERS})
        assert node.unrecorded() == []


def test_counters_are_what_the_client_counted(loaded: Loaded) -> None:
    asked, grown = len(loaded.client.asked), loaded.grown
    assert loaded.client.failed == []
    assert grown[REQUESTS % "true"] + grown[REQUESTS % "false"] == asked
    assert abs(grown[REQUESTS % "true"] - grown[REQUESTS % "false"]) <= 1, "every second one is streamed"
    assert grown[ANSWERS + '{status_code="200"}'] == grown[FIRST_TOKENS] == grown[MOVED] == asked
    assert (grown[PROMPT], grown[ANSWER]) == (loaded.tokens(0), loaded.tokens(1))


def test_rates_of_panels_are_what_the_client_counted(loaded: Loaded) -> None:
    """Prometheus takes a rate from scrapes that lie up to 15 s apart, and what was asked before may be in it."""
    rates = {
        "requests": (sum(loaded.panel("Requests")[0]), len(loaded.client.asked)),
        "answers": (sum(loaded.panel("Answers by status")[0]), len(loaded.client.asked)),
        "prompt": (loaded.panel("Tokens a second")[0][0], loaded.tokens(0)),
        "answer": (loaded.panel("Tokens a second")[1][0], loaded.tokens(1)),
    }
    wrong = {
        name: (rate * WINDOW_S, count)
        for name, (rate, count) in rates.items()
        if not count * 0.97 <= rate * WINDOW_S <= count * 1.3
    }
    assert not wrong


def test_times_and_gauges_fit_what_the_client_saw(loaded: Loaded) -> None:
    took = [one.ended - one.sent for one in loaded.client.asked]
    (first,), (late,) = loaded.panel("Time to first token")
    assert 0 < first <= late and first <= max(took)
    (between,), (slow,) = loaded.panel("Time between tokens")
    assert 0 < between <= slow and between <= median(took)
    (size,) = loaded.panel("Size of a transfer")[0]
    assert size > 0
    most = max(
        sum(one.in_flight(other.sent, other.sent) for one in loaded.client.asked) for other in loaded.client.asked
    )
    for query, _ in panels()["Running and waiting"].queries:
        assert all(value <= most for value in values(loaded.node, f"max_over_time({query}[5m:15s])"))
    for title in ("KV cache in use", "Prompt tokens from the cache"):
        assert all(0 <= value <= 1 for value in loaded.panel(title)[0])


def test_every_query_has_data_but_those_of_failures(loaded: Loaded) -> None:
    empty = {
        f"{panel.title}: {query}"
        for panel in panels().values()
        for query, _ in panel.queries
        if not values(loaded.node, query) and not set(METRIC.findall(query)) <= AT_FAILURE
    }
    assert empty <= {'GPUs slowed, Xids, memory errors: sglang_pd_gpu_xids{xid!="none"}'}


def test_the_page_is_written_from_the_same_figures(loaded: Loaded) -> None:
    ran = deploy(loaded.node, "-y", operations="tasks.status.write", status_hours="0.25")
    assert ran.status == 0, ran.output
    assert "reports/rehearsal.status.html: the last 0.25 h, " in ran.output
    page = (REPOSITORY / "reports" / "rehearsal.status.html").read_text()
    for panel in panels().values():
        assert panel.title in page
    if "RECORD" in os.environ:
        queries = status.queries(catalogue.dashboards())
        told = loaded.node.run(Panels().command(url=URL, queries=queries, seconds=900, step=15)).stdout
        assert len(told.splitlines()) == len(queries) + 1
        RECORDED.write_text(told)


def test_a_host_without_monitoring_says_so(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONITORING")
    ran = deploy(loaded.node, "-y", operations="tasks.status.write")
    assert ran.status == 1 and "refused: nothing has been recorded on this host" in ran.output, ran.output
