"""Packages, the service user, kernel settings, GPU persistence."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, operation

from tasks.operations.apt import apt_get
from tasks.plan.phases.system import KernelSetting

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def packages(missing: Sequence[str]) -> Commands:
    """Debian packages that are not installed yet. Lists are refreshed only when something is missing."""
    if not missing:
        host.noop("every package is installed")
        return
    yield FunctionCommand(apt_get, [["update"]], {})
    yield FunctionCommand(apt_get, [["install", "--no-install-recommends", *missing]], {})


@operation()
def service_user(user: str, home: str, exists: bool) -> Commands:
    """A system user with a group of its own name, without a login; a group of that name that is there becomes its."""
    if exists:
        host.noop(f"user {user} is there")
        return
    name = shlex.quote(user)
    yield StringCommand(
        f"if getent group {name} >/dev/null; then group='--gid {name}'; else group=--user-group; fi; "
        f"useradd --system $group --home-dir {shlex.quote(home)} --no-create-home --shell /usr/sbin/nologin {name}"
    )


@operation()
def kernel_setting(setting: KernelSetting) -> Commands:
    """A sysctl of the running kernel."""
    if setting.found == setting.wanted:
        host.noop(f"{setting.key} is {setting.wanted}")
        return
    path = shlex.quote("/proc/sys/" + setting.key.replace(".", "/"))
    yield StringCommand(f"echo {shlex.quote(setting.wanted)} >{path}")


@operation()
def gpu_persistence(off: Sequence[int]) -> Commands:
    """The driver stays loaded between processes: its daemon where there is one, else the mode of each GPU."""
    if not off:
        host.noop("persistence is on for every GPU")
        return
    yield StringCommand(
        "if systemctl cat nvidia-persistenced.service >/dev/null 2>&1; "
        "then systemctl enable --now nvidia-persistenced.service; fi; nvidia-smi -pm 1"
    )
