"""The hook of files/kernels/hook in interpreters of its own: binding at import, at the latest in the server's processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

HOOK = Path(__file__).resolve().parents[2] / "files/kernels/hook/pd_overlay_hook/__init__.py"
ACTIVE = "active: SGLANG_MINE: sglang.kernel.run is ours\n"


class Site:
    """A folder of modules: the hook, an SGLang of three modules, and an overlay with two functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("pd_overlay_hook/__init__.py", HOOK.read_text())
        self.write("sglang/__init__.py", "")
        self.write(
            "sglang/kernel.py", "def run(q, k): return 'theirs'\nclass Pool:\n    def free(self, n): return 'theirs'\n"
        )
        self.write("sglang/srt/managers/scheduler.py", "")
        self.write(
            "pd_overlay_mine.py", "def run(q, k, options=None): return 'ours'\ndef free(self, n): return 'ours'\n"
        )
        self.place({})

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def place(self, demands: dict[str, list[str]], content: str = "patched = True\n") -> None:
        """placed.json for files that lie as they were placed: path -> variables."""
        for path in demands:
            self.write(path, content)
        files = {path: {"sha256": hashlib.sha256(content.encode()).hexdigest(), "patch": "p"} for path in demands}
        listed = [
            {"patch": "p", "path": path, "variables": variables, "line": f"active: p: {path} is ours"}
            for path, variables in demands.items()
        ]
        bound = {"patch": "o", "path": None, "variables": ["SGLANG_MINE"], "line": "not ours to say"}
        self.write("pd_overlay_hook/placed.json", json.dumps({"files": files, "demands": [*listed, bound]}))

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        self.write("main.py", dedent(code))
        return subprocess.run(
            [sys.executable, self.folder / "main.py"],
            env={**os.environ, "PYTHONPATH": str(self.folder), **variables}, capture_output=True, text=True,
        )  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


BIND = "import pd_overlay_hook as hook; hook.bind('SGLANG_MINE', 'sglang.kernel', {!r}, 'pd_overlay_mine:{}')\n"
# A process as the server starts them: it imports the scheduler's module first thing.
SPAWN = """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print, args=("served",))
    child.start(); child.join(); raise SystemExit(child.exitcode)
import sglang.srt.managers.scheduler
"""
# One that is forked after the server has imported it.
FORK = """
import multiprocessing
import sglang.srt.managers.scheduler
child = multiprocessing.get_context("fork").Process(target=print, args=("served",))
child.start(); child.join(); raise SystemExit(child.exitcode)
"""


def test_ours_takes_the_place_of_theirs_when_the_module_is_imported(site: Site) -> None:
    ran = site.run(BIND.format("run", "run") + "print('before'); import sglang.kernel; print(sglang.kernel.run(1, 2))")
    assert ran.stdout.split() == ["before", "ours"]
    assert ran.stderr == ACTIVE


def test_a_method_of_a_class(site: Site) -> None:
    ran = site.run(BIND.format("Pool.free", "free") + "from sglang.kernel import Pool; print(Pool().free(1))")
    assert (ran.stdout, ran.stderr) == ("ours\n", "active: SGLANG_MINE: sglang.kernel.Pool.free is ours\n")


def test_of_several_the_one_that_takes_what_upstream_takes(site: Site) -> None:
    site.write("pd_overlay_mine.py", "def old(q): return 'old'\ndef new(q, k): return 'new'\n")
    bind = "import pd_overlay_hook as hook; hook.bind('SGLANG_MINE', 'sglang.kernel', 'run', {})\n"
    call = "import sglang.kernel; print(sglang.kernel.run(1, 2))"
    assert site.run(bind.format("['pd_overlay_mine:old', 'pd_overlay_mine:new']") + call).stdout == "new\n"
    site.write("pd_overlay_mine.py", "def old(q): return 'old'\ndef new(q, k, n): return 'new'\n")
    ran = site.run(bind.format("['pd_overlay_mine:old', 'pd_overlay_mine:new']") + call)
    assert ran.returncode != 0
    assert "sglang.kernel.run takes q, k; ours was written for q, or for q, k, n" in ran.stderr


def test_a_module_that_is_there_already(site: Site) -> None:
    ran = site.run("import sglang.kernel\n" + BIND.format("run", "run") + "print(sglang.kernel.run(1, 2))")
    assert (ran.stdout, ran.stderr) == ("ours\n", ACTIVE)


def test_two_patches_of_one_module(site: Site) -> None:
    both = BIND.format("run", "run") + BIND.format("Pool.free", "free")
    ran = site.run(both + "import sglang.kernel as k; print(k.run(1, 2), k.Pool().free(1))")
    assert ran.stdout == "ours ours\n"


def test_the_hook_alone_says_and_changes_nothing(site: Site) -> None:
    ran = site.run("import pd_overlay_hook, sglang.kernel, sys; print(sglang.kernel.run(1, 2), 'json' in sys.modules)")
    assert (ran.stdout, ran.stderr) == ("theirs False\n", "")


@pytest.mark.parametrize(
    ("function", "ours", "words"),
    [
        ("gone", "run", "SGLANG_MINE asks for it, but sglang.kernel has no gone"),
        ("Pool.gone", "free", "sglang.kernel has no Pool.gone"),
        ("run", "free", "sglang.kernel.run takes q, k; ours was written for self, n"),
    ],
)
def test_a_misfit_ends_the_import_with_both_sides(site: Site, function: str, ours: str, words: str) -> None:
    ran = site.run(BIND.format(function, ours) + "import sglang.kernel")
    assert ran.returncode != 0
    assert ran.stderr.splitlines()[-1].startswith("pd_overlay_hook.MisfitError: ")
    assert words in ran.stderr


@pytest.mark.parametrize("started", [SPAWN, FORK], ids=["spawned", "forked"])
def test_a_process_of_the_server_binds_what_nothing_has_imported_yet(site: Site, started: str) -> None:
    ran = site.run(BIND.format("run", "run") + started)
    assert (ran.stdout, ran.stderr) == ("served\n", ACTIVE)


def test_the_main_process_imports_nothing_by_itself(site: Site) -> None:
    ran = site.run(
        BIND.format("run", "run") + "import sglang.srt.managers.scheduler, sys; print('sglang.kernel' in sys.modules)"
    )
    assert (ran.stdout, ran.stderr) == ("False\n", "")


def test_a_module_that_cannot_be_imported_is_told_and_ends_nothing(site: Site) -> None:
    site.write("sglang/kernel.py", "raise RuntimeError('no such driver')\n")
    ran = site.run(BIND.format("run", "run") + SPAWN)
    assert ran.stdout == "served\n"
    assert ran.stderr == "not active: sglang.kernel cannot be imported: RuntimeError: no such driver\n"


@pytest.mark.parametrize("started", [SPAWN, FORK], ids=["spawned", "forked"])
def test_a_misfit_ends_a_process_of_the_server(site: Site, started: str) -> None:
    ran = site.run(BIND.format("gone", "run") + started)
    assert ran.returncode != 0
    assert "has no gone" in ran.stderr


@pytest.mark.parametrize(("value", "said"), [("1", True), ("true", True), ("0", False), ("", False), ("Off", False)])
def test_placed_files_are_reported_where_a_variable_is_on(site: Site, value: str, said: bool) -> None:
    site.place({"sglang/switched.py": ["SGLANG_X", "SGLANG_Y"]})
    ran = site.run("import pd_overlay_hook\n" + SPAWN, SGLANG_Y=value)
    assert ran.stderr == ("active: p: sglang/switched.py is ours\n" if said else "")


@pytest.mark.parametrize("started", [SPAWN, FORK], ids=["spawned", "forked"])
def test_placed_files_without_a_variable_are_always_reported(site: Site, started: str) -> None:
    site.place({"sglang/a.py": [], "sglang/b.json": []})
    ran = site.run("import pd_overlay_hook\n" + started)
    assert ran.stderr == "active: p: sglang/a.py is ours\nactive: p: sglang/b.json is ours\n"


def test_a_placed_file_that_was_changed_is_not_active(site: Site) -> None:
    site.place({"sglang/a.py": []})
    site.write("sglang/a.py", "by hand = 1\n")
    ran = site.run("import pd_overlay_hook\n" + SPAWN)
    assert ran.stderr.startswith("not active: p: sglang/a.py is not as it was placed (")
    (site.folder / "sglang/a.py").unlink()
    ran = site.run("import pd_overlay_hook\n" + SPAWN)
    assert ran.stderr == "not active: p: sglang/a.py is not as it was placed (No such file or directory)\n"


def test_without_its_notes_it_says_so(site: Site) -> None:
    (site.folder / "pd_overlay_hook/placed.json").unlink()
    ran = site.run("import pd_overlay_hook\n" + SPAWN)
    assert ran.stderr.startswith("not active: placed.json beside pd_overlay_hook: ")
