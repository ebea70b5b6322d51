"""The device files of GPUs: a folder stands for /proc, another for /dev; modprobe is a shim, the files are real."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.bin.tools import BIN

PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: {modify}\nDeviceFileUID: 0\nDeviceFileGID: 0\n"
LOADED = "Character devices:\n  1 mem\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with two cards, one of which is minor 3, and nothing loaded but the driver itself."""
    driver = tmp_path / "proc/driver/nvidia"
    for address, minor in (("0000:01:00.0", 0), ("0000:c1:00.0", 3)):
        folder = driver / "gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\n")
    (driver / "params").write_text(PARAMS.format(modify=1) + "DeviceFileMode: 438\n")
    (tmp_path / "proc/devices").write_text(LOADED.replace("508 nvidia-uvm\n", ""))
    (tmp_path / "dev").mkdir()
    modprobe(tmp_path, f"[ \"$*\" = nvidia-uvm ] && printf '%s' '{LOADED}' >{tmp_path}/proc/devices")
    return tmp_path


def modprobe(host: Path, does: str) -> None:
    (host / "bin").mkdir(exist_ok=True)
    (host / "bin/modprobe").write_text(f"#!/bin/sh\n{does}\n")
    (host / "bin/modprobe").chmod(0o755)


def run(host: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [f"{BIN}/pd-devices", "--proc", f"{host}/proc", "--dev", f"{host}/dev"],
        capture_output=True, text=True, env={"PATH": f"{host}/bin:/usr/bin:/bin"},
    )  # fmt: skip


def made(host: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in (host / "dev").iterdir():
        kind = path.stat()
        assert stat.S_ISCHR(kind.st_mode)
        found[path.name] = (os.major(kind.st_rdev), os.minor(kind.st_rdev), stat.S_IMODE(kind.st_mode))
    return found


ALL = {
    "nvidiactl": (195, 255, 0o666),
    "nvidia0": (195, 0, 0o666),
    "nvidia3": (195, 3, 0o666),
    "nvidia-uvm": (508, 0, 0o666),
    "nvidia-uvm-tools": (508, 1, 0o666),
}


def test_the_module_is_loaded_and_every_device_made(host: Path) -> None:
    ran = run(host)
    assert ran.returncode == 0, ran.stderr
    assert "loaded nvidia-uvm" in ran.stderr
    assert made(host) == ALL


def test_a_second_run_says_and_does_nothing(host: Path) -> None:
    run(host)
    modprobe(host, "exit 1")
    again = run(host)
    assert (again.returncode, again.stderr) == (0, "")
    assert made(host) == ALL


def test_a_device_of_another_boot_is_replaced(host: Path) -> None:
    os.mknod(host / "dev/nvidia-uvm", stat.S_IFCHR | 0o600, os.makedev(235, 0))
    assert run(host).returncode == 0
    assert made(host) == ALL


def test_owner_and_mode_are_the_drivers(host: Path) -> None:
    (host / "proc/driver/nvidia/params").write_text("DeviceFileGID: 44\nDeviceFileMode: 432\n")
    assert run(host).returncode == 0
    assert {mode for _, _, mode in made(host).values()} == {0o660}
    assert {path.stat().st_gid for path in (host / "dev").iterdir()} == {44}


def test_where_nobody_may_make_device_files_none_is_made(host: Path) -> None:
    (host / "proc/driver/nvidia/params").write_text(PARAMS.format(modify=0))
    assert run(host).returncode == 0
    assert made(host) == {}


def test_a_module_that_does_not_load_is_one_line(host: Path) -> None:
    modprobe(host, "echo \"modprobe: ERROR: could not insert 'nvidia_uvm': Key was rejected by service\" >&2; exit 1")
    ran = run(host)
    assert ran.returncode == 1
    assert ran.stderr == (
        "pd-devices: modprobe nvidia-uvm: modprobe: ERROR: could not insert 'nvidia_uvm': Key was rejected by service\n"
    )


def test_without_a_driver_there_is_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "bin").mkdir()
    ran = run(tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "pd-devices: no NVIDIA driver is loaded: nothing to do\n")
