"""Files that reach a host over standard input, written by a real shell."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.operations.upload import sent

ROOT = Path(__file__).resolve().parents[1]


def arrive(content: bytes, path: Path, cut: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell with an open umask does. cut: characters after which the connection breaks."""
    command = sent(content, str(path))
    text = command.connector_arguments["_stdin"]
    assert isinstance(text, str)
    return subprocess.run(
        ["sh", "-c", command.get_raw_value()], input=text[:cut], text=True, capture_output=True, umask=0
    )


@given(st.binary(max_size=5000))
def test_any_content_arrives(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "it's here.new"
    ran = arrive(content, path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("cut", [0, 1, 4, 20, 1000])
def test_half_a_file_is_no_file(tmp_path: Path, cut: int) -> None:
    ran = arrive(b"x" * 2000, tmp_path / "file.new", cut)
    assert ran.returncode == 1 and "did not arrive whole" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_lies_there_is_neither_kept_nor_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "file.new").symlink_to(tmp_path / "other")
    assert arrive(b"new", tmp_path / "file.new").returncode == 0
    assert (tmp_path / "other").read_text() == "mine"
    assert (tmp_path / "file.new").read_bytes() == b"new" and not (tmp_path / "file.new").is_symlink()


def test_content_stands_in_no_command() -> None:
    command = sent(b"content-of-a-secret", "/etc/x.new")
    assert "content-of-a-secret" not in command.get_raw_value()
    assert "Y29udGVud" not in command.get_raw_value()


def test_nothing_is_sent_in_another_way() -> None:
    """pyinfra's own uploads pass through /tmp where the user of ssh is not root."""
    found = [path for path in (ROOT / "tasks").rglob("*.py") if "FileUploadCommand" in path.read_text()]
    assert found == []
