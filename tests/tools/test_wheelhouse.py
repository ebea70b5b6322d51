"""make wheelhouse with the real pip: small wheels in a folder, no network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.plan.release import lock
from tests.bin.test_pd_build import pin as pinned
from tests.bin.test_pd_build import wheel
from tools import download, wheelhouse


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is told to take them from, and nowhere else."""
    folder = tmp_path / "source"
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for name in ("alpha", "beta_two"):
        wheel(folder, name, "1.0", {f"{name}.py": "value = 1\n"})
    return folder


@pytest.fixture
def wanted(source: Path) -> tuple[lock.Pin, ...]:
    return lock.read("".join(pinned(path) for path in sorted(source.iterdir())), "test")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_wheel_is_there_and_a_second_run_fetches_none(
    source: Path, wanted: tuple[lock.Pin, ...], tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    sums, fetched = wheelhouse.fill(wanted, "3.11", there)
    assert (fetched, content(there)) == (2, content(source))
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in source.iterdir()}
    for path in source.iterdir():
        path.unlink()
    assert wheelhouse.fill(wanted, "3.11", there) == (sums, 0)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [half, Path.unlink])
def test_what_is_not_as_the_lock_says_is_fetched_again(
    source: Path, wanted: tuple[lock.Pin, ...], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    wheelhouse.fill(wanted, "3.11", there)
    damage(there / "beta_two-1.0-py3-none-any.whl")
    assert wheelhouse.fill(wanted, "3.11", there)[1] == 1
    assert content(there) == content(source)


def test_a_source_with_another_file_than_the_locks_is_refused_and_leaves_nothing(
    source: Path, wanted: tuple[lock.Pin, ...], tmp_path: Path
) -> None:
    half(source / "alpha-1.0-py3-none-any.whl")
    (tmp_path / "there").mkdir()
    with pytest.raises(download.Failed, match=r"THESE PACKAGES DO NOT MATCH THE HASHES|alpha"):
        wheelhouse.fill(wanted, "3.11", tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_a_wheel_that_no_source_has_is_named(source: Path, wanted: tuple[lock.Pin, ...], tmp_path: Path) -> None:
    (source / "beta_two-1.0-py3-none-any.whl").unlink()
    (tmp_path / "there").mkdir()
    with pytest.raises(download.Failed, match=r"beta-two==1\.0"):
        wheelhouse.fill(wanted, "3.11", tmp_path / "there")


def test_sums_can_be_checked_and_keep_those_of_other_releases(wanted: tuple[lock.Pin, ...], tmp_path: Path) -> None:
    sums, _ = wheelhouse.fill(wanted, "3.11", tmp_path)
    (tmp_path / wheelhouse.SUMS).write_text(f"{'0' * 64}  gone.whl\n{'1' * 64}  source\n")
    wheelhouse.write_sums(tmp_path, sums)
    lines = (tmp_path / wheelhouse.SUMS).read_text().splitlines()
    assert lines[-1] == f"{'1' * 64}  source" and len(lines) == 3
    (tmp_path / wheelhouse.SUMS).write_text("\n".join(lines[:2]) + "\n")
    ran = subprocess.run(["sha256sum", "-c", wheelhouse.SUMS], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sglang-0.5.23-cu131", "3.11"], "unknown release 'sglang-0.5.23-cu131'"),
        (
            ["sglang-0.5.23-cu130", "3.13"],
            "release sglang-0.5.23-cu130 has no lock for Python 3.13: ask for 3.11 or 3.12",
        ),
        (
            ["sglang-0.5.23-cu130", "3.11", "--router", "nginx"],
            "has no lock for the router nginx: ask for sglang-router or smg",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tools.wheelhouse", *arguments, "--dest", str(tmp_path / "there")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 1 and line in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr
    assert not (tmp_path / "there").exists()


def test_the_wheels_of_a_release_are_those_of_both_locks_and_uv() -> None:
    names = {pin.name for pin in wheelhouse.pins("sglang-0.5.23-cu130", "3.12", "smg", "cpu")}
    assert {"sglang", "torch", "smg", "uv"} <= names
    assert "sglang-router" not in names
