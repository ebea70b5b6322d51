"""A host that boots anew, and the way back onto it."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence

from paramiko import SSHException
from pyinfra.api import Host, State

from tasks.operations.progress import ask, run_and_log, say, start_again
from tasks.plan.service.paths import BOOT_ID, TARGET

POLL = 2.0  # seconds between two attempts to reach a host that boots


def rebooted(state: State, host: Host, serving: Sequence[str], limit: int) -> bool:
    """Stop our servers, routers first, reboot, wait for another boot id. limit: seconds."""
    if serving:
        say(host, f"stopped for the reboot: {', '.join(serving)}")
        routers = [unit for unit in serving if "router" in unit]
        workers = [unit for unit in serving if unit not in routers]
        for units in filter(None, (routers, workers)):
            if not run_and_log(state, host, f"systemctl stop {shlex.join(units)}"):
                say(host, f"not rebooted: {', '.join(units)} could not be stopped", "red")
                start_again(state, host, serving)
                return False
        run_and_log(state, host, f"systemctl stop {TARGET} 2>/dev/null; true")
    before = ask(host, f"cat {BOOT_ID}").strip()
    say(host, "reboots")
    # in a unit of its own, a second later: the connection ends in order
    if not run_and_log(
        state, host, "systemd-run --quiet --on-active=1 --timer-property=AccuracySec=100ms systemctl reboot"
    ):
        if serving:
            start_again(state, host, serving)
        return False
    started = time.monotonic()
    while not _booted_again(host, before):
        if time.monotonic() - started > limit:
            say(host, f"no answer {limit} s after the reboot (reboot_limit): look at its console", "red")
            return False
        time.sleep(POLL)
    return True


def _booted_again(host: Host, before: str) -> bool:
    """Whether the host answers over a new connection, with another boot id."""
    host.disconnect()
    host.connect(show_errors=False)
    now = ""
    with contextlib.suppress(OSError, EOFError, SSHException):  # it goes down under the question
        now = ask(host, f"cat {BOOT_ID}").strip() if host.connected else ""
    return now not in ("", before)
