"""Golden questions through the router."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra import host, state
from pyinfra.api import FunctionCommand, Host, State, operation

from tasks.facts.answers import Answers
from tasks.operations.passed import taken_back
from tasks.operations.progress import asked, say
from tasks.plan.plan import Plan
from tasks.support import fleet, summary


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
    with fleet.asking(plan):
        lines = _wrong(host.get_fact(Answers, tool=tool, config=config, answered=answered, depends=depends))
    if not lines:
        host.noop("every answer is right")
        return
    yield FunctionCommand(taken_back, [plan, lines], {})


def all_right(state: State, host: Host, tool: str, config: str) -> bool:
    """Every question is asked again. Fails with what was wrong, and changes nothing."""
    lines = _wrong(asked(host, Answers(), tool=tool, config=config))
    for line in lines:
        summary.last(host, line, "red")
    if not lines:
        summary.last(host, "the service answers every question right", "green")
    return not lines


def _wrong(found: dict[str, Any]) -> list[str]:
    """What is wrong, a line each; right answers are shown."""
    for answer in found.get("answers", []):
        times = f"TTFT {answer['ttft_ms']:.0f} ms, TPOT {answer['tpot_ms']:.1f} ms" if answer.get("tpot_ms") else ""
        if answer["ok"]:
            say(host, f"{answer['name']}: {answer['answer'].strip()!r} {times}", "green")
    if found.get("ok"):
        return []
    wrong = [
        f"{answer['name']}: asked {answer['prompt']!r}, answered {answer['answer']!r}, "
        f"expected {answer['match']} {answer['expect']!r}: {answer['reason']}"
        for answer in found.get("answers", [])
        if not answer["ok"]
    ]
    reason = found.get("reason")
    return wrong or [str(reason or "pd-verify gave no answer that can be read")]
