"""Golden questions through the router."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra import host, state
from pyinfra.api import FunctionCommand, operation

from tasks.facts.answers import Answers
from tasks.operations.passed import taken_back
from tasks.operations.progress import say
from tasks.plan.plan import Plan


@operation()
def answers(
    plan: Plan, tool: str, config: str, answered: str | None, depends: list[str]
) -> Generator[FunctionCommand, None, None]:
    """Right answers, streaming and not. Asking changes nothing, so a service that answers shows "No changes". Where an
    answer is wrong, what passed last comes back.

    The tool remembers right answers below /run: while the same processes run with the same configuration, it asks one
    question instead of all.
    """
    if not state.is_executing:
        host.noop("asked once the service runs")
        return
    found = host.get_fact(Answers, tool=tool, config=config, answered=answered, depends=depends)
    for answer in found.get("answers", []):
        times = f"TTFT {answer['ttft_ms']:.0f} ms, TPOT {answer['tpot_ms']:.1f} ms" if answer.get("tpot_ms") else ""
        if answer["ok"]:
            say(host, f"{answer['name']}: {answer['answer'].strip()!r} {times}", "green")
    if found.get("ok"):
        host.noop("every answer is right")
        return
    wrong = [
        f"{answer['name']}: asked {answer['prompt']!r}, answered {answer['answer']!r}, "
        f"expected {answer['match']} {answer['expect']!r}: {answer['reason']}"
        for answer in found.get("answers", [])
        if not answer["ok"]
    ]
    reason = found.get("reason")
    lines = wrong or [str(reason or "pd-verify gave no answer that can be read")]
    yield FunctionCommand(taken_back, [plan, lines], {})
