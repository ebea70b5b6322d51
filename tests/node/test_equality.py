"""Prefill and decode apart give the answers of one server alone, on the same host in the same run."""

from __future__ import annotations

from tests.node.asking import answer
from tests.node.node import Node
from tests.node.single import counters, grown, prompts, single_server, unwatched
from tests.node.waiting import until


def test_answers_are_those_of_a_single_server(served: Node) -> None:
    asked = prompts()
    with single_server(served) as port, unwatched(served):
        before = counters(served)
        apart = [answer(served, prompt) for prompt in asked]
        streamed = [answer(served, prompt, stream=True) for prompt in asked]
        count = len(apart) + len(streamed)
        until(
            lambda: [sum(workers.values()) for workers in grown(before, counters(served)).values()] == [count, count],
            f"both workers count {count} transfers",
            30,
        )
        together = [answer(served, prompt, port=port) for prompt in asked]
    assert apart == together
    assert streamed == together
    assert len(set(together)) > len(asked) // 2, "answers that hardly depend on the prompt would prove nothing"
