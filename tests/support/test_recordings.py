"""A recording lies in its folder whole, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.plan.host.recording import SEAL
from tasks.support import recordings
from tests.node import hardware
from tests.node.process import NodeError
from tests.plan.host.test_recording import ASKED, answers, read


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def record() -> Path:
    return recordings.write("gpu-1", read(answers(), ASKED, []))


def test_a_recording_replaces_the_one_before_it() -> None:
    folder = record()
    (folder / "more").touch()
    assert record() == folder == Path("recordings/gpu-1")
    assert recordings.wrong_with(folder) == ""
    assert [path.name for path in folder.parent.iterdir()] == ["gpu-1"]
    assert hardware.chain("gpu-1") == [folder]


def test_a_recording_that_was_broken_off_is_refused() -> None:
    (record() / SEAL).unlink()
    with pytest.raises(
        NodeError, match=r"recording gpu-1 is not whole, it has no recording\.json.*make record HOST=gpu-1"
    ):
        hardware.chain("gpu-1")


def test_an_unknown_one_is_refused_with_those_that_are_there() -> None:
    record()
    with pytest.raises(NodeError, match=r"no recorded hardware gpu-2: there is .*two-gpus.*, gpu-1; make record"):
        hardware.chain("gpu-2")
    assert "gpu-1" not in hardware.names(), "tests read none of the user's"
