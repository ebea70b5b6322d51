"""The NVIDIA driver: that library and module fit each other, the release and the cards."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, error, healthy
from tasks.plan.release.manifest import driver_cuda
from tasks.plan.release.versions import at_least

OPEN_MODULES_FROM = "10.0"  # compute capability: Blackwell and later run on the open kernel modules only (NVIDIA)


@check(
    "gpu/driver/answers",
    "hardware",
    judges="nvidia-smi is there and lists GPUs within 30 s and 10 s more for each card on the bus; where it does not, "
    "there is nothing to plan with",
    source="field reports: a hung driver keeps nvidia-smi waiting for ever; cvmimage#363: 3 to 4 s a card without "
    "persistence",
    ask="nvidia-smi -L",
    never_silenced=True,
)
def answers(found: Found) -> Verdict:
    gpus = found.gpus
    if not found.settings.serves:
        return healthy("the router alone runs here: no GPU is looked at")
    return healthy(f"{len(gpus)} GPUs, driver {gpus[0].driver}", *found.rows("gpus"))


@check(
    "gpu/driver/match",
    "hardware",
    judges="the loaded kernel module and the driver's library are of one version",
    source="field reports: an upgrade under the loaded module ends in 'Driver/library version mismatch'",
    ask="cat /proc/driver/nvidia/version; nvidia-smi",
    of_gpu=True,
)
def match(found: Found) -> Verdict:
    loaded, library = found.hardware.driver, found.gpus[0].driver
    if loaded is None:
        found.text("driver")
        raise Unreadable("no version of a kernel module in it", *found.rows("driver")[:1])
    if loaded != library:
        return error(
            f"the loaded driver module is {loaded}, its library {library}",
            "reboot, then run again",
            *found.rows("driver")[:1],
        )
    return healthy(f"module and library are {loaded}", *found.rows("driver")[:1])


@check(
    "gpu/driver/minimum",
    "hardware",
    judges="the driver's branch serves the release's CUDA",
    source="the release's manifest, driver_minimum; CUDA release notes, toolkit driver versions",
    ask="nvidia-smi --query-gpu=driver_version --format=csv",
    of_gpu=True,
)
def minimum(found: Found) -> Verdict:
    needed = found.manifest.driver_minimum
    driver = found.hardware.driver or found.gpus[0].driver
    if needed is None:
        return healthy(f"driver {driver}, the release asks for none")
    if int(driver.split(".", 1)[0]) < needed:
        return error(
            f"driver {driver} serves {driver_cuda(driver)}, release {found.manifest.name} needs CUDA "
            f"{found.manifest.cuda}",
            f"install driver {needed} or newer, or choose an older release",
            f"driver_version {driver}",
        )
    return healthy(f"driver {driver}, {needed} is the oldest that serves", f"driver_version {driver}")


@check(
    "gpu/driver/licence",
    "hardware",
    judges="on Blackwell the kernel module is the open one (licence 'Dual MIT/GPL')",
    source="amazon-eks-ami#2769: Blackwell needs the open kernel modules",
    ask="modinfo -F license nvidia",
    of_gpu=True,
)
def licence(found: Found) -> Verdict:
    blackwell = [gpu for gpu in found.gpus if at_least(gpu.compute_capability, OPEN_MODULES_FROM)]
    module = (found.rows("driver") or [""])[0] if found.answers["driver"].text.strip() else ""
    answer = found.answers.get("licence")
    said = answer.text.strip() if answer and answer.status == 0 else ""
    if not blackwell:
        return healthy("either kernel module serves these cards", said or module)
    if "GPL" in said or (not said and "Open Kernel Module" in module):  # the module names itself where modinfo is not
        return healthy("open kernel modules", said or module)
    if said or "Kernel Module" in module:
        return error(
            f"the loaded kernel module is the proprietary one ({said or 'by its own name'}), "
            f"{blackwell[0].name} needs the open one",
            "install the driver's open kernel modules (nvidia-open), then reboot",
            said or module,
        )
    found.text("licence")
    raise Unreadable("no licence in it")
