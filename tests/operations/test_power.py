"""What a power cut leaves of a file that was just put in its place: the disk, as far as it was written until then."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tasks.operations import files, release
from tasks.plan.files import ABSENT, WantedFile
from tasks.plan.service.paths import KEPT, LOCK
from tasks.support.lock import _HOLDER
from tests.bin.tools import load

load("pd-verify")  # its folder is where the module is found from now on
import pd_shared as shared  # noqa: E402

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of its own: needs root")
BEFORE, AFTER = "before\n", "after\n" * 10_000


class Disk:
    """A small file system of its own. Only what is asked to be on the disk gets there."""

    def __init__(self, folder: Path) -> None:
        self.image, self.root, self._cut = folder / "image", folder / "disk", folder / "cut"
        self.image.write_bytes(b"")
        subprocess.run(["truncate", "-s", "64M", self.image], check=True)
        subprocess.run(["mkfs.ext4", "-q", self.image], check=True)
        self.mount(
            self.image, self.root, "commit=300", "noauto_da_alloc"
        )  # seconds until it writes by itself; no content before it
        (self.root / "file").write_text(BEFORE)
        (self.root / "link").symlink_to("before")
        subprocess.run(["sync", "-f", self.root], check=True)

    @staticmethod
    def mount(image: Path, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", ",".join(("loop", *options)), image, folder], check=True)

    def after_a_power_cut(self) -> Path:
        copy = self.image.with_name("copy")
        shutil.copyfile(self.image, copy)
        self.mount(copy, self._cut)
        return self._cut

    def close(self) -> None:
        for folder in (self._cut, self.root):
            if folder.is_mount():
                subprocess.run(["umount", folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    try:
        yield made
    finally:
        made.close()


def run(commands: Any) -> None:
    """The commands of an operation, here."""
    for command in commands:
        told = command.connector_arguments.get("_stdin")
        subprocess.run(["sh", "-c", command.get_raw_value()], input=told, text=True, check=True)


def test_without_a_word_to_the_disk_it_is_lost(disk: Disk) -> None:
    """The disk of these tests forgets."""
    (disk.root / "new").write_text(AFTER)
    (disk.root / "new").replace(disk.root / "file")
    assert (disk.after_a_power_cut() / "file").read_text() != AFTER


def test_what_a_tool_has_written(disk: Disk) -> None:
    shared.write_atomically(disk.root / "file", AFTER)
    assert (disk.after_a_power_cut() / "file").read_text() == AFTER


def test_a_file_of_the_playbook_is_never_empty(disk: Disk) -> None:
    run(files._placed(WantedFile(str(disk.root / "file"), AFTER.encode()), ABSENT))
    shared.to_disk(disk.root)  # as the kernel does at any time: names reach the disk before content
    assert (disk.after_a_power_cut() / "file").read_text() == AFTER


def test_the_link_to_the_current_release(disk: Disk) -> None:
    run(cast(Any, release.linked)._inner("after", str(disk.root / "link"), found="before"))
    assert str((disk.after_a_power_cut() / "link").readlink()) == "after"


def test_the_stamp_of_a_run(disk: Disk, tmp_path: Path) -> None:
    holder = _HOLDER.replace(KEPT, str(disk.root / "kept")).replace(LOCK.rpartition("/")[0], str(tmp_path / "run"))
    record = '{"phase":"x","ended":null}'
    process = subprocess.Popen(["bash", "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "taken\n"
        process.stdin.write(f"stamp\n{record}\n")
    finally:
        process.stdin.close()
        process.wait()
    lost = record.replace("null", '"lost"')
    assert (disk.after_a_power_cut() / "kept/stamp.json").read_text() == f"{lost}\n"
