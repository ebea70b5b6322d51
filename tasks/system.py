"""Packages, the service user, folders, kernel settings, GPU persistence."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.operations import files, system
from tasks.plan.phases.system import directories, journal, kernel_settings, needrestart, packages
from tasks.plan.plan import Plan
from tasks.plan.service.paths import JOURNALD, SYSCTL
from tasks.support import render


@deploy("System")
def provision(plan: Plan) -> None:
    of_needrestart, no_restarts = needrestart()
    of_journal = journal(plan)
    folders = (*directories(plan), *of_needrestart, *(of_journal[:1] if of_journal else ()))
    user = plan.settings.service_user
    found = host.get_fact(
        Paths,
        paths=[SYSCTL, JOURNALD, no_restarts.path, *(folder.path for folder in folders if folder.by == "root")],
        user=user,
        theirs=[folder.path for folder in folders if folder.by != "root"],
    )

    system.packages(
        name="Debian packages", missing=[name for name in packages(plan) if name not in plan.system.packages]
    )
    system.service_user(
        name=f"Service user {user}", user=user, home=plan.paths.state, exists=plan.system.user is not None
    )
    for folder in folders:
        files.directory(name=f"Folder {folder.path}", wanted=folder, found=found[folder.path])
    files.file(name=f"File {no_restarts.path}", wanted=no_restarts, found=found[no_restarts.path])
    files.file(name=f"Kernel settings {SYSCTL}", wanted=render.sysctl(plan), found=found[SYSCTL])
    again = "systemctl restart systemd-journald.service"  # it keeps what units write to it meanwhile
    if of_journal:
        files.file(name=f"Journal {JOURNALD}", wanted=of_journal[1], found=found[JOURNALD], then=again)
    else:
        files.absent(name=f"No {JOURNALD}", path=JOURNALD, found=found[JOURNALD], then=again)
    for setting in kernel_settings(plan):
        system.kernel_setting(name=f"Kernel setting {setting.key}", setting=setting)
    if plan.settings.gpu_persistence:
        system.gpu_persistence(
            name="GPU persistence", off=[gpu.index for gpu in plan.hardware.gpus if not gpu.persistence]
        )
