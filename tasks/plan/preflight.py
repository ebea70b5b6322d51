"""May this host be provisioned? Pure checks over what was found; each gives lines to mend, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tasks.plan.errors import PlanError
from tasks.plan.host import Hardware, Listener, System
from tasks.plan.instances import Instance
from tasks.plan.release import Manifest, at_least, driver_cuda
from tasks.plan.settings import Settings

if TYPE_CHECKING:
    from tasks.plan.playbook import Plan

SUPPORTED = {"debian": "12", "ubuntu": "22.04"}  # oldest version of each; glibc and Python decide beyond that
RELEASE_GB = {"cuda": 24.0, "cpu": 5.0}  # measured 9.4 and 1.7 installed, the package cache beside it, and one more
KIB_PER_GB = 1_000_000_000 / 1024


def system(found: System, manifest: Manifest, settings: Settings) -> list[str]:
    """Privileges, operating system, glibc and Python."""
    lines = []
    if found.uid != 0:
        lines.append("needs root on the host: log in as root, or set _sudo = True in group_data (or pass --sudo)")
    if not found.systemd:
        lines.append("systemd does not run this host (PID 1 is something else): units could not start")
    if found.machine != "x86_64":
        lines.append(f"this is {found.machine}: the locks hold wheels for x86_64")
    oldest = SUPPORTED.get(found.os_id)
    if oldest is None or not at_least(found.os_version, oldest):
        lines.append(f"{found.os_name} is not supported: Debian from 12 and Ubuntu from 22.04 are")
    if not at_least(found.glibc, manifest.glibc):
        lines.append(f"glibc {found.glibc} is too old: the wheels of {manifest.name} need {manifest.glibc}")
    return lines


def python(found: System, manifest: Manifest, settings: Settings) -> str:
    """The Python version to build with. Raises PlanError where host and release have none in common."""
    asked = settings.python if settings.python != "auto" else found.python
    if asked is None:
        raise PlanError(
            f"{found.os_name} carries no Python that a release can use ({' or '.join(manifest.python)}): "
            "install one of these, then run again"
        )
    if asked not in manifest.python:
        raise PlanError(f"release {manifest.name} has locks for Python {', '.join(manifest.python)}, asked is {asked}")
    if asked not in found.pythons and asked != found.python:
        raise PlanError(
            f"setting python = {asked!r}: {found.os_name} carries {found.python or 'none of the usable ones'}, "
            f'and python{asked} is not there; leave it at "auto" or install it'
        )
    return asked


def hardware(found: Hardware, manifest: Manifest) -> list[str]:
    """Driver and GPUs against the release. A CPU release asks nothing of them."""
    if manifest.driver_minimum is None:
        return []
    driver = found.driver or found.gpus[0].driver
    lines = []
    if int(driver.split(".", 1)[0]) < manifest.driver_minimum:
        lines.append(
            f"driver {driver} serves {driver_cuda(driver)}, release {manifest.name} needs CUDA {manifest.cuda}: "
            f"install driver {manifest.driver_minimum} or newer, or choose an older release"
        )
    if found.driver and found.driver != found.gpus[0].driver:
        lines.append(
            f"the loaded driver module is {found.driver}, its library {found.gpus[0].driver}: reboot, then run again"
        )
    for gpu in found.gpus:
        if manifest.compute_capabilities and gpu.compute_capability not in manifest.compute_capabilities:
            lines.append(
                f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.compute_capability}, release "
                f"{manifest.name} carries kernels for {', '.join(manifest.compute_capabilities)}"
            )
            break
    sliced = [gpu.index for gpu in found.gpus if gpu.mig]
    if sliced:
        lines.append(f"MIG is on for GPU {', '.join(map(str, sliced))}: servers need whole GPUs; `nvidia-smi -mig 0`")
    return lines


def model(plan: Plan, there: bool) -> list[str]:
    """A model that the host brings must be there; one that is fetched must be pinned."""
    if plan.brings_model and not there:
        return [
            f"model {plan.paths.model} holds no config.json: put the model there, "
            "or set model_dir = None to have it fetched"
        ]
    if plan.profile.source.hub and not plan.brings_model and plan.model_revision is None:
        return [
            f"model {plan.profile.name} pins no revision of {plan.profile.source.hub}: set model_revision to the "
            "commit that you want, or model_dir to a folder that holds the model"
        ]
    return []


def ports(instances: Iterable[Instance], listeners: Iterable[Listener]) -> list[str]:
    """Ports that something else than our own units holds."""
    holder = {listener.port: listener for listener in listeners if not (listener.unit or "").startswith("sglang-pd-")}
    return [
        f"port {port} of {instance.name} ({setting}) is taken by "
        + (f"pid {holder[port].pid} ({holder[port].command})" if holder[port].pid else holder[port].command)
        + f": end it, or set {setting} to a free port"
        for instance in instances
        for port, setting in instance.ports
        if port in holder
    ]


def disk(needs: dict[str, float], found: System, settings: Settings) -> list[str]:
    """Free space, GB by path. Paths on one file system share it, which the smaller reading of two shows."""
    lines = []
    for path, gigabytes in needs.items():
        wanted = gigabytes if settings.minimum_free_disk_gb is None else settings.minimum_free_disk_gb
        free = found.free_kib.get(path, 0) / KIB_PER_GB
        if free < wanted:
            lines.append(f"{path} has {free:.0f} GB free, {wanted:.0f} GB are needed: make room, or move the setting")
    return lines
