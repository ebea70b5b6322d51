"""What servers put into their caches, counted by a real shell over real files."""

from __future__ import annotations

import getpass
import os
import subprocess
from pathlib import Path

import pytest

from tasks.facts.cached import Cached
from tasks.plan.service import caches

SYSTEMCTL = """#!/bin/sh
for unit; do :; done
[ "$unit" != gone.service ] || { echo n/a; exit; }
cat "$(dirname "$0")/$unit"
"""


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A folder with a systemctl that knows when a.service and b.service were started."""
    (tmp_path / "systemctl").write_text(SYSTEMCTL)
    (tmp_path / "systemctl").chmod(0o755)
    now = int((tmp_path / "systemctl").stat().st_ctime)
    (tmp_path / "a.service").write_text(f"@{now - 10}\n")
    (tmp_path / "b.service").write_text(f"@{now + 3600}\n")
    return tmp_path


def counted(cache: Path, bin: Path, *units: str) -> dict[str, int] | None:
    command = Cached().command(str(cache), getpass.getuser(), units)
    environment = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}"}
    ran = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
    return Cached().process(ran.stdout.splitlines())


def test_new_files_are_counted_by_the_cache_they_lie_in(started: Path) -> None:
    cache = started / "cache"
    names = ("triton/AB/k.cubin", "triton/AB/k.json", ".cache/sglang/jit/a.so", "bytecode/x.pyc")
    for name in names:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).touch()
    (cache / "link").symlink_to("/etc")
    assert counted(cache, started, "a.service") == {"triton": 2, "sglang": 1}
    assert counted(cache, started, "b.service") == {}, "all were there before it started"
    assert counted(cache, started, "b.service", "a.service") == {"triton": 2, "sglang": 1}, "since the first start"
    assert counted(cache, started, "gone.service") is None


def test_names_that_a_server_chose_stay_one_plain_word() -> None:
    found = caches.read(["counted", "3 triton", "2 \x1b[31mred", "1 a b", "12 " + "x" * 99, "nonsense"])
    assert found == {"triton": 3, "other": 15}
    assert caches.told(found) == "the start of the servers put 18 new files into their caches: other 15, triton 3"
    assert caches.told({"triton": 1}).startswith("the start of the servers put 1 new file into")
    assert caches.told({}) == "the start of the servers put no new file into their caches"
    assert caches.read(["Failed to get properties"]) is None
