"""A model's folder, looked at by the real fact as a user who owns nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.facts.model import ModelFolder
from tasks.plan.errors import PlanError
from tasks.plan.model import derive, folder
from tasks.plan.model.folder import ABSENT, CLOSED, CONFIG_BYTES, THERE, Folder
from tests.plan.model.test_shape import WHOLE

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")


@pytest.fixture
def model() -> Iterator[Path]:
    """A whole model that everybody may read; what pytest makes lies below folders that only root enters."""
    path = Path("/var/tmp") / f"model-{os.getpid()}"
    path.mkdir(mode=0o755)
    try:
        (path / "config.json").write_text(json.dumps(WHOLE))
        (path / "model.safetensors").write_bytes(b"x" * 1000)
        (path / "tokenizer_config.json").write_text("{%- if enable_thinking %} <think> thinking is defined")
        yield path
    finally:
        subprocess.run(["rm", "-rf", path], check=True)


def looked_at(path: Path, user: str = "no-such-user") -> Folder:
    command = ModelFolder().command(str(path), user)
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return folder.read(ModelFolder().process(ran.stdout.splitlines()), str(path))


def refused(path: Path) -> str:
    with pytest.raises(PlanError) as error:
        derive.check_folder(looked_at(path), "sglang")
    (line,) = error.value.lines
    assert "\n" not in line and str(path) in line
    return line


def test_a_whole_model(model: Path) -> None:
    found = looked_at(model)
    assert (found.state, found.config, found.fault) == (THERE, WHOLE, "")
    assert found.weights == {"model.safetensors": 1000}
    assert found.words == {"enable_thinking", "<think>", "thinking is defined"}
    derive.check_folder(found, "sglang")


def test_an_index_says_which_files_are_loaded(model: Path) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"weight_map": {f"layers.{number}": names[number % 2] for number in range(100)}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "blobs").mkdir()
    for number, name in enumerate(names):
        (model / "blobs" / name).write_bytes(b"x" * (number + 1) * 100)
        (model / name).symlink_to(f"blobs/{name}")  # as in the hub's own cache
    found = looked_at(model)
    assert found.weights == {names[0]: 100, names[1]: 200}
    (model / "blobs" / names[1]).unlink()
    assert f"its index names {names[1]}, not there" in refused(model)


def test_a_folder_that_is_not_there(model: Path) -> None:
    assert looked_at(model / "none").state == ABSENT
    assert "no such folder on this host, so it holds no config.json" in refused(model / "none")


def test_a_folder_that_the_service_user_cannot_enter(model: Path) -> None:
    model.chmod(0o700)
    assert looked_at(model).state == CLOSED
    assert "service_user = 'sglang' cannot enter this folder" in refused(model)
    model.chmod(0o755)
    (model / "below").mkdir(mode=0o755)
    model.chmod(0o700)
    assert looked_at(model / "below").state == CLOSED, "nor one on the way to it"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "holds no config.json"),
        (b"", "is empty, or the service user cannot read it"),
        (b"{}", "no JSON object, or an empty one"),
        (b"[1]", "no JSON object"),
        (json.dumps(WHOLE).encode()[:-20], "no JSON object"),
        (b"\xff\xfe", "is empty, or the service user cannot read it"),
        (b" " * (CONFIG_BYTES + 100), "has more than 1024 KiB"),
        (b"[" * 100_000, "no JSON object"),
    ],
)
def test_a_config_that_is_none(model: Path, content: bytes | None, line: str) -> None:
    (model / "config.json").unlink()
    if content is not None:
        (model / "config.json").write_bytes(content)
    assert line in refused(model)


def test_a_config_that_leads_elsewhere_shows_nothing_of_it(model: Path) -> None:
    secret = model.with_suffix(".secret")
    secret.write_text('{"key": "of root"}')
    secret.chmod(0o600)
    (model / "config.json").unlink()
    (model / "config.json").symlink_to(secret)
    try:
        assert "of root" not in refused(model)
    finally:
        secret.unlink()


def test_a_pipe_is_not_waited_for(model: Path) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    assert "holds no config.json" in refused(model)


def test_no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "holds no weights (*.safetensors)" in refused(model)


def test_names_that_are_no_files_of_a_model_are_left_alone(model: Path) -> None:
    (model / "a\nend\nfile 9 model-2.safetensors").write_text("")
    (model / "-rf.safetensors").write_text("xx")
    (model / "$(touch x).safetensors").write_text("xx")
    found = looked_at(model)
    assert found.weights.get("model.safetensors") == 1000
    assert not any(name.startswith(("-", "$")) for name in found.weights)
    assert not (model / "x").exists()


def test_an_answer_that_is_cut_short(model: Path) -> None:
    answers = dict(ModelFolder().process([]))
    with pytest.raises(PlanError, match="cut short; run again"):
        folder.read(answers, "/data/x")
