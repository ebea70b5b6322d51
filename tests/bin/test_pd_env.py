"""pd-env: on a real virtual environment with small wheels made here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bin.tools import BIN, load, run
from tests.bin.wheels import wheel

env_tool = load("pd-env")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class Environment:
    """A virtual environment with three distributions, its lock and a record."""

    root: Path
    lock: Path

    @property
    def site_packages(self) -> Path:
        return self.root / "lib" / PYTHON / "site-packages"

    def check(self) -> tuple[int, dict[str, Any]]:
        done = run("pd-env", "check", self.root, "--lock", self.lock, "--json")
        told = json.loads(done.stdout)
        record = told.pop("record", None)
        assert record is None or record == hashlib.sha256((self.root / ".pd-env.json").read_bytes()).hexdigest()
        return done.returncode, told

    def record(self) -> None:
        done = run("pd-env", "record", self.root)
        assert done.returncode == 0, done.stderr

    def pin(self, old: str, new: str) -> None:
        text = self.lock.read_text()
        assert old in text
        self.lock.write_text(text.replace(old, new))


LOCK = """\
# made by hand
--find-links wheels
alpha-pkg==1.2.0 \\
    --hash=sha256:0000 \\
    --hash=sha256:1111
Beta_Pkg[fast]==2.0.post1   # via alpha
torch==2.13.0
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; each test changes a copy."""
    folder = tmp_path_factory.mktemp("template")
    env = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    wheels = [
        wheel(
            folder, "alpha_pkg", "1.2.0", {"alpha/__init__.py": "x = 1\n", "alpha/data/a.txt": "a\n"},
            script="alpha = alpha:main",
        ),
        wheel(folder, "beta_pkg", "2.0.post1", {"beta.py": "y = 2\n"}),
        wheel(
            folder, "torch", "2.13.0+cpu",
            {"torch/__init__.py": "__version__ = '2.13.0+cpu'\n", "torch/version.py": "cuda = None\n"},
        ),
    ]  # fmt: skip
    install(env, *wheels)
    return env


def install(env: Path, *wheels: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-cache", "--no-deps",
         "--python", env / "bin/python", *wheels],
        check=True,
    )  # fmt: skip


@pytest.fixture
def environment(tmp_path: Path, template: Path) -> Environment:
    shutil.copytree(template, tmp_path / "env", symlinks=True)
    lock = tmp_path / "requirements.txt"
    lock.write_text(LOCK)
    made = Environment(tmp_path / "env", lock)
    made.record()
    return made


NOTHING: dict[str, Any] = {
    "whole": True,
    "packages": {"missing": [], "extra": [], "version": []},
    "files": {"missing": [], "changed": [], "extra": []},
    "distributions_affected": [],
    "unowned": [],
    "patched": [],
}


# --- whole ------------------------------------------------------------------------------------------------------------


def test_an_untouched_environment_is_whole(environment: Environment) -> None:
    assert environment.check() == (0, NOTHING)


def test_no_two_records_are_the_same(environment: Environment) -> None:
    """A server that was started before a repair is told from one that was started after it."""
    before = (environment.root / ".pd-env.json").read_bytes()
    environment.record()
    assert (environment.root / ".pd-env.json").read_bytes() != before


def test_the_record_holds_every_file_with_its_hash_and_owner(environment: Environment) -> None:
    content = json.loads((environment.root / ".pd-env.json").read_text())
    assert content["distributions"] == {"alpha-pkg": "1.2.0", "beta-pkg": "2.0.post1", "torch": "2.13.0+cpu"}
    on_disk = {
        str(path.relative_to(environment.root))
        for path in environment.root.rglob("*")
        if (path.is_file() or path.is_symlink()) and not path.relative_to(environment.root).parts[0].startswith(".")
    }
    assert set(content["files"]) == {path for path in on_disk if "/lib64/" not in path and "__pycache__" not in path}
    for path, (size, mtime_ns, mode, sha256, _) in content["files"].items():
        file = environment.root / path
        if file.is_symlink():
            assert sha256 == f"-> {file.readlink()}"
        else:
            status = file.stat()
            assert (size, mtime_ns, mode) == (status.st_size, status.st_mtime_ns, status.st_mode & 0o7777)
            assert sha256 == hashlib.sha256(file.read_bytes()).hexdigest(), path
    site_packages = environment.site_packages.relative_to(environment.root)
    assert content["files"][f"{site_packages}/alpha/data/a.txt"][4] == "alpha-pkg"
    assert content["files"]["bin/alpha"][4] == "alpha-pkg"
    assert content["files"]["bin/activate"][4] == ""


def touch(environment: Environment) -> None:
    os.utime(environment.site_packages / "beta.py", (1, 1))


def compile_bytecode(environment: Environment) -> None:
    subprocess.run([environment.root / "bin/python", "-m", "compileall", "-q", environment.site_packages], check=True)
    assert list(environment.site_packages.rglob("*.pyc"))


def place_overlay(environment: Environment) -> None:
    overlay = environment.site_packages / "pd_overlay_x"
    overlay.mkdir()
    (overlay / "__init__.py").write_text("")
    (environment.site_packages / "pd_overlay_x.pth").write_text("import pd_overlay_x\n")


def leave_a_lock_file(environment: Environment) -> None:
    (environment.root / ".lock").write_text("")


@pytest.mark.parametrize("change", [touch, compile_bytecode, leave_a_lock_file])
def test_what_does_not_count(environment: Environment, change: Callable[[Environment], None]) -> None:
    change(environment)
    assert environment.check() == (0, NOTHING)


def test_an_overlay_that_nobody_recorded_is_extra(environment: Environment) -> None:
    place_overlay(environment)
    found = environment.check()[1]
    assert [Path(path).name for path in found["files"]["extra"]] == ["pd_overlay_x.pth", "__init__.py"]


def test_files_of_patches_belong_to_them(environment: Environment) -> None:
    """A patched file as long as its original is recorded as it is, and its package is not to be installed again."""
    place_overlay(environment)
    file = environment.site_packages / "beta.py"
    file.write_text("y = 3\n")
    base = f"lib/{PYTHON}/site-packages"
    overlay = [f"{base}/pd_overlay_x/__init__.py", f"{base}/pd_overlay_x.pth"]
    patched = {f"{base}/beta.py": "mine", overlay[0]: "x", overlay[1]: "x"}
    done = run("pd-env", "record", environment.root, "--patched", json.dumps(patched))
    assert done.returncode == 0, done.stderr
    touch(environment)
    assert environment.check() == (0, NOTHING)
    file.write_text("y = 2\n")  # the original
    (environment.root / overlay[1]).unlink()
    found = environment.check()[1]
    assert found["patched"] == [f"{base}/beta.py", overlay[1]]
    assert (found["files"]["changed"], found["files"]["missing"]) == ([f"{base}/beta.py"], [overlay[1]])
    assert (found["distributions_affected"], found["unowned"]) == ([], [])


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "1"])
def test_a_list_of_patched_files_that_is_none(environment: Environment, text: str) -> None:
    done = run("pd-env", "record", environment.root, "--patched", text)
    assert done.returncode == 2
    assert "--patched is not an object in JSON" in done.stderr


def test_a_file_that_is_not_as_its_wheel_says_is_recorded_as_it_is(environment: Environment) -> None:
    (environment.site_packages / "beta.py").write_text("y = 2222\n")
    environment.record()
    touch(environment)
    assert environment.check() == (0, NOTHING)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_changed_file(environment: Environment) -> None:
    (environment.site_packages / "alpha/__init__.py").write_text("x = 3\n")  # as long as before
    code, found = environment.check()
    assert (code, found["whole"]) == (1, False)
    path = str((environment.site_packages / "alpha/__init__.py").relative_to(environment.root))
    assert found["files"] == {"missing": [], "changed": [path], "extra": []}
    assert found["distributions_affected"] == ["alpha-pkg"]


def test_a_changed_file_with_its_old_time(environment: Environment) -> None:
    file = environment.site_packages / "beta.py"
    before = file.stat()
    file.write_text("y = 22\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert environment.check()[1]["distributions_affected"] == ["beta-pkg"]


def test_a_missing_file(environment: Environment) -> None:
    (environment.site_packages / "beta.py").unlink()
    code, found = environment.check()
    assert code == 1
    assert [Path(path).name for path in found["files"]["missing"]] == ["beta.py"]
    assert found["distributions_affected"] == ["beta-pkg"]


def test_a_changed_mode(environment: Environment) -> None:
    (environment.root / "bin/alpha").chmod(0o644)
    code, found = environment.check()
    assert (code, found["files"]["changed"]) == (1, ["bin/alpha"])
    assert found["distributions_affected"] == ["alpha-pkg"]


def test_an_extra_file(environment: Environment) -> None:
    (environment.site_packages / "alpha/injected.py").write_text("")
    (environment.site_packages / "alpha/pd_overlay_y.py").write_text("")
    code, found = environment.check()
    assert code == 1
    assert [Path(path).name for path in found["files"]["extra"]] == ["injected.py", "pd_overlay_y.py"]
    assert found["distributions_affected"] == []


def test_a_file_that_no_distribution_owns(environment: Environment) -> None:
    (environment.root / "bin/activate").write_text("")
    python = environment.root / "bin/python"
    python.unlink()
    python.symlink_to("/nonexistent/python")
    code, found = environment.check()
    assert (code, found["files"]["changed"]) == (1, ["bin/activate", "bin/python"])
    assert (found["distributions_affected"], found["unowned"]) == ([], ["bin/activate", "bin/python"])


def test_a_file_that_became_a_link_or_a_folder(environment: Environment) -> None:
    (environment.site_packages / "beta.py").unlink()
    (environment.site_packages / "beta.py").symlink_to("alpha/__init__.py")
    (environment.site_packages / "alpha/data/a.txt").unlink()
    (environment.site_packages / "alpha/data/a.txt").mkdir()
    code, found = environment.check()
    assert code == 1
    assert [Path(path).name for path in found["files"]["changed"]] == ["beta.py"]
    assert [Path(path).name for path in found["files"]["missing"]] == ["a.txt"]


# --- distributions ----------------------------------------------------------------------------------------------------


def test_another_version_than_the_lock(environment: Environment) -> None:
    environment.pin("alpha-pkg==1.2.0", "alpha-pkg==1.3.0")
    code, found = environment.check()
    assert code == 1
    assert found["packages"]["version"] == [{"name": "alpha-pkg", "wanted": "1.3.0", "found": "1.2.0"}]
    assert found["distributions_affected"] == ["alpha-pkg"]


def test_another_version_installed_by_hand_lists_no_files(environment: Environment, tmp_path: Path) -> None:
    install(environment.root, wheel(tmp_path, "beta_pkg", "2.1", {"beta.py": "y = 21\n", "beta_more.py": "\n"}))
    code, found = environment.check()
    assert code == 1
    assert found["packages"]["version"] == [{"name": "beta-pkg", "wanted": "2.0.post1", "found": "2.1"}]
    assert found["files"] == {"missing": [], "changed": [], "extra": []}
    assert found["distributions_affected"] == ["beta-pkg"]


def test_a_package_too_many_lists_no_files(environment: Environment, tmp_path: Path) -> None:
    install(environment.root, wheel(tmp_path, "gamma", "1.0", {"gamma.py": ""}))
    code, found = environment.check()
    assert code == 1
    assert found["packages"] == {"missing": [], "extra": ["gamma"], "version": []}
    assert found["files"]["extra"] == []
    assert found["distributions_affected"] == []


def test_a_package_that_was_removed(environment: Environment) -> None:
    python = environment.root / "bin/python"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "uninstall", "--quiet", "--python", python, "beta_pkg"], check=True
    )
    code, found = environment.check()
    assert code == 1
    assert found["packages"]["missing"] == ["beta-pkg"]
    assert found["files"]["missing"] == []
    assert found["distributions_affected"] == ["beta-pkg"]


@pytest.mark.parametrize(
    ("found", "wanted", "satisfied"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.0+cu130", "2.13.0+cpu", False),
        ("1.0", "1.0.0", True),
        ("1.0.post1", "1.0.0.post1", True),
        ("1.0.post1", "1.0", False),
        ("1.10", "1.1", False),
        ("10", "1", False),
        ("1.0rc1", "1.0.0rc1", True),
        ("2026.10.19.post1", "2026.10.19.post1", True),
        ("3.4", None, True),
    ],
)
def test_versions(found: str, wanted: str | None, satisfied: bool) -> None:
    assert env_tool.satisfies(found, wanted) is satisfied


def test_a_lock_names_archives_too(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("alpha @ https://example.invalid/alpha-1.0-py3-none-any.whl \\\n    --hash=sha256:00\nb.c==1\n")
    assert env_tool.read_lock(lock) == {"alpha": None, "b-c": "1"}


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 0}', '{"format": 1, "files": {"x": [1]}}'])
def test_without_a_usable_record_nothing_can_be_said(environment: Environment, content: str | None) -> None:
    record = environment.root / ".pd-env.json"
    record.unlink()
    if content is not None:
        record.write_text(content)
    assert environment.check() == (3, {"whole": False, "reason": f"no usable record {record}"})


@pytest.mark.parametrize(
    ("lock", "reason"),
    [
        (None, "No such file or directory"),
        ("", "pins nothing"),
        ("alpha>=1\n", "not NAME==VERSION"),
        ("alpha==1.*\n", "not NAME==VERSION"),
        ("alpha==1 ; python_version < '3.12'\n", "not NAME==VERSION"),
    ],
)
def test_a_lock_that_cannot_be_used(environment: Environment, lock: str | None, reason: str) -> None:
    environment.lock.unlink()
    if lock is not None:
        environment.lock.write_text(lock)
    done = run("pd-env", "check", environment.root, "--lock", environment.lock)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["record", "probe-router"])
def test_a_folder_that_is_no_environment(tmp_path: Path, command: str) -> None:
    done = run("pd-env", command, tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"pd-env: {tmp_path} is not a virtual environment (no pyvenv.cfg)\n"


def test_in_words(environment: Environment) -> None:
    (environment.site_packages / "beta.py").unlink()
    environment.pin("alpha-pkg==1.2.0", "alpha-pkg==1.3.0")
    done = run("pd-env", "check", environment.root, "--lock", environment.lock)
    path = (environment.site_packages / "beta.py").relative_to(environment.root)
    assert done.stdout.splitlines() == [
        "not whole",
        "  other version: alpha-pkg: 1.2.0 instead of 1.3.0",
        f"  file missing: {path}",
        "  install again: alpha-pkg",
        "  install again: beta-pkg",
    ]


# --- probe ------------------------------------------------------------------------------------------------------------

NIXL = """\
class nixl_agent_config:
    def __init__(self, backends):
        assert backends == []

class nixl_agent:
    def __init__(self, name, config):
        pass
    def get_plugin_list(self):
        return ["POSIX", "UCX"]
"""
EXPECT: dict[str, Any] = {"imports": ["torch"], "torch": "2.13.0", "cuda": None, "nixl_plugins": ["UCX"]}


@pytest.fixture
def probed(environment: Environment) -> Environment:
    nixl = environment.site_packages / "nixl"
    nixl.mkdir()
    (nixl / "__init__.py").write_text("")
    (nixl / "_api.py").write_text(NIXL)
    return environment


def probe(environment: Environment, expect: dict[str, Any], *more: object) -> tuple[int, dict[str, Any]]:
    (environment.root.parent / "expect.json").write_text(json.dumps(expect))
    done = run("pd-env", "probe", environment.root, "--expect", environment.root.parent / "expect.json", *more)
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["ok"] is (done.returncode == 0)
    return done.returncode, content


def failed(content: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["reason"] for entry in content["checks"] if not entry["ok"]}


def add_module(environment: Environment, name: str, text: str) -> None:
    (environment.site_packages / f"{name}.py").write_text(text)


def test_a_good_environment(probed: Environment) -> None:
    code, content = probe(probed, EXPECT)
    assert code == 0, content
    assert [entry["name"] for entry in content["checks"]] == [
        "import torch",
        "torch version",
        "torch CUDA version",
        "NIXL plugins",
        "loaded libraries",
    ]
    found = {entry["name"]: entry["found"] for entry in content["checks"]}
    assert found["torch version"] == "2.13.0+cpu"
    assert found["torch CUDA version"] is None
    assert found["NIXL plugins"] == ["POSIX", "UCX"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="no core is left to make byte code ahead")
@pytest.mark.parametrize("untouched", [False, True])
def test_other_cores_make_the_byte_code_of_folders_that_imports_enter(probed: Environment, untouched: bool) -> None:
    package = probed.site_packages / "package"
    package.mkdir()
    for name in ("__init__", "wanted", "beside"):
        (package / f"{name}.py").write_text("")
    (package / "broken.py").write_text("no python\n")
    code, content = probe(probed, {"imports": ["package.wanted"]}, *(["--untouched"] if untouched else []))
    assert code == 0, content
    made = {path.name.partition(".")[0] for path in package.glob("__pycache__/*.pyc")}
    assert made == (set() if untouched else {"__init__", "wanted", "beside"})


def test_the_environments_own_python_is_used_with_the_given_variables(probed: Environment) -> None:
    add_module(
        probed,
        "where",
        f"import os, sys\nassert sys.prefix == {str(probed.root)!r}\nassert os.environ['COLOUR'] == 'red'\n",
    )
    assert probe(probed, {"imports": ["where"], "environment": {"COLOUR": "red"}})[0] == 0
    assert "import where" in failed(probe(probed, {"imports": ["where"]})[1])


def test_expectations_come_over_standard_input_and_stand_in_no_command_line(probed: Environment) -> None:
    seen = "import pathlib; told = b''.join(p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/cmdline'))"
    (probed.site_packages / "looks.py").write_text(f"{seen}\nassert b'of-a-' + b'token' not in told\n")
    expect = {"imports": ["looks"], "environment": {"TOKEN": "of-a-token"}}
    command = [sys.executable, str(BIN / "pd-env"), "probe", str(probed.root), "--expect", "-"]
    ran = subprocess.run(command, input=json.dumps(expect), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ("expect", "name", "reason"),
    [
        ({"imports": ["sglang.launch_server"]}, "import sglang.launch_server", "ModuleNotFoundError: No module named"),
        ({"torch": "2.14.1"}, "torch version", "differs"),
        ({"cuda": "13.0"}, "torch CUDA version", "differs"),
        ({"nixl_plugins": ["UCX", "GDS"]}, "NIXL plugins", "missing: GDS"),
    ],
)
def test_what_differs_from_the_expectation(probed: Environment, expect: dict[str, Any], name: str, reason: str) -> None:
    code, content = probe(probed, expect)
    assert code == 1
    assert list(failed(content)) == [name]
    assert failed(content)[name].startswith(reason)


def test_nixl_that_is_missing(environment: Environment) -> None:
    code, content = probe(environment, {"nixl_plugins": ["UCX"]})
    assert code == 1
    assert failed(content) == {"NIXL plugins": "ModuleNotFoundError: No module named 'nixl'"}


def test_what_needs_a_gpu_is_said_to_be_skipped_where_there_is_none(probed: Environment) -> None:
    add_module(probed, "on_card", "raise OSError('libcuda.so.1: cannot open shared object file')\n")
    code, content = probe(probed, EXPECT | {"gpu_imports": ["on_card"]})
    entry = content["checks"][0]
    assert entry["name"] == "import on_card"
    if Path("/dev/nvidiactl").exists():
        assert code == 1 and not entry["skipped"] and "libcuda.so.1" in entry["reason"]
    else:
        assert code == 0 and entry["skipped"] and "no /dev/nvidiactl" in entry["reason"]
    assert not any(other["skipped"] for other in content["checks"][1:])


PARSER = """\
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--tp", type=int)
        parser.add_argument("--mode", choices=["null", "prefill"])
"""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--tp", "4", "--mode", "prefill"], None),
        (["--tp", "four"], "argument --tp: invalid int value: 'four'"),
        (["--mode", "decoding"], "argument --mode: invalid choice: 'decoding'"),
        (["--tpx", "4"], "unrecognized arguments: --tpx 4"),
    ],
)
def test_arguments_are_parsed_as_the_server_parses_them(
    probed: Environment, words: list[str], reason: str | None
) -> None:
    package = probed.site_packages / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "server_args.py").write_text(PARSER)
    code, content = probe(probed, {"arguments": {"prefill": ["--tp", "1"], "decode": words}})
    assert code == (1 if reason else 0)
    said = failed(content)
    assert list(said) == (["arguments of decode"] if reason else [])
    assert not reason or said["arguments of decode"].startswith(reason)


def test_a_release_without_the_parser_accepts_no_arguments(probed: Environment) -> None:
    code, content = probe(probed, {"arguments": {"decode": []}})
    assert code == 1 and "No module named 'sglang'" in failed(content)["arguments of decode"]


def test_an_import_that_exits_is_one_failure_and_the_rest_is_checked(probed: Environment) -> None:
    add_module(probed, "leaving", "raise SystemExit('no GPU')\n")
    code, content = probe(probed, EXPECT | {"imports": ["leaving", "torch"]})
    assert code == 1
    assert failed(content) == {"import leaving": "SystemExit: no GPU"}


def test_an_import_that_crashes(probed: Environment) -> None:
    add_module(probed, "crashing", "import os, sys\nprint('about to crash', file=sys.stderr, flush=True)\nos.abort()\n")
    code, content = probe(probed, EXPECT | {"imports": ["torch", "crashing"]})
    assert code == 1
    assert failed(content) == {"probe process": "killed by SIGABRT, last finished: import torch"}
    assert "about to crash" in content["output"]


def test_an_import_that_hangs_is_ended_with_its_children(probed: Environment, tmp_path: Path) -> None:
    child = tmp_path / "child"
    add_module(
        probed, "hanging",
        "import pathlib, subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '1000'])\npathlib.Path({str(child)!r}).write_text(str(child.pid))\n"
        "time.sleep(1000)\n",
    )  # fmt: skip
    code, content = probe(probed, {"imports": ["hanging"]}, "--limit", 8)
    assert code == 1
    assert failed(content) == {"probe process": "not finished within 8 s, last finished: nothing"}
    state = Path(f"/proc/{child.read_text()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_imports_print_does_not_disturb_the_result(probed: Environment) -> None:
    add_module(probed, "chatty", 'print(\'{"name": "done"}\')\n')
    assert probe(probed, {"imports": ["chatty", "torch"]})[0] == 0


@pytest.fixture
def foreign_library(tmp_path: Path) -> Path:
    """A shared object that lies neither in the environment nor among the system's libraries."""
    dynload = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    library = tmp_path / "elsewhere" / "libforeign.so.1"
    library.parent.mkdir()
    shutil.copy(next(dynload.glob("_json*.so")), library)
    return library


def test_a_library_from_elsewhere(probed: Environment, foreign_library: Path) -> None:
    add_module(probed, "loading", f"import ctypes\nctypes.CDLL({str(foreign_library)!r})\n")
    code, content = probe(probed, {"imports": ["loading"]})
    assert code == 1
    assert failed(content) == {"loaded libraries": "1 from elsewhere"}
    assert content["checks"][-1]["found"] == [str(foreign_library)]
    assert probe(probed, {"imports": ["loading"], "folders": [str(foreign_library.parent)]})[0] == 0


def test_a_library_of_the_environment(probed: Environment, foreign_library: Path) -> None:
    library = probed.site_packages / "own.so"
    shutil.copy(foreign_library, library)
    add_module(probed, "loading", f"import ctypes\nctypes.CDLL({str(library)!r})\n")
    assert probe(probed, {"imports": ["loading"]})[0] == 0


@pytest.mark.parametrize(
    ("expect", "reason"),
    [("{", "--expect is not JSON"), ('{"colour": 1}', "--expect: unknown colour"), ("", "No such file")],
)
def test_expectations_that_cannot_be_used(probed: Environment, expect: str, reason: str) -> None:
    path = probed.root.parent / "expect.json"
    path.write_text(expect)
    done = run("pd-env", "probe", probed.root, "--expect", path if expect else "/nonexistent")
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_python_that_is_missing(probed: Environment) -> None:
    (probed.root / "bin/python").unlink()
    code, content = probe(probed, EXPECT)
    assert code == 1
    assert "cannot run" in failed(content)["probe process"]


ROUTER = """\
import sys
if "--version" in sys.argv:
    print("sgl-model-gateway 0.3.2")
elif "--help" not in sys.argv:
    sys.exit("no arguments")
"""


def test_the_router(environment: Environment) -> None:
    package = environment.site_packages / "sglang_router"
    package.mkdir()
    for name, text in (("__init__", ""), ("__main__", ROUTER), ("launch_router", ROUTER)):
        (package / f"{name}.py").write_text(text)
    done = run("pd-env", "probe-router", environment.root)
    assert done.returncode == 0
    content = json.loads(done.stdout)
    assert [entry["ok"] for entry in content["checks"]] == [True, True]
    assert content["checks"][0]["found"] == "sgl-model-gateway 0.3.2"


def test_the_routers_arguments(environment: Environment) -> None:
    package = environment.site_packages / "sglang_router"
    package.mkdir()
    parser = "import argparse\n\ndef parse_router_args(words):\n    parser = argparse.ArgumentParser()\n"
    parser += "    parser.add_argument('--port', type=int)\n    return parser.parse_args(words)\n"
    texts = {"__init__": "", "__main__": ROUTER, "launch_router": f"{parser}\nif __name__ == '__main__':\n    pass\n"}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    assert run("pd-env", "probe-router", environment.root, "--arguments", '["--port", "8000"]').returncode == 0
    done = run("pd-env", "probe-router", environment.root, "--arguments", '["--port", "none"]')
    assert done.returncode == 1
    assert failed(json.loads(done.stdout)) == {"arguments of router": "argument --port: invalid int value: 'none'"}
    for wrong in ("{", '{"a": 1}', "[1]"):
        done = run("pd-env", "probe-router", environment.root, "--arguments", wrong)
        assert done.returncode == 2 and done.stderr.startswith("pd-env: --arguments is not")


def test_a_router_that_does_not_run(environment: Environment) -> None:
    done = run("pd-env", "probe-router", environment.root)
    assert done.returncode == 1
    content = json.loads(done.stdout)
    assert [entry["reason"] for entry in content["checks"]] == ["exit status 1", "exit status 1"]
    assert any("No module named" in line for line in content["output"])


# ---- variables


def write_source(environment: Environment) -> None:
    package = environment.site_packages / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "environ.py").write_text("SGLANG_HOST_IP = EnvStr('')\nSGLANG_ENABLE_X = EnvBool(False)\n")


def test_variables_that_the_source_reads(environment: Environment) -> None:
    write_source(environment)
    assert run("pd-env", "variables", environment.root, "SGLANG_HOST_IP", "SGLANG_ENABLE_X").returncode == 0


def test_a_variable_that_nobody_reads_is_named(environment: Environment) -> None:
    write_source(environment)
    done = run("pd-env", "variables", environment.root, "SGLANG_HOST_IP", "SGLANG_ENABLE_XX", "SGLANG_ENABLE")
    assert done.returncode == 1
    unread = "service/environment/known: no installed code reads"
    assert done.stderr.splitlines() == [f"{unread} SGLANG_ENABLE_XX", f"{unread} SGLANG_ENABLE"]


def test_a_source_without_a_variable_is_no_answer(environment: Environment) -> None:
    done = run("pd-env", "variables", environment.root, "SGLANG_HOST_IP")
    assert done.returncode == 2
    assert "names no variable at all" in done.stderr
