"""What a host brings along, asked for as the user that the servers run as."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.facts.planned import Planned
from tasks.plan.findings import Finding, Level
from tasks.plan.settings.settings import Settings
from tests.plan.builders import settings
from tests.plan.judging import finding

CHECK = "host/user/reads"
BROUGHT: dict[str, object] = {"model_dir": "/data/models/x"}


def judged(answer: str | None, **data: object) -> Finding:
    wanted: Settings = settings(**{**BROUGHT, **data})
    return finding(CHECK, {} if answer is None else {"readable": answer}, wanted=wanted)


def test_where_the_host_brings_nothing_nothing_is_asked() -> None:
    assert judged(None, model_dir=None).level is Level.HEALTHY


def test_what_the_service_user_reads() -> None:
    said = judged("")
    assert said.level is Level.HEALTHY and said.line == "sglang reads /data/models/x"


def test_an_answer_that_is_cut_short_stops_the_run() -> None:
    assert judged(None).stops


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("enter\t/data/models\t750 alice:alice", "servers run as sglang: it may not enter /data/models (750 alice:alice): open it"),
        ("read\t/data/models/x/config.json\t600 root:root", "it may not read /data/models/x/config.json (600 root:root)"),
        ("follow\t/data/models/x/config.json\ta link to /root/blob", "it cannot get to where /data/models/x/config.json leads (a link to /root/blob)"),
        ("run\t/srv/env/bin/python3", "it cannot run /srv/env/bin/python3"),
        ("import\tsglang\t/srv/env/bin/python3", "/srv/env/bin/python3 finds no sglang for it"),
    ],
)  # fmt: skip
def test_what_it_is_kept_from_is_one_line_with_what_to_do(line: str, words: str) -> None:
    said = judged(line)
    assert said.stops and words in said.sentence and "name another one in service_user" in said.sentence


@pytest.mark.parametrize("line", ["loaded our settings", "import", "enter\t{0}", "a\tb\tc\td"])
def test_words_of_an_interpreter_are_no_traceback(line: str) -> None:
    assert "finds no sglang" in judged(f"{line}\nimport\tsglang\t/srv/env/bin/python3").sentence


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.parametrize("user", ["nobody", "of-this-run"])  # one that is there, and one that the run makes
def test_the_host_tells_what_keeps_that_user_from_it(shared: Path, user: str) -> None:
    for name in ("good", "closed", "inside", "links"):
        (shared / name).mkdir()
        (shared / name / "config.json").write_text("{}")
    (shared / "closed").chmod(0o750)
    (shared / "inside/model.safetensors").write_text("")
    (shared / "inside/model.safetensors").chmod(0o600)
    (shared / "links/model.safetensors").symlink_to(shared / "closed/config.json")
    asked = [
        str(shared / name) for name in ("good", "closed/model", "inside", "links", "links/model.safetensors", "absent")
    ]
    pythons = [("/usr/bin/python3", "json,no_such_module"), (str(shared / "good/config.json"), "json")]
    fact = Planned()
    command = fact.command("/x", "/y", "/z", [], "/r", "9.9", "", user=user, reads=asked, imports=pythons)
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert fact.process(ran.stdout.splitlines())["readable"].text.splitlines() == [
        f"enter\t{shared}/closed\t750 root:root",
        f"read\t{shared}/inside/model.safetensors\t600 root:root",
        f"read\t{shared}/links/model.safetensors\ta link to {shared}/closed/config.json",
        f"follow\t{shared}/links/model.safetensors\ta link to {shared}/closed/config.json",
        f"import\tno_such_module\t{pythons[0][0]}",
        f"run\t{shared}/good/config.json",
    ]
