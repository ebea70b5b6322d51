"""pd-patch: unified diffs applied without fuzz, targets looked up in sources, everything looked at before a write."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import subprocess
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bin.tools import load, run

pd_patch = load("pd-patch")
Misfit = pd_patch.Misfit


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- diffs ------------------------------------------------------------------------------------------------------------

TEXT = b"one\ntwo\nthree\nfour\nfive\n"
HEAD = b"--- a/x.py\n+++ b/x.py\n"


def applied(diff: bytes, original: bytes = TEXT) -> bytes:
    (hunks,) = pd_patch.read_diff(diff).values()
    return bytes(pd_patch.apply_hunks(original, hunks))


def refusal(diff: bytes, original: bytes = TEXT) -> str:
    with pytest.raises(Misfit) as raised:
        applied(diff, original)
    return str(raised.value)


@pytest.mark.parametrize(
    ("hunks", "result"),
    [
        (b"@@ -2,3 +2,3 @@\n two\n-three\n+THREE\n four\n", b"one\ntwo\nTHREE\nfour\nfive\n"),
        (b"@@ -2 +2 @@ def f():\n-two\n+2\n", b"one\n2\nthree\nfour\nfive\n"),
        (b"@@ -0,0 +1 @@\n+zero\n", b"zero\n" + TEXT),
        (b"@@ -5,0 +6,2 @@\n+six\n+seven\n", TEXT + b"six\nseven\n"),
        (b"@@ -1,2 +0,0 @@\n-one\n-two\n", b"three\nfour\nfive\n"),
        (b"@@ -1 +1 @@\n-one\n+1\n@@ -5 +5 @@\n-five\n+5\n", b"1\ntwo\nthree\nfour\n5\n"),
        (b"@@ -5 +5 @@\n-five\n+5\n\\ No newline at end of file\n", TEXT[:-5] + b"5"),
    ],
)
def test_a_diff_is_applied(hunks: bytes, result: bytes) -> None:
    assert applied(HEAD + hunks) == result


def test_an_end_without_a_newline_is_part_of_the_context() -> None:
    diff = HEAD + b"@@ -1 +1 @@\n-one\n\\ No newline at end of file\n+1\n"
    assert applied(diff, b"one") == b"1\n"
    assert "should be 'one', but is 'one'" in refusal(diff, b"one\n")


def test_what_git_writes_around_a_diff_is_passed_over() -> None:
    diff = b"diff --git a/x.py b/x.py\nindex 0123..4567 100644\n" + HEAD + b"@@ -1 +1 @@\n-one\n+1\n"
    assert applied(diff).startswith(b"1\n")


def test_times_behind_the_names_and_names_without_prefix() -> None:
    diff = b"--- d/x.py\t2026-01-01 10:00:00\n+++ d/x.py\t2026-01-02 10:00:00\n@@ -1 +1 @@\n-one\n+1\n"
    assert list(pd_patch.read_diff(diff)) == ["d/x.py"]


def test_a_carriage_return_is_content() -> None:
    diff = HEAD + b"@@ -1,2 +1,2 @@\n-a\r\n+b\r\n c\r\n"
    assert applied(diff, b"a\r\nc\r\n") == b"b\r\nc\r\n"
    assert "line 1 should be" in refusal(diff, b"a\nc\r\n")


@pytest.mark.parametrize(
    ("diff", "words"),
    [
        (HEAD + b"@@ -3 +3 @@\n-two\n+2\n", "line 3 should be 'two', but is 'three'"),  # one line off: no fuzz
        (HEAD + b"@@ -2,2 +2,2 @@\n-two\n+2\n other\n", "line 3 should be 'other', but is 'three'"),
        (HEAD + b"@@ -6 +6 @@\n-six\n+6\n", "line 6 should be 'six', but is the file's end"),
        (HEAD + b"@@ -2,2 +2 @@\n-two\n+2\n", "1 old and 1 new lines, its head says 2 and 1"),
        (HEAD + b"@@ -5 +5 @@\n-five\n+5\n@@ -1 +1 @@\n-one\n+1\n", "overlaps the one before it"),
        (HEAD + b"@@ -1,2 +1,2 @@\n one\n-two\n+2\n@@ -2 +2 @@\n-two\n+2\n", "overlaps the one before it"),
        (HEAD + b"@@ -1 +1 @@\n-one\n+1\n\\ No newline at end of file\n", "in the middle of the file"),
        (
            b"--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+one\n",
            "makes or removes b/x.py: a diff changes files that exist",
        ),
        (b"--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "makes or removes"),
        (b"--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-one\n+1\n", "renames x.py to y.py"),
        (HEAD + b"@@ -1 +1 @@\n-one\n+1\n" + HEAD + b"@@ -2 +2 @@\n-two\n+2\n", "names x.py twice"),
        (HEAD, "changes nothing in x.py"),
        (b"", "holds no change"),
        (b"@@ -1 +1 @@\n-one\n+1\n", "line 1 is no part of a unified diff: '@@ -1 +1 @@'"),
        (b"From 0123 Mon Sep 17\n" + HEAD, "line 1 is no part of a unified diff"),
        (HEAD + b"@@ -1 +1 @@\n-one\n+1\n-- \n2.39\n", "is no part of a unified diff: '-- '"),
        (HEAD + b"@@ -1 +1 @@\n-one\n*1\n", "is no part of a unified diff: '*1'"),
    ],
)
def test_a_diff_that_does_not_apply_says_where(diff: bytes, words: str) -> None:
    assert words in refusal(diff)


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "+\n", "-x\n", "@@\n"]), max_size=12)


@given(LINES, LINES, st.integers(0, 3), st.booleans(), st.booleans())
def test_a_diff_made_by_difflib_turns_one_into_the_other(
    old: list[str], new: list[str], context: int, old_ends: bool, new_ends: bool
) -> None:
    """And the turned diff brings the original back byte for byte."""
    texts = []
    for lines, ends in ((old, old_ends), (new, new_ends)):
        lines = lines if ends or not lines or lines[-1] == "\n" else [*lines[:-1], lines[-1].rstrip("\n")]
        texts.append(lines)
    if texts[0] == texts[1]:
        return
    for before, after in (texts, texts[::-1]):
        diff = "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(before, after, "a/x.py", "b/x.py", n=context)
        )
        assert applied(diff.encode(), "".join(before).encode()) == "".join(after).encode()


# --- an installation and its patches ----------------------------------------------------------------------------------

SOURCE = b"""import os
from a import imported as renamed
CONSTANT = 1
if os.name:
    def below_if(): pass
try:
    import fast
except ImportError:
    fast = None
def run(q, k=1, *rest, scale, **more): pass
def plain(a, b): pass
async def later(a): pass
class Outer:
    def method(self, a): pass
"""


class Installed:
    """site-packages with one distribution of two files."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site-packages"
        self.files = {"pkg/mod.py": SOURCE, "pkg/__init__.py": b"", "pkg/text.py": TEXT}
        rows = []
        for path, content in self.files.items():
            (self.site / path).parent.mkdir(parents=True, exist_ok=True)
            (self.site / path).write_bytes(content)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(content)}")
        (self.site / "pkg-1.dist-info").mkdir()
        (self.site / "pkg-1.dist-info/RECORD").write_text("\n".join([*rows, "pkg-1.dist-info/RECORD,,"]))
        self.told = folder / "patches.json"

    def run(self, command: str, *patches: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        filled = [{"replaces": {}, "targets": [], "files": {}, "apply": "overlay", **patch} for patch in patches]
        self.told.write_text(json.dumps({"sglang": "9.9", "patches": filled, "demands": [{"patch": "x"}]}))
        return run("pd-patch", command, "--patches", self.told, self.site)

    def now(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.site)): p.read_bytes() for p in self.site.rglob("*") if p.is_file()}


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def target(function: str, parameters: list[str] | None = None, module: str = "pkg.mod") -> dict[str, Any]:
    return {
        "name": "mine",
        "targets": [{"variable": "X", "module": module, "function": function, "parameters": parameters}],
    }


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("run", None),
        ("run", ["q", "k", "rest", "scale", "more"]),
        ("plain", ["a", "b"]),
        ("later", ["a"]),
        ("below_if", []),
        ("Outer", None),
        ("Outer.method", ["self", "a"]),
        ("renamed", None),
        ("CONSTANT", None),
        ("fast", None),
    ],
)
@pytest.mark.parametrize("command", ["check", "apply"])
def test_a_target_that_is_there(
    installed: Installed, command: str, function: str, parameters: list[str] | None
) -> None:
    done = installed.run(command, target(function, parameters))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("patch", "line"),
    [
        (target("rnu"), "patch mine looked for rnu in pkg.mod: pkg.mod has run and 8 more"),
        (target("Outer.nothing"), "patch mine looked for Outer.nothing in pkg.mod: pkg.mod.Outer has method"),
        (target("plain.x"), "patch mine looked for plain.x in pkg.mod: pkg.mod.plain has nothing"),
        (target("plain", ["a"]), "patch mine looked for pkg.mod.plain(a), there it is pkg.mod.plain(a, b)"),
        (target("plain", ["b", "a"]), "patch mine looked for pkg.mod.plain(b, a), there it is pkg.mod.plain(a, b)"),
        (target("Outer", ["a"]), "patch mine looked for parameters of pkg.mod.Outer, which is no plain function there"),
        (target("x", module="pkg.mud"), "patch mine looked for module pkg.mud, which is not installed: pkg has mod.py and 1 more"),
        (target("x", module="gone.deep"), "patch mine looked for module gone.deep, which is not installed: site-packages has pkg, pkg-1.dist-info"),
        ({"name": "mine", "apply": "file", "replaces": {"pkg/text.py": "0" * 64}, "files": {"pkg/text.py": []}},
         f"patch mine replaces pkg/text.py with sha256 {'0' * 64}, in SGLang 9.9 it has {sha256(TEXT)}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["check", "apply"])
def test_a_misfit_is_one_line_with_both_sides_and_nothing_is_written(
    installed: Installed, command: str, patch: dict[str, Any], line: str
) -> None:
    before = installed.now()
    done = installed.run(command, {"name": "good", "files": {"pd_overlay_good.pth": ["import os\n"]}}, patch)
    assert (done.returncode, done.stdout, done.stderr) == (1, f"{line}\n", "")
    assert installed.now() == before


def test_every_misfit_is_told(installed: Installed) -> None:
    done = installed.run("check", target("one"), target("two"))
    assert len(done.stdout.splitlines()) == 2


DIFF = HEAD.replace(b"x.py", b"pkg/text.py") + b"@@ -1 +1 @@\n-one\n+1\n"


def diff(content: bytes = DIFF, **replaces: str) -> dict[str, Any]:
    files = {"my.diff": content.decode().splitlines(keepends=True)}
    return {"name": "d", "apply": "diff", "files": files, "replaces": replaces or {"pkg/text.py": sha256(TEXT)}}


def test_what_is_placed_is_there_and_noted(installed: Installed) -> None:
    done = installed.run(
        "apply", diff(), {"name": "o", "files": {"pd_overlay_o/__init__.py": ["x = 1\n"], "pd_overlay_o/data": "AAH/"}}
    )
    assert done.returncode == 0, done.stdout
    now = installed.now()
    assert now["pkg/text.py"] == TEXT.replace(b"one", b"1")
    assert now["pd_overlay_o/data"] == b"\0\1\xff"
    notes = json.loads(now["pd_overlay_hook/placed.json"])
    assert notes["files"]["pkg/text.py"] == {"patch": "d", "sha256": sha256(now["pkg/text.py"])}
    assert notes["demands"] == [{"patch": "x"}]
    assert {oct(p.stat().st_mode & 0o777) for p in installed.site.glob("pd_overlay_o/*")} == {"0o644"}


def test_a_file_that_is_linked_elsewhere_is_not_written_to(installed: Installed, tmp_path: Path) -> None:
    os.link(installed.site / "pkg/text.py", tmp_path / "cached")
    assert installed.run("apply", diff()).returncode == 0
    assert (tmp_path / "cached").read_bytes() == TEXT


def test_byte_code_of_what_is_replaced_goes_and_no_other(installed: Installed) -> None:
    cache = installed.site / "pkg/__pycache__"
    cache.mkdir()
    for name in ("text.cpython-311.pyc", "text.cpython-312.opt-1.pyc", "texts.cpython-311.pyc", "mod.cpython-311.pyc"):
        (cache / name).touch()
    assert installed.run("apply", diff()).returncode == 0
    assert {path.name for path in cache.iterdir()} == {"texts.cpython-311.pyc", "mod.cpython-311.pyc"}


def test_a_second_placing_over_the_first_is_refused(installed: Installed) -> None:
    """Patches go over originals only: pd-build brings them back first."""
    assert installed.run("apply", diff()).returncode == 0
    assert "with sha256" in installed.run("apply", diff()).stdout


def test_patched_files_are_judged_by_what_the_package_brought(installed: Installed) -> None:
    """A release that carries the patch already fits; so does another patch for the same original."""
    assert installed.run("apply", diff()).returncode == 0
    assert installed.run("check", diff()).stdout == "fit: d\n"


def test_a_diff_is_tried_before_anything_is_built(installed: Installed) -> None:
    done = installed.run("check", diff(DIFF.replace(b"-one", b"-two")))
    assert done.stdout == "patch d (my.diff) does not apply to pkg/text.py: line 1 should be 'two', but is 'one'\n"


@pytest.mark.parametrize("command", ["check", "apply"])
def test_a_diff_and_its_manifest_must_name_the_same_files(installed: Installed, command: str) -> None:
    done = installed.run(command, diff(**{"pkg/mod.py": sha256(SOURCE)}))
    assert done.stdout == "patch d (my.diff) changes pkg/text.py; its manifest replaces pkg/mod.py\n"


def test_targets_are_looked_for_in_what_a_diff_makes(installed: Installed) -> None:
    adds = (
        HEAD.replace(b"x.py", b"pkg/text.py") + b"@@ -1,5 +1 @@\n-one\n-two\n-three\n-four\n-five\n+def new(): pass\n"
    )
    for command in ("check", "apply"):
        done = installed.run(command, diff(adds), target("new", [], module="pkg.text"))
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"patches": 1, "demands": [], "sglang": "x"}'])
def test_a_list_of_patches_that_is_none(installed: Installed, text: str) -> None:
    installed.told.write_text(text)
    done = run("pd-patch", "check", "--patches", installed.told, installed.site)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "is not a list of patches" in done.stderr


def test_a_folder_that_is_not_there(installed: Installed) -> None:
    installed.run("check")
    done = run("pd-patch", "check", "--patches", installed.told, installed.site / "gone")
    assert (done.returncode, done.stderr) == (2, f"pd-patch: {installed.site}/gone is no folder\n")
