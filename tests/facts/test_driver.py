"""What is asked about the driver, by a real shell."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.facts.driver import Driver
from tests.facts.test_sections import answers

DPKG = r"""printf 'ii \tlibcuda1:amd64\t580.95.05-1\nhi \tnvidia-open\t580.95.05-1\nii \tbash\t5.2-1\n'"""
SYSTEMCTL = "echo sglang-pd-decode.service loaded active running Decode\n"


def test_what_the_shell_reads_can_be_told_apart(tmp_path: Path) -> None:
    said = answers(Driver(), tmp_path, {"dpkg-query": DPKG, "systemctl": SYSTEMCTL}, packages=["dpkg", "no-such"])
    assert said["drivers"].text.splitlines() == ["ii \tlibcuda1:amd64\t580.95.05-1", "hi \tnvidia-open\t580.95.05-1"]
    assert said["serving"].text.strip() == "sglang-pd-decode.service"
    assert said["runfile"].text == said["enrolled"].text == ""
    installed = said["installed"].text.strip()
    assert int(installed) == int(Path("/var/lib/dpkg/info/dpkg.list").stat().st_mtime)
    kernels = said["kernels"].text.splitlines()
    assert Path("/proc/sys/kernel/osrelease").read_text().strip() in [line.split()[0] for line in kernels]
    assert all(re.fullmatch(r"\S+( headers)?", line) for line in kernels)


def test_a_package_that_is_not_there_was_installed_never(tmp_path: Path) -> None:
    assert answers(Driver(), tmp_path, {}, packages=["no-such"])["installed"].text.strip() == "0"


def test_the_boot_lies_before_now(tmp_path: Path) -> None:
    """The first process started no earlier than the kernel, and no later than this one."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    said = answers(Driver(), tmp_path, {"date": "echo 2000000000\n"}, packages=["x"])
    assert 2_000_000_000 - uptime - 60 <= int(said["booted"].text) <= 2_000_000_000
