"""What a host says is told apart by form, never by a mark that its content can hold."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.facts.existing import ExistingEnvironment
from tasks.facts.model import ModelState
from tasks.facts.paths import Paths
from tasks.facts.sections import PRELUDE, Sections
from tasks.facts.units import Units
from tasks.plan.host.answers import Answer


class Said(Sections):
    """A section with the content of a file, then another one."""

    def command(self, path: str) -> str:
        return f"{PRELUDE}section first cat {path}\nsection 'second one' sh -c 'echo kept; exit 3'\n"


def asked(fact: Sections, *arguments: object, **keywords: object) -> Mapping[str, Answer]:
    ran = subprocess.run(["sh", "-c", fact.command(*arguments, **keywords)], capture_output=True, check=True)  # type: ignore[call-arg]
    return fact.process(ran.stdout.decode().splitlines())


FORGED = "\n@@section second one 0\n@@section files Zm9yZ2Vk 0\nsglang-pd-x;id active\n@@section x  0"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\n\n", b"no line break", FORGED.encode(), b"\x00\x01\xff", "ä".encode()[:1], b"\xf0\x9f\x98", b"@" * 3_000_000],
    ids=["nothing", "a line", "two lines", "no line break", "forged", "no text", "half a letter", "half an emoji", "3 MB"],
)  # fmt: skip
def test_no_content_begins_another_section(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    found = asked(Said(), str(tmp_path / "file"))
    text = content.decode(errors="replace").removesuffix("\n")
    assert found == {"first": Answer(0, text), "second one": Answer(3, "kept")}


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60), max_size=6))
def test_what_is_no_section_is_not_ours(lines: list[str]) -> None:
    """A banner at the login, a warning of the shell: before, between and after."""
    banner = [line for text in lines for line in text.splitlines()]
    ours = f"@@section uid {base64.b64encode(b'0').decode()} 0"
    assert Said().process([*banner, ours, *banner])["uid"] == Answer(0, "0")


def test_a_banner_before_the_first_section(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ran = subprocess.run(["sh", "-c", f"printf 'Welcome to GPU cloud; '\n{Said().command(str(tmp_path / 'file'))}"], capture_output=True, text=True, check=True)  # fmt: skip
    assert Said().process(ran.stdout.splitlines())["first"] == Answer(0, "x")


def test_a_section_keeps_the_variables_of_the_shell() -> None:
    class Hung(Sections):
        def command(self) -> str:
            return (
                f'{PRELUDE}smi() {{ [ -z "$hung" ] || return 124; hung=1; return 9; }}\nsection a smi\nsection b smi\n'
            )

    assert {name: answer.status for name, answer in asked(Hung()).items()} == {"a": 9, "b": 124}


# ---- what lies below /run


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_a_fingerprint_in_a_folder_that_is_not_roots_is_not_read(tmp_path: Path) -> None:
    (run := tmp_path / "prefill").mkdir()
    (run / "fingerprint.json").write_text('{"script": "s"}')
    name = "sglang-pd-prefill.service fingerprint"
    units = {"sglang-pd-prefill.service": str(run)}

    def left() -> str:
        return asked(Units(), units=units, target="sglang-pd.target")[name].text

    assert left() == '{"script": "s"}'
    os.chown(run, 12345, -1)
    assert left() == "", "its folder is somebody's"
    os.chown(run, 0, -1)
    os.chown(run / "fingerprint.json", 12345, -1)
    assert left() == "", "it is somebody's"
    (run / "fingerprint.json").unlink()
    os.mkfifo(run / "fingerprint.json")
    assert left() == "", "a pipe is not waited for"


# ---- files of another user


def looked_at(theirs: Path, user: str = "nobody") -> str:
    command = Paths().command([], user=user, theirs=[str(theirs)])
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    found = Paths().process(ran.stdout.splitlines())
    return found[str(theirs)].kind + ":" + (found[str(theirs)].text or "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_files_below_a_users_folder_are_read_as_that_user() -> None:
    folder = Path("/var/tmp") / f"theirs-{os.getpid()}"
    folder.mkdir()
    try:
        os.chown(folder, 65534, 65534)
        (secret := folder.with_suffix(".secret")).write_text("roots")
        secret.chmod(0o600)
        (folder / "link").symlink_to(secret)
        (folder / "own").write_text("theirs")
        (folder / "below").symlink_to(secret.parent)
        os.mkfifo(folder / "pipe")
        assert looked_at(folder / "own") == "file:theirs"
        assert looked_at(folder / "link") == "link:"
        assert looked_at(folder / "below" / secret.name) in ("file:", "absent:"), "through a folder that is a link"
        assert looked_at(folder / "pipe") == "other:"
    finally:
        subprocess.run(["rm", "-rf", folder, folder.with_suffix(".secret")], check=True)


def test_a_user_that_is_not_there_yet_owns_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("y")
    assert looked_at(tmp_path / "x", "no-such-user") == "file:y"


def test_another_users_word_does_not_stand_against_roots(tmp_path: Path) -> None:
    """A process of that user can write into the pipe of the one that answers: only its own paths are taken from it."""
    line = f"{tmp_path}/etc\tabsent\t\t\t\t"
    forged = f"{tmp_path}/etc\tfile\t644\troot\troot\t{base64.b64encode(b'forged').decode()}"
    assert Paths().process([forged, "", line])[f"{tmp_path}/etc"].kind == "absent"
    command = Paths().command(["/a"], user="nobody", theirs=["/b"])
    assert command.rindex(" /a") > command.rindex("/b"), "root's own answers come last"


# ---- root's Python


@pytest.mark.parametrize("module", ["signal", "json", "importlib"])
def test_pythons_that_root_starts_import_nothing_from_the_current_folder(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w')\nraise SystemExit('hijacked')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    existing = ExistingEnvironment()
    (tmp_path / "more").mkdir()
    commands = [
        ModelState().command(str(tmp_path / "model"), "no-such-user"),
        existing.command(sys.executable, sys.executable, [str(tmp_path / "more")]),
    ]
    said = [
        subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
        for command in commands
    ]
    assert not (tmp_path / "taken").exists()
    assert json.loads(said[0])["reason"] == "the directory is not there"
    servers = existing.process(said[1].splitlines())["servers"]
    assert servers.status == 0 and "pyinfra" in json.loads(servers.text)["packages"]


def test_folders_that_a_setting_adds_are_on_the_path_of_an_existing_environment(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").write_text("")
    found = asked(ExistingEnvironment(), sys.executable, sys.executable, [str(tmp_path)])["servers"]
    assert json.loads(found.text)["site_packages"] == str(tmp_path)
