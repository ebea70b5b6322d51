"""What is kept of a service that answered right, so that a change that fails can be taken back."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tasks.plan.files import WantedFile, to_json
from tasks.plan.phases.routing import workers_file
from tasks.plan.plan import Plan
from tasks.plan.service.paths import DEVICES, LOCK, PASSED, PROBE_UNIT, RESTORING, RESUME, UNITS, Paths
from tasks.plan.service.restarts import FoundUnits

KEEPING = f"{LOCK.rpartition('/')[0]}/keeping"  # pd-passed where its own place still has another playbook's tools
OWN = ("/pd-passed", "/pd_shared.py")  # of the tools, what it needs


def passed_config(plan: Plan, more: Sequence[str]) -> WantedFile:
    """What pd-passed keeps: all that systemd starts the service from. more: paths of tools, and of units of neither
    servers nor router."""
    router = plan.router.unit if plan.router else ""
    config = _config(plan, [i.unit for i in plan.instances], router, [worker.unit for worker in plan.workers], more)
    return WantedFile(plan.paths.passed, to_json(config), gist="names what is kept")


def found_config(plan: Plan, found: FoundUnits, more: Sequence[str]) -> WantedFile | None:
    """As passed_config, of what serves now, whatever playbook wrote it; None where no router with its servers does."""
    units, router = found.serving(plan.instances).units, plan.paths.unit("router").rpartition("/")[2]
    workers = [unit for unit in units if unit != router]
    if router not in units or not workers:
        return None
    of_before = [plan.paths.earlier_secret, f"{UNITS}/{DEVICES}"]
    config = _config(plan, sorted({*found.files, *units} - {DEVICES}), router, workers, [*of_before, *more])
    return WantedFile(f"{KEEPING}/config.json", to_json(config))


def keeping(config: WantedFile) -> str:
    """The command that keeps what a config in KEEPING names."""
    run = ["python3", "-I", f"{KEEPING}/pd-passed", "keep", "--config", config.path]
    return f"{shlex.join(run)} && rm -rf {KEEPING}"


def _config(
    plan: Plan, units: Sequence[str], router: str, workers: Sequence[str], more: Sequence[str]
) -> dict[str, object]:
    """units: of servers and router, all that are there. router: "" on a host without one."""
    paths, proof = plan.paths, (plan.paths.probe, plan.paths.told)
    routed = [file.path] if (file := workers_file(plan)) else []  # with the servers that it had then
    return {
        "kept": PASSED,
        "files": [
            *(path for unit in units for path in paths.files_of(unit)),
            f"{UNITS}/{plan.target}", paths.verify, paths.passed, paths.pin, paths.secret, paths.tls, *proof, *routed,
            *more,
        ],
        "links": [paths.current, paths.previous],
        "quiet": [paths.verify, paths.passed, paths.pin, paths.previous, *proof, *routed, *more],
        "workers": [*workers],
        "router": router,
        "target": plan.target,
        "verify": [f"{paths.bin}/pd-verify", "--config", paths.verify] if router else [],
    }  # fmt: skip


def words(paths: Paths, command: str, *more: str) -> list[str]:
    """pd-passed's command line."""
    return [f"{paths.bin}/pd-passed", command, "--config", paths.passed, *more]


def restoring(paths: Paths) -> str:
    """The command that goes back to what passed last; nothing else may do so meanwhile, and no other run begins."""
    return f"{disarming()}; {shlex.join(words(paths, 'restore', '--lock', RESTORING))}"


def arming(paths: Paths, serving: Sequence[str]) -> str:
    """Before what servers are started from changes, and before they are stopped: the command that has what served come
    back, should this run break off.

    A unit of the host waits until the run's lock is free. Without a lock there is nothing to wait for. serving: units
    that run now. Each is told with systemd's name of its start: those that still run do not have to stop.
    """
    waiting = words(paths, "resume", "--kept", PASSED, "--lock", LOCK, "--stop", PROBE_UNIT)
    run = ["systemd-run", "--quiet", "--collect", f"--unit={RESUME}", "--property=Type=exec", *waiting]
    starts = (
        f'$(for unit in {shlex.join(serving)}; do echo "$unit=$(systemctl show -p InvocationID --value "$unit")"; done)'
    )
    held = f"[ -e {LOCK} ] && ! flock -s -n {LOCK} true"
    return f"systemctl is-active -q {RESUME} || if {held}; then {shlex.join(run)} {starts}; fi"


def disarming() -> str:
    return f"systemctl stop {RESUME} 2>/dev/null"
