"""The running service under load."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from pyinfra.api import FunctionCommand, Host, State, operation

from tasks.operations.progress import in_own_unit, left_by, run_and_log, say
from tasks.plan.bench import figures as bench
from tasks.plan.bench import goodput
from tasks.plan.bench.goodput import Limits
from tasks.plan.errors import PlanError
from tasks.plan.plan import Plan
from tasks.plan.service.paths import BENCH_UNIT
from tasks.support import render, report

SLACK_S = 600  # beside the passes: importing the client, asking whether the service answers


@operation(is_idempotent=False)
def measured(plan: Plan) -> Generator[FunctionCommand, None, None]:
    """A measurement, kept beside the earlier ones, and a page that compares them."""
    yield FunctionCommand(measure, [plan], {})


def measure(state: State, host: Host, plan: Plan) -> bool:
    """Run pd-bench on the host. False where it left no result, or a pass ended without one."""
    run_and_log(state, host, _bench(plan))
    text = left_by(host, plan.settings.service_user, plan.paths.benched)
    if not text:
        say(host, f"nothing was measured; more with `journalctl -u {BENCH_UNIT}` on the host", "red")
        return False
    try:
        result = bench.result(plan, host.name, text)
        limits = Limits.of(plan.settings.bench_limits)
        page, comparison = _keep(result, Path(str(plan.settings.report_dir)), limits)
    except PlanError as fault:
        for line in fault.lines:
            say(host, line, "red")
        return False
    failed = [one for one in result.passes if one.status != "done"]
    for one in failed:
        say(host, f"{one.name}: {one.status}: {one.reason}", "red")
    for told in (bench.sentence(comparison.layouts), goodput.sentence(comparison.layouts, limits)):
        if told:
            say(host, told, "green")
    say(host, f"page: {page}")
    return not failed


def _keep(result: bench.Result, folder: Path, limits: Limits) -> tuple[Path, bench.Comparison]:
    name = report.file_stem(result.host)
    own = folder / "serving" / name
    report.replace(own / bench.file_name(result), bench.to_json(result).encode())
    comparison = bench.compare(
        bench.from_json(path.read_text(errors="replace"), str(path)) for path in sorted(own.glob("*.json"))
    )
    page = folder / f"{name}.serving.html"
    report.replace(page, render.serving(comparison, limits))
    return page, comparison


def _bench(plan: Plan) -> str:
    paths = plan.paths
    seconds = len(bench.passes(plan)) * plan.settings.bench_limit + SLACK_S
    command = [f"{paths.bin}/pd-bench", "--config", paths.bench]
    return in_own_unit(plan, BENCH_UNIT, command, paths.benched, RuntimeMaxSec=seconds)
