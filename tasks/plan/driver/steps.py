"""The NVIDIA driver, pinned: what is there, what apt offers, and what must be done. Only with manage_driver."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.files import WantedFile
from tasks.plan.host.answers import GPU_COLUMNS, Answer, module_version
from tasks.plan.release import versions
from tasks.plan.release.manifest import Manifest, driver_cuda
from tasks.plan.service.repository import DRIVER
from tasks.plan.service.units import is_ours
from tasks.plan.settings.settings import Settings

PREFERENCES = "/etc/apt/preferences.d/sglang-pd-driver.pref"
UPGRADES = "/etc/apt/apt.conf.d/52sglang-pd-driver"
PLACED = (DRIVER.path, *DRIVER.keyrings, PREFERENCES, UPGRADES)

# Names of the driver's packages: regular expressions from the start, as unattended-upgrades reads them.
NAMES = (
    "nvidia-(?!container|docker|cuda-toolkit)", "libnvidia-(?!container)", "libcuda1", "libcudadebugger1",
    "libnvcuvid1", "libnvoptix1", "cuda-drivers", "firmware-nvidia-", "linux-modules-nvidia", "linux-objects-nvidia",
    "xserver-xorg-video-nvidia",
)  # fmt: skip
# nvidia-kernel-open-dkms, nvidia-dkms-580-open, linux-modules-nvidia-580-server-open-generic; nvidia-open has none
OPEN_MODULES = re.compile(r"(dkms|kernel|modules).*-open\b")


class AwaitsReboot(Exception):
    """This host's run ends after the operations it has so far: its GPUs cannot be planned before the reboot."""


@dataclass(frozen=True)
class Package:
    name: str
    version: str  # of the package: 580.95.05-1
    held: bool


@dataclass(frozen=True)
class FoundDriver:
    """The driver as it was found."""

    loaded: str | None  # version of the kernel module, None where none is loaded
    answers: bool  # whether nvidia-smi lists GPUs: module and library fit each other
    packages: tuple[Package, ...]  # installed ones of any driver
    cards: int  # NVIDIA cards on the PCI bus
    installed_at: int  # seconds since 1970, of the packages asked for; 0 where they are not there
    booted_at: int
    by_runfile: bool  # NVIDIA's own installer put a driver here, which no package owns
    secure_boot: bool
    key_enrolled: bool  # the key that DKMS signs modules with is one that the firmware trusts
    kernels: Mapping[str, bool]  # the running one, and the one that boots next: whether its headers are there
    serving: tuple[str, ...]  # our units that run, routers first

    def at(self, version: str) -> dict[str, Package]:
        """The packages of one upstream version, by name."""
        return {package.name: package for package in self.packages if upstream(package.version) == version}

    def in_the_way(self, version: str) -> tuple[str, ...]:
        """Held packages of other versions: apt keeps them, and with them whatever they depend on."""
        return tuple(
            package.name
            for package in self.packages
            if package.held and of_driver(package.name) and upstream(package.version) != version
        )

    def has(self, settings: Settings) -> bool:
        """Whether every package asked for is installed in the version asked for."""
        return set(settings.driver_packages) <= self.at(settings.driver_version or "").keys()

    def runs(self, settings: Settings) -> bool:
        """Whether the wanted driver answers, and will go on to with the packages in place."""
        return self.loaded == settings.driver_version and (self.has(settings) or self.answers)


@dataclass(frozen=True)
class Offer:
    """What apt would do, asked in a folder of its own: nothing of the host's apt has changed."""

    update: str  # why the lists could not be read, "" where all could
    versions: Mapping[str, tuple[str, ...]]  # by package asked for, newest first
    headers: frozenset[str]  # kernels whose headers are offered
    arriving: Mapping[str, str]  # package -> version that would be installed
    leaving: tuple[str, ...]  # packages that would be removed
    failure: str  # apt's own words where it cannot install, "" where it can


@dataclass(frozen=True)
class Steps:
    """What keeps the host from the wanted driver."""

    unhold: tuple[str, ...]  # packages of another version that are held
    install: tuple[str, ...]  # NAME=VERSION, and headers
    arriving: tuple[str, ...]  # NAME VERSION of all that comes with them
    leaving: tuple[str, ...]
    hold: tuple[str, ...]  # packages to be held
    reboot: str  # why the host must be rebooted, "" where the driver answers
    serving: tuple[str, ...]  # units to be stopped before it is


def of_driver(package: str) -> bool:
    """Whether a package of this name belongs to a driver."""
    return any(re.match(name, package) for name in NAMES)


def upstream(version: str) -> str:
    """580.95.05 of the package version 580.95.05-0ubuntu1."""
    without_epoch = version.rpartition(":")[2]
    return without_epoch.rpartition("-")[0] or without_epoch


def require_serves(version: str, offered: Sequence[Manifest]) -> Manifest:
    """The newest of these releases that a driver serves. Raises PlanError where it serves none."""
    branch = versions.numbers(version)[0]
    served = [manifest for manifest in offered if (manifest.driver_minimum or 0) <= branch]
    if served:
        return max(served, key=lambda manifest: versions.order(manifest.sglang))
    easiest = min(offered, key=lambda manifest: manifest.driver_minimum or 0)
    raise PlanError(
        f"setting driver_version = {version!r} serves {driver_cuda(version)}, release {easiest.name} needs CUDA "
        f"{easiest.cuda}: set {easiest.driver_minimum} or newer"
    )


def preferences(version: str) -> WantedFile:
    """The pin. Whatever depends on each other comes in this version, also where a newer one is offered.

    apt takes a version for "?*" but not for "*"; no other package has such a version. Above 1000 it also goes back.
    """
    return _text(
        PREFERENCES,
        "Explanation: written by sglang-pd-playbook, driver_version",
        "Package: ?*",
        f"Pin: version {version}-*",
        "Pin-Priority: 1001",
    )


def upgrades() -> WantedFile:
    """What unattended-upgrades leaves alone, in every version."""
    names = (f'  "{name}";' for name in NAMES)
    return _text(UPGRADES, "// written by sglang-pd-playbook", "Unattended-Upgrade::Package-Blacklist {", *names, "};")


def read(answers: Mapping[str, Answer]) -> FoundDriver:
    """From the sections of the facts Driver and Hardware. Raises PlanError where one cannot be read."""

    def lines(name: str) -> list[str]:
        if name not in answers:
            raise PlanError(f"the host's answer is cut short: it holds no {name!r}; run again")
        return [line for line in answers[name].text.splitlines() if line.strip()]

    def number(name: str) -> int:
        text = " ".join(lines(name))
        if not text.isdecimal():
            raise PlanError(f"the host's answer to {name!r} cannot be read: {text[:160]!r}")
        return int(text)

    packages = []
    for line in lines("drivers"):
        state, name, version = [*line.split("\t"), "", "", ""][:3]
        if state[1:2] == "i":
            packages.append(Package(name.removesuffix(":amd64"), version, held=state[0] == "h"))
    units = [unit for unit in lines("serving") if is_ours(unit)]
    return FoundDriver(
        loaded=loaded(answers),
        answers=bool(lines("gpus")) and answers["gpus"].status == 0,
        packages=tuple(packages),
        cards=sum(" 0x03" in line for line in lines("controllers")),  # class of display controllers
        installed_at=number("installed"),
        booted_at=number("booted"),
        by_runfile=bool(lines("runfile")),
        secure_boot=lines("secureboot") == ["1"],
        key_enrolled="is already enrolled" in " ".join(lines("enrolled")),
        kernels={name: built == "headers" for name, _, built in (line.partition(" ") for line in lines("kernels"))},
        serving=tuple(sorted(units, key=lambda unit: ("router" not in unit, unit))),
    )


def loaded(answers: Mapping[str, Answer]) -> str | None:
    """The module's version, from the fact Hardware; nvidia-smi's word where it answers, since asking it loads one."""
    gpus, module = answers.get("gpus"), answers.get("driver")
    columns = GPU_COLUMNS.split(",")
    cells = [cell.strip() for cell in gpus.text.strip().partition("\n")[0].split(",")] if gpus else []
    if gpus and gpus.status == 0 and len(cells) == len(columns):
        return cells[columns.index("driver_version")]
    return module_version(module.text) if module else None


def read_offer(answers: Mapping[str, Answer], settings: Settings) -> Offer:
    """From the sections of the fact Offer. Raises PlanError where the answer is cut short."""

    def answer(name: str) -> Answer:
        if name not in answers:
            raise PlanError(f"apt's answer is cut short: it holds no {name!r}; run again")
        return answers[name]

    arriving = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", answer("install").text, re.MULTILINE)
    return Offer(
        update=_complaint(answer("update")),
        versions={name: _offered(answer(f"offers {name}")) for name in settings.driver_packages},
        headers=frozenset(answer("headers").text.split()),
        arriving=dict(arriving),
        leaving=tuple(re.findall(r"^Remv (\S+)", answer("install").text, re.MULTILINE)),
        failure=_complaint(answer("install")),
    )


def _offered(answer: Answer) -> tuple[str, ...]:
    """Versions of `apt-cache madison`, those of source packages left out."""
    rows = ([cell.strip() for cell in line.split("|")] for line in answer.text.splitlines())
    return tuple(dict.fromkeys(row[1] for row in rows if len(row) == 3 and row[2].endswith("Packages")))


def _complaint(answer: Answer) -> str:
    """apt's own words, in one line."""
    if answer.status == 0:
        return ""
    lines = [line.strip() for line in answer.text.splitlines()]
    told = [line for line in lines if line.startswith(("E:", "Err:")) or " : " in line] or lines[-1:]
    return "; ".join(line.removeprefix("E: ") for line in told)[:400] or f"it fails with {answer.status}"


def steps(settings: Settings, found: FoundDriver, offer: Offer | None) -> Steps:
    """What is to be done. Raises PlanError, one line a fault, where the wanted driver cannot come or cannot run.

    offer: None where the packages are there already.
    """
    version = settings.driver_version
    assert version is not None
    lines = _unfit(found)
    install, names = [], {*found.at(version)}
    if offer is not None:
        lines += _not_offered(settings, version, offer)
        install = [f"{name}={found_version}" for name, found_version in _picked(version, offer)]
        names |= {name for name, arriving in offer.arriving.items() if upstream(arriving) == version}
    every = {package.name for package in found.packages} | {*(offer.arriving if offer else ())}
    if offer is not None and not lines and not any(OPEN_MODULES.search(name) for name in every):
        lines.append(
            f"setting driver_packages = {settings.driver_packages}: no open kernel modules come with them; "
            "name nvidia-open, or the package that holds them"
        )
    runs = found.runs(settings)
    headers: list[str] = []
    if any("dkms" in name for name in every) and (offer is not None or not runs):
        faults, headers = _buildable(found, offer)
        lines += faults
    reboot = ""
    if not runs:
        now = f"driver {found.loaded} is loaded" if found.loaded else "no driver is loaded"
        reboot = f"{now}, {version} is wanted" if found.loaded != version else f"{now}, but its library is another"
        if offer is None and found.booted_at > found.installed_at > 0:
            lines.append(
                f"{now}, although {version} is installed and the host was booted since: look at `dkms status` and "
                "`dmesg | grep -iE 'nvidia|nvrm'`"
            )
    if lines:
        raise PlanError(*lines)
    unheld = found.in_the_way(version) if offer else ()
    to_hold = {name for name in names if name not in found.at(version) or not found.at(version)[name].held}
    if offer:  # what stays in its version is held again
        to_hold |= {name for name in unheld if name not in offer.arriving and name not in offer.leaving}
    return Steps(
        unhold=unheld,
        install=(*install, *headers),
        arriving=(*(f"{name} {of}" for name, of in sorted(offer.arriving.items())), *headers) if offer else (),
        leaving=offer.leaving if offer else (),
        hold=tuple(sorted(to_hold)),
        reboot=reboot,
        serving=found.serving,
    )


def _unfit(found: FoundDriver) -> list[str]:
    if not found.cards:
        return ["setting manage_driver = True: this host has no NVIDIA card on its PCI bus"]
    if found.by_runfile:
        return [
            "the driver here was installed by NVIDIA's .run file, which packages would break: remove it with "
            "nvidia-uninstall, then run again"
        ]
    return []


def _not_offered(settings: Settings, version: str, offer: Offer) -> list[str]:
    lines = []
    picked = {name for name, _ in _picked(version, offer)}
    for name in settings.driver_packages:
        if name in picked:
            continue
        offered = ", ".join(dict.fromkeys(upstream(one) for one in offer.versions[name])) or "none"
        broken = f"; apt-get update fails: {offer.update}" if offer.update else ""
        lines.append(f"setting driver_version = {version!r}: apt offers {offered} of {name}{broken}")
    if not lines and offer.failure:
        lines.append(f"apt cannot install driver {version}: {offer.failure}")
    return lines


def _picked(version: str, offer: Offer) -> list[tuple[str, str]]:
    """Package and newest revision of the version, for those that have one."""
    return [
        (name, next(one for one in versions if upstream(one) == version))
        for name, versions in offer.versions.items()
        if any(upstream(one) == version for one in versions)
    ]


def _buildable(found: FoundDriver, offer: Offer | None) -> tuple[list[str], list[str]]:
    """Faults that keep a module from being built or loaded here, and packages of headers that are still needed."""
    faults, headers = [], []
    for kernel, there in found.kernels.items():
        if there:
            continue
        if offer is not None and kernel in offer.headers:
            headers.append(f"linux-headers-{kernel}")
        else:
            and_apt = f", and apt offers no linux-headers-{kernel}" if offer is not None else ""
            faults.append(
                f"no headers for kernel {kernel}{and_apt}: the module cannot be built for it; install them, or boot a "
                "kernel that has some"
            )
    if found.secure_boot and not found.key_enrolled:
        faults.append(
            "secure boot is on and would refuse a module built here: enrol DKMS's key with `mokutil --import`, "
            "or switch secure boot off"
        )
    return faults, headers


def _text(path: str, *lines: str) -> WantedFile:
    return WantedFile(path, ("\n".join(lines) + "\n").encode())
