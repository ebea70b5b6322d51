"""Patches on a served host, with the SGLang that is installed there: refused, placed, repaired, missed, taken out."""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.asking import CONFIG, UNITS, answer, answers, logged, out, pids, states
from tests.node.deploying import Result, deploy
from tests.node.node import Node
from tests.node.waiting import until

SITE = "/opt/sglang-pd/current/env/lib/python3.11/site-packages"
START_LIMIT = 300.0  # seconds
WHOLE, PART = "sglang/srt/managers/utils.py", "sglang/version.py"  # imported by every server
OVERLAY = Path(__file__).parent / "patches" / "input-length"
ACTIVE = {
    "active: SGLANG_TEST_INPUT_LENGTH: sglang.srt.managers.utils.validate_input_length is ours",
    f"active: whole: {WHOLE} is ours",
    f"active: part: {PART} is ours",
    "active: SGLANG_USE_CPU_ENGINE: nixl_cu13._api.nixl_agent is ours",
}
MANIFEST = """\
name: {name}
description: for a test
why: to test
sglang: "{sglang}"
apply: {apply}
{more}
tests: tests/node/test_patches.py
source: the installed file with a line more
"""


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def now(node: Node, path: str) -> str:
    return out(node, f"sha256sum <{SITE}/{path}").split()[0]


class Folder:
    """A user's patch_dir, made from what is installed: an overlay, a whole file, a diff, and others that do not fit."""

    def __init__(self, path: Path, node: Node) -> None:
        self.path = path
        self.originals = {name: node.run(f"cat {SITE}/{name}").stdout for name in (WHOLE, PART)}
        self.patched = {name: f"{text}PATCHED = True\n" for name, text in self.originals.items()}
        shutil.copytree(OVERLAY, path / "input-length", ignore=shutil.ignore_patterns("__pycache__"))
        self.file("whole")
        self.diff = "".join(
            difflib.unified_diff(
                *(texts[PART].splitlines(keepends=True) for texts in (self.originals, self.patched)),
                f"a/{PART}", f"b/{PART}",
            )
        )  # fmt: skip
        self.write("part", "diff", f'diff: it.diff\nreplaces: {{{PART}: "{sha256(self.originals[PART])}"}}')
        (path / "part/it.diff").write_text(self.diff)
        self.file("other-version", sglang="<0.5.20")
        self.file("other-original", PART, original="0" * 64)
        shutil.copytree(path / "input-length", path / "no-function")
        manifest = path / "no-function/manifest.yaml"
        manifest.write_text(
            manifest.read_text()
            .replace("input-length", "no-function")
            .replace("validate_input_length", "validate_length")
        )

    def write(self, name: str, apply: str, more: str, sglang: str = "") -> None:
        (self.path / name).mkdir()
        (self.path / name / "manifest.yaml").write_text(
            MANIFEST.format(name=name, apply=apply, more=more, sglang=sglang)
        )

    def file(self, name: str, path: str = WHOLE, original: str = "", **more: str) -> None:
        """A patch that replaces one file."""
        replaced = original or sha256(self.originals[path])
        self.write(name, "file", f'replaces: {{{path}: "{replaced}"}}', **more)
        (self.path / name / path).parent.mkdir(parents=True)
        (self.path / name / path).write_text(self.patched[path])

    def settings(self, *names: str) -> dict[str, object]:
        both = '{"SGLANG_TEST_INPUT_LENGTH": "1"}'
        chosen = json.dumps(["cpu-engine", "disagg-stop", *names])
        return {
            "patches": chosen, "patch_dir": self.path,
            **({"prefill_environment": both, "decode_environment": both} if "input-length" in names else {}),
        }  # fmt: skip


@pytest.fixture(scope="module")
def folder(served: Node, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("patches"), served)


@pytest.fixture(scope="module")
def plain(served: Node, folder: Folder) -> Iterator[str]:
    """The release without them; it serves again in the end, whatever a test broke."""
    serving = out(served, "readlink /opt/sglang-pd/current")
    yield serving
    deploy(served, "-y")


@pytest.fixture(scope="module")
def refused(served: Node, folder: Folder, plain: str) -> Result:
    """A run that builds another release whose servers would refuse an argument; what serves is left alone."""
    before = pids(served)
    wrong = folder.settings("input-length", "whole", "part")
    result = deploy(served, "-y", decode_arguments='["--attention-backend","no-such"]', **wrong)
    assert out(served, "readlink /opt/sglang-pd/current") == plain and pids(served) == before
    return result


@pytest.fixture(scope="module")
def placed(served: Node, folder: Folder, refused: Result) -> Result:
    result = deploy(served, "-y", **folder.settings("input-length", "whole", "part"))
    assert result.status == 0, result.output
    return result


def test_a_patch_that_does_not_fit_is_refused_with_both_sides(served: Node, folder: Folder) -> None:
    before = pids(served), out(served, "ls /opt/sglang-pd/releases")
    hashes = f"sha256 {'0' * 64}, in SGLang 0.5.20 it has {sha256(folder.originals[PART])}"
    refusals = {
        ("other-version",): [
            "patch other-version is for SGLang <0.5.20, release sglang-0.5.20-cpu has 0.5.20",
        ],
        ("other-original", "no-function"): [
            f"patch other-original replaces {PART} with {hashes}",
            "patch no-function looked for validate_length in sglang.srt.managers.utils: "
            "sglang.srt.managers.utils has validate_input_length",
        ],
    }  # fmt: skip
    for names, lines in refusals.items():
        refused = deploy(served, "-y", **folder.settings(*names))
        assert refused.status != 0
        assert all(line in refused.output for line in lines), refused.output
        assert "Traceback" not in refused.output
    assert (pids(served), out(served, "ls /opt/sglang-pd/releases")) == before


def test_a_release_whose_servers_refuse_an_argument_is_built_and_not_switched_to(served: Node, refused: Result) -> None:
    """SGLang knows the argument's name, so that only the release's own parser can tell."""
    assert refused.status != 0
    [built] = (line for line in refused.output.splitlines() if ": built in " in line)
    assert served.run(f"test -f {built.rpartition(', ')[2]}/release.json").returncode == 0
    said = next(line for line in refused.output.splitlines() if " failed: " in line and "arguments of decode" in line)
    assert "argument --attention-backend: invalid choice: 'no-such'" in said


def test_placed_patches_serve_and_report_themselves(served: Node, folder: Folder, plain: str, placed: Result) -> None:
    assert "patch input-length: placed (overlay, 2 files)" in placed.output
    assert f"patch whole: placed (replaces {WHOLE})" in placed.output
    assert f"patch part: placed (changes {PART})" in placed.output
    assert out(served, "readlink /opt/sglang-pd/current") != plain
    assert {path: now(served, path) for path in folder.patched} == {p: sha256(t) for p, t in folder.patched.items()}
    assert "391" in answer(served, "What is 17*23? Answer with the number only.")
    for unit in UNITS[:2]:
        log = logged(served, unit)
        assert set(log) >= ACTIVE
        assert any("input-length: ours was asked about " in line for line in log)
    planned = deploy(served, "--dry", **folder.settings("input-length", "whole", "part"))
    assert planned.planned == []


def test_patched_files_that_were_changed_by_hand_are_named_and_repaired(
    served: Node, folder: Folder, placed: Result
) -> None:
    chosen = folder.settings("input-length", "whole", "part")
    edited = [WHOLE, PART, "pd_overlay_input_length.py"]
    before = {path: now(served, path) for path in edited}
    for path in edited:
        out(served, f"echo '# by hand' >>{SITE}/{path}")
    named = deploy(served, "--dry", **chosen)
    for path in edited:
        assert f"file lib/python3.11/site-packages/{path} is changed" in named.output
    release, servers = named.planned
    assert release.startswith("Runtime | Release ") and servers == "Services | Running: prefill, decode"
    mended = deploy(served, "-y", operations="tests/node/build.py", **chosen)
    assert mended.status == 0 and mended.changed == [release], mended.output
    assert {path: now(served, path) for path in edited} == before


def test_a_server_without_a_patch_that_it_was_asked_for_is_not_made_ready(
    served: Node, folder: Folder, placed: Result
) -> None:
    def failures() -> list[str]:
        return out(served, f"journalctl -u {UNITS[1]} -o cat | grep '^pd-gate: decode: failed'; true").splitlines()

    before = len(failures())
    # killed, systemd brings it back by itself, without the time that draining takes
    out(served, f"echo SGLANG_TEST_NEVER_BOUND=1 >>{CONFIG}/decode.env; systemctl kill -s KILL {UNITS[1]}")
    until(lambda: any("patch " in line for line in failures()[before:]), "decode's gate fails", START_LIMIT)
    assert states(served)[1] != "active"
    served.run(f"systemctl stop {UNITS[1]}")  # systemd would try it again and again
    said = next(line for line in failures()[before:] if "patch " in line)
    assert "patch input-length is asked for (SGLANG_TEST_NEVER_BOUND=1), but not in place" in said
    assert "active: SGLANG_TEST_NEVER_BOUND: sglang.srt.managers.utils.get_logprob_dict_from_result is ours" in said


def test_taken_out_the_originals_are_back_byte_for_byte(
    served: Node, folder: Folder, plain: str, placed: Result
) -> None:
    with_patches = out(served, "readlink /opt/sglang-pd/current")
    planned = deploy(served, "--dry")
    for name in ("input-length", "whole", "part"):
        assert f"patch {name}: taken out, SGLang's own is back" in planned.output
    result = deploy(served, "-y")
    assert result.status == 0, result.output
    assert not any(name.startswith("Runtime | Release") for name in result.changed), "it is still built"
    assert out(served, "readlink /opt/sglang-pd/current") == plain
    for path, text in folder.originals.items():
        assert now(served, path) == sha256(text)
    assert served.run(f"ls {SITE}/pd_overlay_input_length.py").returncode != 0
    assert states(served) == ["active"] * 3 and answers(served)
    assert out(served, f"readlink -f {with_patches}") == with_patches, "it can be gone back to"
