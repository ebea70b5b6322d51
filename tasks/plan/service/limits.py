"""What one client, or many, can ask of the service at most.

What the routers do was tried against real servers (sglang-router 0.3.2, smg 1.13.0); docs/limits.md has the answers.
"""

from __future__ import annotations

from tasks.plan.settings.settings import Settings

MIB = 1 << 20
ANSWER_VARIABLE = "SGLANG_MAX_NEW_TOKENS_LIMIT"


def arguments(settings: Settings, router: str) -> tuple[tuple[str, ...], ...]:
    """Options of the router. router: the package that runs, which a rollback may have chosen."""
    waiting = settings.router_queue if router == "smg" else 0
    return (
        ("--max-concurrent-requests", str(settings.router_max_requests)),
        ("--queue-size", str(waiting)),
        *([("--queue-timeout-secs", str(settings.router_queue_limit))] if waiting else []),
        *_rate(settings, router),
        ("--request-timeout-secs", str(settings.router_request_limit)),
        ("--max-payload-size", str(settings.router_body_limit_mib * MIB)),
    )


def _rate(settings: Settings, router: str) -> list[tuple[str, ...]]:
    """sglang-router lets in as many more each second, however many run: at its default as many as router_max_requests,
    and 1 is the least. For smg it is a rate."""
    option = "--rate-limit-tokens-per-second"
    if router != "smg":
        return [(option, "1")]
    return [(option, str(settings.router_rate))] if settings.router_rate is not None else []


def variables(settings: Settings) -> tuple[tuple[str, str, str], ...]:
    """Name, value and reason of what servers are told by their environment."""
    if settings.max_answer_tokens is None:
        return ()
    return ((ANSWER_VARIABLE, str(settings.max_answer_tokens), "setting max_answer_tokens: longer answers are cut"),)
