"""What pd-verify asks, and of whom."""

from __future__ import annotations

from typing import Any

from tasks.plan.files import WantedFile, to_json
from tasks.plan.plan import Plan
from tasks.plan.service.paths import ANSWERS, ROUND_LOCK
from tasks.plan.settings.questions import Golden
from tasks.plan.settings.roles import WHOLE

# Counters of the workers' /metrics that grow by one with every answer whose KV cache moved. Decode's own kv_transfer_*
# counters grow with health checks too and prove nothing (measured on SGLang 0.5.20, same in the source of 0.5.23).
TRANSFER_METRICS = {"prefill": "sglang:kv_transfer_latency_ms_count", "decode": "sglang:num_requests_total"}
ANSWER_METRICS = {WHOLE: "sglang:num_requests_total"}  # of whole servers on several hosts, each of which has to answer


def questions(plan: Plan) -> list[Golden]:
    """The setting's, else the profile's; no answer may take more than half of the context."""
    room = max(1, plan.context_length // 2)
    chosen = plan.profile.golden if plan.settings.questions is None else plan.settings.questions
    return [one.model_copy(update={"max_tokens": min(one.max_tokens, room)}) for one in chosen]


def chat_template_kwargs(plan: Plan) -> dict[str, Any]:
    """The setting's, else the profile's."""
    chosen = plan.settings.chat_template_kwargs
    return plan.profile.chat_template_kwargs if chosen is None else chosen


def verify_config(plan: Plan) -> WantedFile | None:
    """What pd-verify asks, and of whom; None on a host without a router."""
    if plan.router is None:
        return None
    config = {
        "url": plan.router.url,
        "certificate_file": plan.paths.executed_tls if plan.router.scheme == "https" else None,
        "api_key_file": plan.paths.secret if plan.api_key else None,
        "model": plan.profile.served_name,
        "round_lock": ROUND_LOCK if plan.settings.watchdog else None,
        "record": ANSWERS,
        "limit_s": plan.settings.answer_limit,
        "warm_up_limit_s": plan.settings.warm_up_limit,
        "golden": [question.model_dump() for question in questions(plan)],
        "chat_template_kwargs": chat_template_kwargs(plan),
        "metrics": {
            role: [f"{worker.url}/metrics" for worker in plan.served if worker.role == role]
            for role in dict.fromkeys(worker.role for worker in plan.served)
        },
        "least": {role: least for role, (least, _) in plan.enough.items()} or None,
        "listed": None if plan.settings.place.alone else plan.paths.workers,
        "transfer_metrics": _counters(plan),
    }
    gist = f"{len(questions(plan))} questions with known answers"
    return WantedFile(plan.paths.verify, to_json(config), "640", "root", plan.group, gist=gist)


def _counters(plan: Plan) -> dict[str, str]:
    """Role -> counter of its servers that shows who has answered."""
    if plan.settings.layout == "pd":
        return TRANSFER_METRICS
    return {} if plan.settings.place.alone else ANSWER_METRICS
