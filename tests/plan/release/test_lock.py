"""A lock is read whole or not at all, and a wheel folder is compared with it by the names of its files."""

from __future__ import annotations

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.release import lock
from tasks.plan.release.lock import Pin
from tasks.support import catalogue

TEXT = """\
# made by make lock
nvidia-cublas==13.1.0.3 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via torch
torch==2.13.0+cpu --hash=sha256:cc  # via -r server.in
"""


def test_pins_with_every_hash() -> None:
    assert lock.read(TEXT, "x") == (
        Pin("nvidia-cublas", "13.1.0.3", ("sha256:aa", "sha256:bb")),
        Pin("torch", "2.13.0+cpu", ("sha256:cc",)),
    )
    assert lock.read(TEXT, "x")[0].requirement == "nvidia-cublas==13.1.0.3 --hash=sha256:aa --hash=sha256:bb"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TEXT.replace(" --hash=sha256:cc", ""), "x: torch==2.13.0+cpu has no hash: make the lock anew"),
        ("torch>=2 --hash=sha256:cc", "x: 'torch>=2' is not NAME==VERSION with hashes: make the lock anew"),
        ("--index-url https://a.test/s", "x: '--index-url https://a.test/s' is not NAME==VERSION with hashes"),
        ("# nothing\n", "x pins nothing"),
    ],
)
def test_what_is_no_lock_is_one_line(text: str, line: str) -> None:
    with pytest.raises(PlanError) as error:
        lock.read(text, "x")
    assert len(error.value.lines) == 1 and error.value.lines[0].startswith(line)


@pytest.mark.parametrize(
    ("file", "python", "fits"),
    [
        ("a_b-1.0-py3-none-any.whl", "3.11", True),
        ("A.b-1.0-py2.py3-none-any.whl", "3.11", True),
        ("a_b-1.0-2-py3-none-any.whl", "3.11", True),
        ("a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "3.11", True),
        ("a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "3.12", False),
        ("a_b-1.0-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "3.12", True),
        ("a_b-1.0-cp312-abi3-linux_x86_64.whl", "3.11", False),
        ("a_b-1.0-py3-none-manylinux_2_27_aarch64.whl", "3.11", False),
        ("a_b-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", "3.11", False),
        ("a_b-1.0-cp311-cp311-macosx_11_0_arm64.whl", "3.11", False),
        ("a_b-1.1-py3-none-any.whl", "3.11", False),
        ("a_b-1.0.tar.gz", "3.11", False),
        ("a_b-1.0-py3-none-any.whl.part", "3.11", False),
        ("a_b_c-1.0-py3-none-any.whl", "3.11", False),
    ],
)
def test_a_wheel_serves_a_pin_by_name_version_and_tags(file: str, python: str, fits: bool) -> None:
    pin = Pin("a-b", "1.0", ())
    assert lock.without_wheel([pin], python, [file]) == ([] if fits else [pin])


def test_a_local_version_counts() -> None:
    pins = lock.read(TEXT, "x")
    cpu = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert lock.without_wheel(pins[1:], "3.11", [cpu]) == []
    assert lock.without_wheel(pins[1:], "3.11", [cpu.replace("+cpu", "")]) == [pins[1]]


def test_a_lock_of_this_checkout_without_a_hash_is_one_line(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = catalogue.manifest("sglang-0.5.20-cpu")
    folder = type(catalogue.LOCKS)(str(tmp_path)) / manifest.name
    folder.mkdir()
    for path in (catalogue.LOCKS / manifest.name).glob("*3.11.txt"):
        (folder / path.name).write_text(path.read_text())
    text = (folder / "python3.11.txt").read_text()
    (folder / "python3.11.txt").write_text(f"{text}stray==1.0\n")
    monkeypatch.setattr(catalogue, "LOCKS", folder.parent)
    with pytest.raises(PlanError) as error:
        catalogue.release(manifest, "3.11", "cpu")
    assert error.value.lines == (
        "files/locks/sglang-0.5.20-cpu/python3.11.txt: stray==1.0 has no hash: make the lock anew",
    )


# ---- what moves


def pins(**versions: str) -> list[lock.Pin]:
    return [lock.Pin(name, version, ()) for name, version in versions.items()]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (pins(torch="2.9.0"), pins(torch="2.9.0"), ""),
        (pins(torch="2.9.0"), pins(torch="2.9.1"), "1 package moves: torch 2.9.0 -> 2.9.1"),
        (pins(a="1", c="3"), pins(b="2", c="4"), "3 packages move: -a 1, +b 2, c 3 -> 4"),
    ],
)
def test_what_moves_between_two_locks(before: list[lock.Pin], now: list[lock.Pin], said: str) -> None:
    assert lock.moves(before, now) == said


def test_many_moves_are_counted() -> None:
    told = lock.moves([], pins(**{f"p{n:02}": "1" for n in range(20)}))
    assert told.startswith("20 packages move: +p00 1, ") and told.endswith("+p11 1 and 8 more")
