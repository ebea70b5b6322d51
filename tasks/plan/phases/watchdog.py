"""What pd-watchdog is told: whom it asks, how long a silence may last, what it leaves alone."""

from __future__ import annotations

from tasks.plan.files import WantedFile, to_json
from tasks.plan.plan import Plan
from tasks.plan.service.instances import goes_with
from tasks.plan.service.paths import (
    BENCH_UNIT,
    JIT_UNIT,
    LOCK,
    PROBE_UNIT,
    RESUME,
    ROUND_LOCK,
    UNITS,
    WATCHDOG,
    WATCHDOG_COUNT,
)

LONGEST_ROUND = 20  # seconds: SGLang itself gives up a health check after 20 s
MEASURING = (PROBE_UNIT, BENCH_UNIT, JIT_UNIT, RESUME)  # units that are not to be disturbed


def watchdog_config(plan: Plan) -> WantedFile:
    settings, paths, router = plan.settings, plan.paths, plan.router
    limit, along = settings.watchdog_limit, goes_with(plan.instances)
    config = {
        "url": router.url if router else None,
        "certificate_file": paths.executed_tls if router and router.scheme == "https" else None,
        "api_key_file": paths.secret if router and plan.api_key else None,
        "whole": settings.place.alone,
        "user": settings.service_user,
        "interval_s": settings.watchdog_interval,
        "round_s": min(LONGEST_ROUND, limit / 3),
        "limit_s": limit,
        "first_limit_s": max(limit, settings.warm_up_limit),
        "restarts": settings.watchdog_restarts,
        "router": router.unit if router else None,
        "servers": [
            {
                "unit": worker.unit,
                "role": worker.role,
                "url": worker.url,
                "bootstrap": worker.bootstrap_address,
                "takes": [other.unit for other in plan.workers if along.get(other.name) == worker],
            }
            for worker in plan.workers
        ],
        "quiet": list(MEASURING),
        "lock": LOCK,
        "round_lock": ROUND_LOCK,
        "count": WATCHDOG_COUNT,
        "belongs": [f"{UNITS}/{WATCHDOG}"],
    }
    return WantedFile(paths.watchdog, to_json(config), gist="what the watchdog asks, and of whom")
