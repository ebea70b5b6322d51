"""The NVIDIA driver: its packages, their hold, and the boot that loads it."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, StringCommand, operation

from tasks.facts.hardware import Hardware
from tasks.operations.apt import apt_get
from tasks.operations.progress import say
from tasks.operations.reboot import rebooted
from tasks.plan.driver import steps as driver
from tasks.plan.driver.steps import Steps

Commands = Generator[StringCommand | FunctionCommand, None, None]


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
    """As rebooted. Always False: the GPUs are planned anew."""
    if not rebooted(state, host, serving, limit):
        return False
    found = driver.loaded(host.get_fact(Hardware))
    if found != version:
        say(host, f"rebooted, but {f'driver {found}' if found else 'no driver'} answers: run again to see why", "red")
        return False
    say(host, f"rebooted, driver {version} answers: run again, its GPUs can be planned now", "green")
    return False
