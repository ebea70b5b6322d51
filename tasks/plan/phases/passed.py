"""What is kept of a service that answered right, so that a change that fails can be taken back."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tasks.plan.files import WantedFile, to_json
from tasks.plan.phases.verify import verify_config
from tasks.plan.plan import Plan
from tasks.plan.service.paths import LOCK, PASSED, PROBE_UNIT, RESUME, UNITS


def passed_config(plan: Plan, more: Sequence[str]) -> WantedFile:
    """What pd-passed keeps: all that systemd starts the service from. more: paths of tools, and of units of neither
    servers nor router."""
    paths, verify = plan.paths, verify_config(plan)
    config = {
        "kept": PASSED,
        "files": [
            *(path for instance in plan.instances for path in paths.files_of(instance.unit)),
            f"{UNITS}/{plan.target}", paths.verify, paths.passed, paths.pin, paths.secret, paths.tls, *more,
        ],
        "links": [paths.current, paths.previous],
        "quiet": [paths.verify, paths.passed, paths.pin, paths.previous, *more],
        "workers": [worker.unit for worker in plan.workers],
        "router": plan.router.unit if plan.router else "",
        "target": plan.target,
        "verify": [f"{paths.bin}/pd-verify", "--config", verify.path] if verify else [],
    }  # fmt: skip
    return WantedFile(paths.passed, to_json(config), gist="names what is kept")


def words(plan: Plan, command: str, *more: str) -> list[str]:
    """pd-passed's command line."""
    return [f"{plan.paths.bin}/pd-passed", command, "--config", plan.paths.passed, *more]


def restoring(plan: Plan) -> str:
    """The command that goes back to what passed last; nothing else may do so meanwhile."""
    return f"{disarming()}; {shlex.join(words(plan, 'restore'))}"


def arming(plan: Plan, serving: Sequence[str]) -> str:
    """Before servers are stopped: the command that has what served come back, should this run break off.

    A unit of the host waits until the run's lock is free. Without a lock there is nothing to wait for. serving: units
    that run now, for a host where nothing has been kept yet.
    """
    waiting = words(plan, "resume", "--kept", PASSED, "--lock", LOCK, "--stop", PROBE_UNIT, *serving)
    run = ["systemd-run", "--quiet", "--collect", f"--unit={RESUME}", "--property=Type=exec", *waiting]
    held = f"[ -e {LOCK} ] && ! flock -s -n {LOCK} true"
    return f"systemctl is-active -q {RESUME} || if {held}; then {shlex.join(run)}; fi"


def disarming() -> str:
    return f"systemctl stop {RESUME} 2>/dev/null"
