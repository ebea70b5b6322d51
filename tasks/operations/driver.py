"""The NVIDIA driver: its packages, their hold, and the boot that loads it."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Generator, Sequence

from paramiko import SSHException
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.facts.hardware import Hardware
from tasks.operations.apt import apt_get
from tasks.operations.progress import ask, run_and_log, say, start_again
from tasks.plan.driver import steps as driver
from tasks.plan.driver.steps import Steps
from tasks.plan.service.paths import BOOT_ID, TARGET

Commands = Generator[StringCommand | FunctionCommand, None, None]
POLL = 2.0  # seconds between two attempts to reach a host that boots


@operation()
def installed(steps: Steps) -> Commands:
    """The packages in the pinned version, with what they depend on; a version may also go back."""
    if not steps.install:
        host.noop("the driver's packages are installed")
        return
    say(host, f"installs {', '.join(steps.arriving)}")
    if steps.leaving:
        say(host, f"removes {', '.join(steps.leaving)}")
    yield FunctionCommand(apt_get, [["update"]], {})
    install = ["install", "--no-install-recommends", "--allow-downgrades", *steps.install]
    held = shlex.join(steps.unhold)  # apt would keep these, whatever is asked of it
    yield FunctionCommand(
        apt_get, [install], {"before": f"apt-mark unhold {held}", "failed": f"apt-mark hold {held}"} if held else {}
    )


@operation()
def held(names: Sequence[str]) -> Commands:
    """Packages that apt upgrades for nobody."""
    if not names:
        host.noop("the driver's packages are held")
        return
    yield StringCommand(f"apt-mark hold {shlex.join(names)}")


@operation()
def running(version: str, steps: Steps, allow_reboot: bool, limit: int) -> Commands:
    """The wanted driver answers. Where it does not, the host is rebooted or the user asked to; the run ends here."""
    if not steps.reboot:
        host.noop(f"driver {version} answers")
        return
    if allow_reboot:
        yield FunctionCommand(reboot, [version, steps.serving, limit], {})
        return
    serving = "; its servers still run on the old one, but none could start again" if steps.serving else ""
    line = f"reboot {host.name}, then run again: {steps.reboot}{serving}"
    yield StringCommand(f"echo {shlex.quote(line)} >&2; exit 1")


def reboot(state: State, host: Host, version: str, serving: Sequence[str], limit: int) -> bool:
    """Stop our servers, routers first, reboot, wait for another boot id. Always False: the GPUs are planned anew.

    limit: seconds.
    """
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
    found = driver.loaded(host.get_fact(Hardware))
    if found != version:
        say(host, f"rebooted, but {f'driver {found}' if found else 'no driver'} answers: run again to see why", "red")
        return False
    say(host, f"rebooted, driver {version} answers: run again, its GPUs can be planned now", "green")
    return False


def _booted_again(host: Host, before: str) -> bool:
    """Whether the host answers over a new connection, with another boot id."""
    host.disconnect()
    host.connect(show_errors=False)
    now = ""
    with contextlib.suppress(OSError, EOFError, SSHException):  # it goes down under the question
        now = ask(host, f"cat {BOOT_ID}").strip() if host.connected else ""
    return now not in ("", before)
