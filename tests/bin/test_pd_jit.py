"""pd-jit against a package that stands in for FlashInfer: what compiles, what is there, what is unknown, what fails."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bin.tools import BIN

PACKAGE = """
import os, pathlib
FOLDER = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"])
class Spec:
    def __init__(self, name, fails=None):
        self.path, self.fails = FOLDER / (name + ".so"), fails
    @property
    def is_compiled(self):
        return self.path.exists()
    def build(self, verbose):
        if self.fails:
            raise RuntimeError("ninja: \\\\n" + self.fails + "\\\\nninja stopped")
        self.path.write_text("compiled")
def gen_norm(): return Spec("norm")
def gen_sampling(): return Spec("sampling")
def gen_broken(): return Spec("broken", "fatal error: cuda_runtime.h: No such file or directory")
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(PACKAGE.replace("\\\\n", "\\n"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def jit(workspace: Path, *generators: str, inside: bool = True, python: str = sys.executable) -> tuple[int, str, str]:
    """inside: as on a host with a driver, which this machine need not have."""
    environment = {
        **os.environ, "PYTHONPATH": str(workspace), "FLASHINFER_WORKSPACE_BASE": str(workspace / "cache"),
    }  # fmt: skip
    command = [sys.executable, str(BIN / "pd-jit"), "--python", python, *(["--inside"] if inside else []), *generators]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    return ran.returncode, ran.stdout, ran.stderr


def test_kernels_are_compiled_once(workspace: Path) -> None:
    code, said, _ = jit(workspace, "kernels:gen_norm", "kernels:gen_sampling")
    assert code == 0
    assert said.splitlines() == ["kernels:gen_norm: compiled in 0 s", "kernels:gen_sampling: compiled in 0 s"]
    assert {path.name for path in (workspace / "cache").iterdir()} == {"norm.so", "sampling.so"}
    code, said, _ = jit(workspace, "kernels:gen_norm", "kernels:gen_sampling")
    assert (code, said.count("there already")) == (0, 2)


def test_one_that_does_not_compile_fails_with_the_compilers_line_after_the_others(workspace: Path) -> None:
    code, said, _ = jit(workspace, "kernels:gen_broken", "kernels:gen_norm")
    assert code == 1
    assert "kernels:gen_broken: failed: fatal error: cuda_runtime.h: No such file or directory" in said
    assert "kernels:gen_norm: compiled" in said


@pytest.mark.parametrize("name", ["kernels:gen_other", "no_such_package:gen_norm"])
def test_one_that_this_version_does_not_know_is_left_to_the_servers(workspace: Path, name: str) -> None:
    code, said, _ = jit(workspace, name)
    assert code == 0 and f"{name}: unknown here" in said


def test_without_the_drivers_library_it_says_what_it_skipped(workspace: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        code, said, _ = jit(workspace, "kernels:gen_norm", inside=False)
        assert code == 0 and said.startswith("skipped, this host has no libcuda.so.1: kernels:gen_norm")
    else:
        code, said, _ = jit(workspace, "kernels:gen_norm", inside=False)
        assert code == 0 and "compiled" in said


def test_wrong_usage_is_one_line(workspace: Path) -> None:
    code, _, said = jit(workspace, "kernels.gen_norm")
    assert code == 2 and "kernels.gen_norm is not MODULE:FUNCTION" in said
