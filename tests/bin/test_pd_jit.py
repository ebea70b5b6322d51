"""pd-jit against a package that stands in for FlashInfer: what compiles, what is there, what is unknown, what fails."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bin.tools import BIN
from tests.node.waiting import until

PACKAGE = """
import os, pathlib, threading
FOLDER = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"])
class Spec:
    is_aot = False
    def __init__(self, name, fails=None):
        self.path, self.fails = FOLDER / (name + ".so"), fails
    def get_library_path(self):
        return self.path
    def build(self, verbose):
        if self.fails:
            raise RuntimeError("ninja: \\\\n" + self.fails + "\\\\nninja stopped")
        flags = os.environ.get("CC", "")
        if not self.path.exists() or self.path.read_text() != flags:
            self.path.write_text(flags)
def gen_norm(): return Spec("norm")
def gen_sampling(): return Spec("sampling")
class Both(Spec):
    waiting = threading.Barrier(2)
    def build(self, verbose):
        self.waiting.wait(60)
        super().build(verbose)
def compile_now(width, kind, name="now"):
    assert kind.upper() == "BFLOAT16", kind
    (FOLDER / f"{name}-{width}.so").write_text(os.environ.get("NVCC_APPEND_FLAGS", ""))
def gen_one(): return Both("one")
def gen_other(): return Both("other")
class Held(Spec):
    def build(self, verbose):
        if not self.path.exists():
            self.path.write_text("half of it")
        (FOLDER / "held").read_text()  # waits as long as it is a pipe that nobody writes to
        super().build(verbose)
def gen_held(): return Held("held")
def crash(how):
    os._exit(how) if how else (FOLDER / "held").read_text()
def gen_broken(): return Spec("broken", "fatal error: cuda_runtime.h: No such file or directory")
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(PACKAGE.replace("\\\\n", "\\n"))
    (tmp_path / "cache").mkdir()
    return tmp_path


COMMAND = [sys.executable, str(BIN / "pd-jit"), "--python", sys.executable]


def environment(workspace: Path, **variables: str) -> dict[str, str]:
    return {
        **os.environ, "PYTHONPATH": str(workspace), "FLASHINFER_WORKSPACE_BASE": str(workspace / "cache"), **variables,
    }  # fmt: skip


def jit(workspace: Path, *words: str, inside: bool = True, **variables: str) -> tuple[int, str]:
    """inside: as on a host with a driver, which this machine need not have."""
    command = [*COMMAND, *(["--inside"] if inside else []), *words]
    ran = subprocess.run(command, env=environment(workspace, **variables), capture_output=True, text=True)
    return ran.returncode, re.sub(r"compiled in \d+ s", "compiled", ran.stderr)


def test_kernels_are_compiled_once(workspace: Path) -> None:
    code, said = jit(workspace, "kernels:gen_norm", "kernels:gen_sampling")
    assert code == 0
    assert sorted(said.splitlines()) == [
        "pd-jit: kernels:gen_norm: compiled",
        "pd-jit: kernels:gen_sampling: compiled",
    ]
    assert {path.name for path in (workspace / "cache").iterdir()} == {"norm.so", "sampling.so"}
    code, said = jit(workspace, "kernels:gen_norm", "kernels:gen_sampling")
    assert (code, said.count("there already")) == (0, 2)


def test_they_compile_at_once(workspace: Path) -> None:
    code, said = jit(workspace, "kernels:gen_one", "kernels:gen_other")
    assert (code, said.count("compiled")) == (0, 2), said


def test_a_function_that_compiles_when_called_is_given_its_arguments(workspace: Path) -> None:
    (workspace / "torch.py").write_text("bfloat16 = 'bfloat16'\n")
    code, said = jit(workspace, "kernels:compile_now(128, torch.bfloat16)", "kernels:compile_now(64, 'bfloat16', 'x')")
    assert code == 0, said
    assert {path.name for path in (workspace / "cache").iterdir()} == {"now-128.so", "x-64.so"}
    code, said = jit(workspace, "kernels:compile_now(128, torch.no_such_type)")
    assert code == 0 and "unknown here" in said


def test_one_with_arguments_that_does_not_compile_is_left_to_the_servers(workspace: Path) -> None:
    code, said = jit(workspace, "kernels:compile_now(128, 'float8')", "kernels:gen_norm")
    assert code == 0
    assert "kernels:compile_now(128, 'float8'): left to the servers: float8" in said
    assert "kernels:gen_norm: compiled" in said


def test_a_guess_that_ends_its_process_takes_no_other_kernel_with_it(workspace: Path) -> None:
    shutil.copy(next(Path("/lib").glob("*/libm.so.6")), workspace / "libcuda.so.1")
    words = ["kernels:crash(134)", "kernels:gen_norm"]  # as abort() ends it
    code, said = jit(workspace, *words, inside=False, LD_LIBRARY_PATH=str(workspace))
    assert code == 0 and (workspace / "cache/norm.so").exists(), said
    assert "ended with 134, left to the servers: kernels:crash(134)" in said


@pytest.mark.parametrize(("name", "code"), [("kernels:crash(0)", 0), ("kernels:gen_held", 1)])
def test_one_that_does_not_end_is_ended(workspace: Path, name: str, code: int) -> None:
    shutil.copy(next(Path("/lib").glob("*/libm.so.6")), workspace / "libcuda.so.1")
    os.mkfifo(workspace / "cache/held")
    ended, said = jit(workspace, "--limit", "1", name, inside=False, LD_LIBRARY_PATH=str(workspace))
    assert ended == code and "not done within 1 s" in said
    assert ("left to the servers: kernels:crash(0)" in said) == (code == 0)


@pytest.mark.parametrize("knows", [True, False])
def test_one_file_is_compiled_on_all_cores_where_nvcc_can(workspace: Path, knows: bool) -> None:
    nvcc = workspace / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho '{'--split-compile <number>' if knows else '--threads <number>'}'\n")
    nvcc.chmod(0o755)
    variables = {"CUDA_HOME": str(workspace / "cuda"), "NVCC_APPEND_FLAGS": "-lineinfo"}
    assert jit(workspace, "kernels:compile_now(1, 'bfloat16')", **variables)[0] == 0
    flags = (workspace / "cache/now-1.so").read_text()
    assert flags == ("-lineinfo --split-compile=0" if knows else "-lineinfo")


@pytest.mark.parametrize("name", ["kernels", "kernels:a:b", "kernels:a(1"])
def test_what_is_no_generator_is_wrong_usage(workspace: Path, name: str) -> None:
    code, said = jit(workspace, name)
    assert code == 2 and f"{name} is not MODULE:FUNCTION" in said


def test_what_was_compiled_with_other_flags_is_compiled_again(workspace: Path) -> None:
    jit(workspace, "kernels:gen_norm")
    code, said = jit(workspace, "kernels:gen_norm", CC="other")
    assert (code, said.splitlines()) == (0, ["pd-jit: kernels:gen_norm: compiled"])


def test_one_that_does_not_compile_fails_with_the_compilers_line_and_the_others_are_done(workspace: Path) -> None:
    code, said = jit(workspace, "kernels:gen_broken", "kernels:gen_norm")
    assert code == 1
    assert "kernels:gen_broken: failed: fatal error: cuda_runtime.h: No such file or directory" in said
    assert "kernels:gen_norm: compiled" in said


@pytest.mark.parametrize("name", ["kernels:gen_unknown", "no_such_package:gen_norm"])
def test_one_that_this_version_does_not_know_is_left_to_the_servers(workspace: Path, name: str) -> None:
    code, said = jit(workspace, name)
    assert code == 0 and f"{name}: unknown here" in said


def test_without_the_drivers_library_it_says_what_it_skipped_and_leaves_its_mark(workspace: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        expected = "pd-jit: skipped, this host has no libcuda.so.1: kernels:gen_norm"
    else:
        expected = "pd-jit: kernels:gen_norm: compiled"
    mark = workspace / "mark"
    code, said = jit(workspace, "--keep", str(mark), "kernels:gen_norm", inside=False)
    assert code == 0 and said.startswith(expected)
    assert mark.read_text() == "kernels:gen_norm\n", "the next run need not ask again"


def test_killed_while_it_compiles_it_leaves_no_mark_and_goes_on_the_next_time(workspace: Path) -> None:
    driver = workspace / "libcuda.so.1"  # only whether it can be loaded is looked at
    shutil.copy(next(Path("/lib").glob("*/libm.so.6")), driver)
    words = ["--keep", str(workspace / "mark"), "kernels:gen_norm", "kernels:gen_held"]
    held = workspace / "cache" / "held"
    os.mkfifo(held)
    running = subprocess.Popen(
        [*COMMAND, *words], env=environment(workspace, LD_LIBRARY_PATH=str(workspace)), start_new_session=True
    )
    made = [workspace / "cache" / name for name in ("norm.so", "held.so")]
    until(lambda: all(path.exists() for path in made), "one is compiled, one is half there", 60)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not (workspace / "mark").exists()

    held.unlink()
    held.touch()
    code, said = jit(workspace, *words, inside=False, LD_LIBRARY_PATH=str(workspace))
    assert code == 0
    assert sorted(said.splitlines()) == [
        "pd-jit: kernels:gen_held: compiled",
        "pd-jit: kernels:gen_norm: there already",
    ]
    assert made[1].read_text() == made[0].read_text() and (workspace / "mark").exists()


def test_wrong_usage_is_one_line(workspace: Path) -> None:
    code, said = jit(workspace, "kernels.gen_norm")
    assert code == 2 and "kernels.gen_norm is not MODULE:FUNCTION" in said


def test_the_servers_variables_come_over_standard_input(workspace: Path) -> None:
    shutil.copy(next(Path("/lib").glob("*/libm.so.6")), workspace / "libcuda.so.1")
    folder = str(workspace / "cache")
    told = json.dumps({"FLASHINFER_WORKSPACE_BASE": folder, "CC": "of-the-servers", "PYTHONPATH": str(workspace)})
    ran = subprocess.run(
        [*COMMAND, "--environment", "-", "kernels:gen_norm"],
        input=told, env={**os.environ, "LD_LIBRARY_PATH": str(workspace)}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (workspace / "cache/norm.so").read_text() == "of-the-servers"


@pytest.mark.parametrize(("told", "line"), [("{", "is not JSON"), ('{"A": 1}', "is no JSON object of strings")])
def test_variables_that_cannot_be_read(workspace: Path, told: str, line: str) -> None:
    shutil.copy(next(Path("/lib").glob("*/libm.so.6")), workspace / "libcuda.so.1")
    ran = subprocess.run(
        [*COMMAND, "--environment", "-", "kernels:gen_norm"],
        input=told, env={**os.environ, "LD_LIBRARY_PATH": str(workspace)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr.strip().count("\n")) == (2, 0) and line in ran.stderr
