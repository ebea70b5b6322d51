"""manage_driver: what is done about a driver, and what is refused before anything is."""

from __future__ import annotations

import re

import pytest

from tasks.plan.driver import steps as driver
from tasks.plan.driver.steps import Offer, Steps
from tasks.plan.errors import PlanError
from tasks.plan.host.answers import GPU_COLUMNS, Answer
from tasks.plan.service.repository import DRIVER
from tasks.plan.settings.settings import Settings
from tests.plan.builders import manifest, settings

WANTED = "580.95.05"
MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder)\nGCC version:  gcc 13.3.0"
)
GPU = "0, GPU-1, 00000000:06:00.0, NVIDIA RTX PRO 6000, 12.0, {}, 97887, Enabled, [N/A]"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
INSTALLED, BEFORE = 1_764_000_000, 1_763_000_000
SIMULATED = """\
NOTE: This is only a simulation!
Inst libcuda1 [570.172.08-1] (580.95.05-1 vendor:repository [amd64])
Inst nvidia-kernel-open-dkms (580.95.05-1 vendor:repository [amd64])
Inst dkms (3.0.10-8+deb12u1 Debian:12.12/oldstable [all])
Remv nvidia-kernel-dkms [570.172.08-1]
Inst nvidia-open (580.95.05-1 vendor:repository [amd64])
Conf nvidia-open (580.95.05-1 vendor:repository [amd64])
"""


def wanted(**changes: object) -> Settings:
    return settings(**{"manage_driver": True, "driver_version": WANTED, **changes})


def packages(version: str, state: str = "hi ") -> str:
    names = ("libcuda1:amd64", "nvidia-kernel-open-dkms", "nvidia-open")
    return "\n".join(f"{state}\t{name}\t{version}-1" for name in names)


def found(version: str | None = None, **changes: str | Answer | None) -> driver.FoundDriver:
    """A host whose driver of this version is loaded, held and in order; None: no driver. Answers changed by name."""
    texts: dict[str, str | Answer] = {
        "controllers": "0000:06:00.0 0x030200\n0000:06:00.1 0x040300\n0000:07:00.0 0x030200",
        "driver": MODULE.format(version) if version else "",
        "gpus": GPU.format(version) if version else Answer(127, ""),
        "drivers": packages(version) if version else "",
        "installed": str(INSTALLED) if version else "0",
        "booted": str(BEFORE),
        "runfile": "",
        "secureboot": "0",
        "enrolled": "",
        "kernels": "6.1.0-40-amd64 headers",
        "serving": "",
    }
    answers = {name: one if isinstance(one, Answer) else Answer(0, one) for name, one in texts.items()}
    for name, change in changes.items():
        if change is None:
            del answers[name]
        else:
            answers[name] = change if isinstance(change, Answer) else Answer(0, change)
    return driver.read(answers)


def offer(of: Settings | None = None, **changes: str | Answer) -> Offer:
    """An apt that offers three versions of nvidia-open and can install the wanted one. Answers changed by name."""
    madison = "\n".join(
        f" nvidia-open | {version} | https://mirror.example/driver  Packages"
        for version in ("590.44.01-1", "580.95.05-1", "580.82.07-1")
    )
    answers = {"update": "", "headers": "", "install": SIMULATED}
    given = {name: one if isinstance(one, Answer) else Answer(0, one) for name, one in {**answers, **changes}.items()}
    of = of or wanted()
    offers = {f"offers {name}": Answer(0, madison.replace("nvidia-open", name)) for name in of.driver_packages}
    return driver.read_offer({**offers, **given}, of)


def refused(host: driver.FoundDriver, offered: Offer | None = None, **changes: object) -> str:
    """The one line of a refusal."""
    with pytest.raises(PlanError) as fault:
        driver.steps(wanted(**changes), host, offered)
    (line,) = fault.value.lines
    assert "\n" not in line
    return line


# ---- what is done


def test_a_driver_in_order_needs_nothing() -> None:
    host = found(WANTED)
    assert host.has(wanted())
    assert driver.steps(wanted(), host, None) == Steps((), (), (), (), (), "", ())


def test_a_bare_host_gets_the_packages_in_the_offered_revision_held_and_needs_a_reboot() -> None:
    host = found()
    assert not host.has(wanted())
    steps = driver.steps(wanted(), host, offer())
    assert steps.install == ("nvidia-open=580.95.05-1",)
    assert steps.hold == ("libcuda1", "nvidia-kernel-open-dkms", "nvidia-open"), "dkms is not the driver's"
    assert "libcuda1 580.95.05-1" in steps.arriving
    assert steps.reboot == "no driver is loaded, 580.95.05 is wanted"


def test_an_old_driver_is_replaced_while_its_servers_run() -> None:
    steps = driver.steps(
        wanted(), found("570.172.08", serving="sglang-pd-prefill.service\nsglang-pd-router.service"), offer()
    )
    assert steps.install == ("nvidia-open=580.95.05-1",)
    assert steps.leaving == ("nvidia-kernel-dkms",)
    assert steps.unhold == ("libcuda1", "nvidia-kernel-open-dkms", "nvidia-open"), "apt would keep what is held"
    assert steps.reboot == "driver 570.172.08 is loaded, 580.95.05 is wanted"
    assert steps.serving == ("sglang-pd-router.service", "sglang-pd-prefill.service")


def test_an_installed_driver_that_is_not_loaded_only_needs_the_reboot() -> None:
    host = found(WANTED, driver=MODULE.format("570.172.08"), gpus=Answer(18, MISMATCH))
    steps = driver.steps(wanted(), host, None)
    assert (steps.install, steps.hold) == ((), ())
    assert steps.reboot == "driver 570.172.08 is loaded, 580.95.05 is wanted"


def test_packages_that_are_not_held_are_held_without_a_reboot() -> None:
    host = found(WANTED, drivers=packages(WANTED, "ii ").replace("ii \tnvidia-open", "hi \tnvidia-open"))
    steps = driver.steps(wanted(), host, None)
    assert steps.hold == ("libcuda1", "nvidia-kernel-open-dkms")
    assert steps.reboot == ""


def test_a_library_upgraded_under_the_wanted_module_is_put_back() -> None:
    """The module answers to no program until then, so the rest of the run must wait for the next."""
    host = found(WANTED, drivers=packages("590.44.01"), gpus=Answer(18, MISMATCH))
    steps = driver.steps(wanted(), host, offer())
    assert steps.install == ("nvidia-open=580.95.05-1",)
    assert steps.reboot == "driver 580.95.05 is loaded, but its library is another"


def test_another_package_of_the_running_driver_is_installed_without_a_reboot() -> None:
    of = wanted(driver_packages=["nvidia-open", "nvidia-fabricmanager"])
    host = found(WANTED)
    assert not host.has(of)
    steps = driver.steps(of, host, offer(of, install="Inst nvidia-fabricmanager (580.95.05-1 x [amd64])"))
    assert steps.install == ("nvidia-open=580.95.05-1", "nvidia-fabricmanager=580.95.05-1")
    assert (steps.unhold, steps.hold) == ((), ("nvidia-fabricmanager",))
    assert steps.reboot == ""


def test_what_is_held_at_another_version_and_stays_is_held_again() -> None:
    host = found("570.172.08", drivers=packages("570.172.08") + "\nhi \tnvidia-settings\t560.1-1")
    steps = driver.steps(wanted(), host, offer())
    assert "nvidia-settings" in steps.unhold
    assert steps.hold == ("libcuda1", "nvidia-kernel-open-dkms", "nvidia-open", "nvidia-settings")


def test_removed_packages_do_not_count_as_installed() -> None:
    host = found(WANTED, drivers=packages(WANTED, "rc "))
    assert host.packages == ()
    assert not host.has(wanted())


def test_headers_that_apt_offers_come_along() -> None:
    steps = driver.steps(wanted(), found(kernels="6.1.0-40-amd64\n6.1.0-41-amd64"),
                         offer(headers="6.1.0-40-amd64\n6.1.0-41-amd64"))  # fmt: skip
    assert steps.install[1:] == ("linux-headers-6.1.0-40-amd64", "linux-headers-6.1.0-41-amd64")


def test_modules_that_come_built_need_no_headers() -> None:
    built = "Inst linux-modules-nvidia-580-server-open-6.8.0 (6.8.0-85 x [amd64])\nInst nvidia-open (580.95.05-1 x [a])"
    steps = driver.steps(wanted(), found(kernels="6.8.0", secureboot="1"), offer(install=built))
    assert steps.install == ("nvidia-open=580.95.05-1",)


# ---- what is refused


REFUSED = {
    "no card": (found(controllers=""), offer(), "this host has no NVIDIA card on its PCI bus"),
    "run file": (found("570.172.08", drivers="", runfile="/usr/bin/nvidia-uninstall"), offer(), "remove it with nvidia-uninstall, then run again"),
    "no headers": (found(kernels="6.1.0-40-amd64 headers\n6.1.0-41-amd64"), offer(), "no headers for kernel 6.1.0-41-amd64, and apt offers no linux-headers-6.1.0-41-amd64"),
    "no headers any more": (found(WANTED, driver="", gpus=Answer(9, ""), kernels="6.1.0-41-amd64"), None, "no headers for kernel 6.1.0-41-amd64: the module"),
    "secure boot": (found(secureboot="1"), offer(), "secure boot is on and would refuse a module built here: enrol DKMS's key"),
    "proprietary": (found(), offer(install="Inst nvidia-open (580.95.05-1 x [amd64])\nInst nvidia-dkms (580.95.05-1 x [amd64])"), "no open kernel modules come with them"),
    "unmet": (found(), offer(install=Answer(100, " nvidia-open : Depends: libcuda1 (= 580.95.05-1)\nE: Unable to correct problems, you have held broken packages.")), "apt cannot install driver 580.95.05: nvidia-open : Depends: libcuda1 (= 580.95.05-1); Unable to correct problems"),
    "booted in vain": (found(WANTED, driver="", gpus=Answer(9, "couldn't communicate"), booted=str(INSTALLED + 60)), None, "no driver is loaded, although 580.95.05 is installed and the host was booted since: look at `dkms status`"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_come_or_cannot_run_is_refused_in_one_line(fault: str) -> None:
    host, offered, line = REFUSED[fault]
    assert line in refused(host, offered)


def test_a_version_that_is_not_offered_names_those_that_are() -> None:
    line = refused(found(), offer(install=""), driver_version="580.105.08")
    assert line == "setting driver_version = '580.105.08': apt offers 590.44.01, 580.95.05, 580.82.07 of nvidia-open"


def test_lists_that_apt_cannot_fetch_are_the_reason_where_nothing_is_offered() -> None:
    signed = Answer(100, "Err:1 https://mirror.example/driver\nE: The repository is not signed.")
    line = refused(found(), offer(update=signed, install="", **{"offers nvidia-open": ""}))
    assert "apt offers none of nvidia-open; apt-get update fails: Err:1" in line
    assert "The repository is not signed." in line


def test_a_broken_source_of_somebody_else_is_no_reason() -> None:
    assert driver.steps(wanted(), found(), offer(update=Answer(100, "E: Failed to fetch"))).install


def test_a_key_that_the_firmware_trusts_goes_with_secure_boot() -> None:
    host = found(secureboot="1", enrolled="/var/lib/dkms/mok.pub is already enrolled")
    assert driver.steps(wanted(), host, offer()).install
    assert "secure boot" in refused(found(secureboot="1", enrolled="/var/lib/dkms/mok.pub is not enrolled"), offer())


def test_a_cut_answer_is_refused() -> None:
    with pytest.raises(PlanError, match="it holds no 'serving'; run again"):
        found(WANTED, serving=None)
    with pytest.raises(PlanError, match="'booted' cannot be read: 'nan'"):
        found(WANTED, booted="nan")
    with pytest.raises(PlanError, match="it holds no 'install'; run again"):
        driver.read_offer({"update": Answer(0, ""), "offers nvidia-open": Answer(0, ""), "headers": Answer(0, "")}, wanted())  # fmt: skip


# ---- versions and releases


@pytest.mark.parametrize("package", ["580.95.05-1", "580.95.05-0ubuntu1", "3:580.95.05-0ubuntu0.24.04.2", "580.95.05"])
def test_upstreams_version_of_a_package(package: str) -> None:
    assert driver.upstream(package) == WANTED


def test_a_driver_older_than_the_release_needs_is_refused() -> None:
    with pytest.raises(PlanError) as fault:
        driver.require_serves("570.172.08", [manifest()])
    assert fault.value.lines == (
        "setting driver_version = '570.172.08' serves CUDA 12.8, release sglang-9.9-cu130 needs CUDA 13.0: "
        "set 580 or newer",
    )


def test_of_several_releases_the_newest_that_the_driver_serves_counts() -> None:
    old = manifest(name="old", sglang="8.0", driver_minimum=570, cuda="12.8")
    new = manifest(name="new", sglang="9.0", driver_minimum=580)
    assert driver.require_serves("590.44.01", [old, new]).name == "new"
    assert driver.require_serves("570.172.08", [old, new]).name == "old"
    with pytest.raises(PlanError, match=r"release old needs CUDA 12\.8: set 570 or newer"):
        driver.require_serves("550.54.14", [old, new])


def test_a_release_for_the_cpu_takes_any_driver() -> None:
    assert driver.require_serves("535.54.03", [manifest(device="cpu", driver_minimum=None, cuda=None)])


def test_the_driver_that_answers_counts_before_the_one_that_the_module_names() -> None:
    assert len(GPU.split(",")) == len(GPU_COLUMNS.split(","))
    assert driver.loaded({"gpus": Answer(0, GPU.format(WANTED)), "driver": Answer(0, "")}) == WANTED
    assert driver.loaded({"gpus": Answer(18, MISMATCH), "driver": Answer(0, MODULE.format(WANTED))}) == WANTED
    assert driver.loaded({"gpus": Answer(9, "no"), "driver": Answer(0, "")}) is None
    assert driver.loaded({}) is None


# ---- files


def test_the_repository_is_read_as_apt_reads_it() -> None:
    flat = DRIVER.source("https://mirror.example/driver /", "/k.gpg").content.decode()
    assert "URIs: https://mirror.example/driver\nSuites: /\nSigned-By: /k.gpg\n" in flat
    usual = DRIVER.source("https://mirror.example/debian bookworm main contrib", "/k.gpg").content.decode()
    assert "Suites: bookworm\nComponents: main contrib\nSigned-By" in usual


def test_a_keyring_is_told_from_anything_else() -> None:
    assert DRIVER.keyring(b"\x98\x33\x04", "k").path.endswith(".gpg")
    assert DRIVER.keyring(b"\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "k").path.endswith(".asc")
    for wrong in (b"", b"<html>", b"-----BEGIN PGP PRIVATE KEY BLOCK-----"):
        with pytest.raises(PlanError, match="'k' is not an OpenPGP public key"):
            DRIVER.keyring(wrong, "k")
    with pytest.raises(PlanError, match="more than 65536: name a file that holds the key of this repository alone"):
        DRIVER.keyring(b"\x98" * 70000, "k")


@pytest.mark.parametrize(
    ("package", "left_out"),
    [
        ("nvidia-open", True), ("nvidia-driver-cuda", True), ("libnvidia-compute", True), ("libcuda1", True),
        ("linux-modules-nvidia-580-open", True), ("nvidia-container-toolkit", False), ("libnvidia-container1", False),
        ("nvidia-cuda-toolkit", False), ("python3", False), ("cuda-toolkit-13-0", False),
    ],
)  # fmt: skip
def test_unattended_upgrades_leave_the_driver_alone_and_nothing_else(package: str, left_out: bool) -> None:
    names = re.findall(r'^  "(.+)";$', driver.upgrades().content.decode(), re.MULTILINE)
    assert any(re.match(name, package) for name in names) == left_out
    assert driver.of_driver(package) == left_out


# ---- settings


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"manage_driver": True}, "setting manage_driver = True needs driver_version"),
        ({"driver_version": "580"}, "setting driver_version = '580': write all of it, such as '580.95.05'"),
        ({"driver_packages": []}, "setting driver_packages = []: list should have at least 1 item"),
        ({"driver_packages": ["nvidia-open=580"]}, "setting driver_packages[0] = ['nvidia-open=580']: write the name of a Debian package"),
        ({"driver_repository": "https://m.example/d /"}, "setting driver_repository needs driver_keyring"),
        ({"driver_keyring": "k.gpg"}, "setting driver_keyring is for driver_repository, which is not set"),
        ({"driver_repository": "https://m.example/d", "driver_keyring": "k"}, 'write "URI SUITE COMPONENT..."'),
        ({"driver_repository": "https://m.example/d bookworm", "driver_keyring": "k"}, 'write "URI SUITE COMPONENT..."'),
        ({"driver_repository": "https://m.example/d / main", "driver_keyring": "k"}, 'write "URI SUITE COMPONENT..."'),
        ({"driver_repository": "deb https://m.example/d /", "driver_keyring": "k"}, 'write "URI SUITE COMPONENT..."'),
        ({"driver_repository": "https://me:secret@m.example/d /", "driver_keyring": "k"}, "setting driver_repository holds credentials"),
    ],
)  # fmt: skip
def test_contradictions_of_the_settings(changes: dict[str, object], line: str) -> None:
    with pytest.raises(PlanError) as fault:
        settings(**changes)
    (said,) = fault.value.lines
    assert line in said
    assert "secret" not in said
