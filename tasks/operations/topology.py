"""Says where each server runs, and has the links between its GPUs measured: the driver's matrix proves nothing."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.operations.files import as_user
from tasks.operations.progress import ask, follow_gates, in_own_unit, left_by, run_and_log, say, start_again
from tasks.operations.rollout import in_turn, leaving
from tasks.operations.routes import out_of_use
from tasks.plan.findings import Finding, Level
from tasks.plan.phases.passed import arming, disarming
from tasks.plan.plan import Plan
from tasks.plan.proof import judgement as proof
from tasks.plan.service.instances import Instance
from tasks.plan.service.paths import BOOT_ID, JIT_UNIT, PROBE_UNIT
from tasks.plan.service.restarts import Serving
from tasks.support import report
from tasks.support.fleet import Rollout

Commands = Generator[StringCommand | FunctionCommand, None, None]
COLOURS = {Level.HEALTHY: "green", Level.ERROR: "red"}


@operation()
def placed(worker: Instance) -> Commands:
    """Nothing to change: shows the placement and the rule that chose it."""
    assert worker.placement is not None
    host.noop(f"{worker.name}: {worker.placement.where}: {worker.placement.rule}")
    yield from ()


@operation()
def proved(plan: Plan, found: proof.Proof, serving: Serving, told: bool, rollout: Rollout | None) -> Commands:
    """A measurement that holds. Measured where there is none, and never beside running servers.

    serving: what runs now. It is drained first where the setting `reprove` asks for it, and where it belongs to
    another layout, so that this run ends it anyway. told: an earlier run has warned that it is stale; the report says
    it each time. rollout: of a service of several hosts, which are measured one after the other.
    """
    if not plan.settings.reprove and (found.holds or (serving.units and not serving.replaced)):
        for finding in found.findings:
            if finding.doubtful and not (told and finding.id == proof.STATE):
                logger.warning(f"{host.print_prefix}{finding.sentence}")
        host.noop("measured, and nothing it depends on has changed" if found.holds else "not measured: servers run")
        return
    out = [worker for worker in plan.workers if worker.unit in serving.units] if rollout else []
    if rollout and out:
        yield FunctionCommand(_in_turn, [plan, rollout, out], {})
    else:
        yield FunctionCommand(measure, [plan, serving.units], {})


def _in_turn(state: State, host: Host, plan: Plan, rollout: Rollout, out: Sequence[Instance]) -> bool:
    """out: the servers that run. Their router goes on, and they serve again before another host is measured."""

    def measured(state: State, host: Host) -> bool:
        good = measure(state, host, plan, [worker.unit for worker in out], back=True)
        back = {worker.name: worker.unit for worker in out}
        return follow_gates(state, host, back, plan.settings.worker_ready_limit) and good

    away = leaving(plan, rollout, out)
    return in_turn(host, rollout, out, lambda: out_of_use(state, host, away, measured))


def measure(state: State, host: Host, plan: Plan, serving: Sequence[str], back: bool = False) -> bool:
    """Run pd-probe as the servers are run, and judge what it found. False where servers must not start on it.

    What was measured before stays until there is a new result: a run that breaks off takes no proof away. back: what
    was stopped for it starts again here, and not with what else this run changes.
    """
    if serving:
        say(host, f"drained for the proof: {', '.join(serving)}")
        if not run_and_log(state, host, arming(plan.paths, serving)):
            return False  # nothing would bring them back, should this run break off
        router = [plan.router.unit] if plan.router and plan.router.unit in serving else []
        first = f"systemctl stop {shlex.join(router)}; " if router else ""
        run_and_log(state, host, f"{first}systemctl stop {shlex.join(serving)}")
    boot = ask(host, f"cat {BOOT_ID}").strip()
    run_and_log(state, host, undisturbed(_probe(plan, boot)))
    user, left = plan.settings.service_user, plan.paths.measuring
    measured = left_by(host, user, left)
    if measured:
        ask(host, as_user(user, "mv", "-fT", left, plan.paths.measured))
    found = proof.read(plan, measured or None, boot, serving=False)
    page = report.write(host.name, plan, (*plan.findings, *found.findings), found.data, found.state)
    if found.stale:
        say(host, f"pd-probe left no result ({found.stale}): `journalctl -u {PROBE_UNIT}` on the host says why", "red")
    else:
        for finding in found.findings:
            if finding.level is not Level.HEALTHY or not finding.id.endswith(("/run", "/state")):
                _tell(host, finding)
    if page:
        say(host, f"report: {page}")
    if serving and (back or not found.holds):
        start_again(state, host, serving)
        ask(host, disarming())
    return found.holds


def undisturbed(command: str) -> str:
    """The command during which kernels that compile wait: posting descriptors costs CPU time.

    One command of the host's: where the run ends meanwhile, the host still has them go on.
    """
    return (
        f"trap 'systemctl thaw {JIT_UNIT} 2>/dev/null' EXIT; trap 'exit 143' HUP INT TERM; "
        f"if systemctl is-active -q {JIT_UNIT}; then systemctl freeze {JIT_UNIT} 2>/dev/null; fi; {command}"
    )


def _probe(plan: Plan, boot: str) -> str:
    """With the limits of the servers. boot: the id of it, which a unit with a /proc of its own may not see."""
    settings, paths = plan.settings, plan.paths
    command = [f"{paths.bin}/pd-probe", "--config", paths.probe, "--boot", boot]
    seconds = 3 * settings.probe_limit + 60
    return in_own_unit(
        plan, PROBE_UNIT, command, paths.measuring, LimitMEMLOCK=settings.limit_memlock, RuntimeMaxSec=seconds
    )


def _tell(host: Host, finding: Finding) -> None:
    say(host, finding.sentence, COLOURS.get(finding.level, "yellow"))
    if finding.doubtful:
        for line in finding.evidence:
            say(host, f"  {line}")
