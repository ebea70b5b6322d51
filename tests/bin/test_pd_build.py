"""pd-build with the real uv: tiny wheels in a folder or behind an index on loopback, no network.

Where packages come from: test_package_sources.py.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.bin.indexes import index
from tests.bin.tools import BIN, load
from tests.bin.wheels import pin, wheel

UV = Path(sys.executable).parent / "uv"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"lib/python{PYTHON}/site-packages"


pd_build = load("pd-build")


# --- wheels and locks ------------------------------------------------------------------------------------


ALPHA = {"alpha/__init__.py": "def where():\n    print(__file__)\n\n\ndef fail():\n    raise RuntimeError\n"}
BETA = {"beta/__init__.py": "value = 1\n", "beta/deep/er.py": "value = 2\n", "common/__init__.py": "shared = 1\n"}
ROUTE = {"route.py": "value = 3\n", "common/__init__.py": "shared = 1\n"}


@dataclass
class Host:
    """A folder with everything that one build needs."""

    root: Path
    spec: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wheels = self.root / "wheels"
        self.alpha = wheel(self.wheels, "alpha", "1.0", ALPHA, "alpha-where = alpha:where")
        self.beta = wheel(self.wheels, "beta", "2.0", BETA)
        self.route = wheel(self.wheels, "route", "3.0", ROUTE)
        self.spec = {
            "id": "r1",
            "mark": {"name": "tiny-1.0", "patches": {}},
            "python": PYTHON,
            "releases": str(self.root / "releases"),
            "uv": str(UV),
            "cache": str(self.root / "cache"),
            "pd_env": str(BIN / "pd-env"),
            "pd_patch": str(BIN / "pd-patch"),
            "extra_index_urls": [],
            "find_links": [],
            "wheelhouse": str(self.wheels),
        }
        (self.root / "uv_lock.txt").write_text("uv==0.0\n")
        self.spec["uv_lock"] = str(self.root / "uv_lock.txt")
        self.lock(pin(self.alpha) + pin(self.beta), pin(self.route))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "XDG_", "SSL_"))}
        # no configuration of this machine, and no waiting between the attempts of uv
        self.environ = kept | {"HOME": str(self.root), "PIP_CONFIG_FILE": os.devnull, "UV_HTTP_RETRIES": "0"}

    def lock(self, env: str, router: str) -> None:
        for key, text in (("lock", env), ("router_lock", router)):
            path = self.root / f"{key}.txt"
            path.write_text(text)
            self.spec[key] = str(path)
        self.spec["lock_sha256"] = hashlib.sha256(env.encode()).hexdigest()

    @property
    def releases(self) -> Path:
        return self.root / "releases"

    def command(self, command: str) -> list[str]:
        path = self.root / f"{self.spec['id']}.json"
        path.write_text(json.dumps(self.spec))
        return [sys.executable, str(BIN / "pd-build"), command, "--spec", str(path)]

    def run(self, command: str = "build") -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(command), env=self.environ, capture_output=True, text=True, timeout=120)

    def start(self, command: str = "build") -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(command), env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def left(self) -> list[str]:
        """What stands in the folder of releases, the lock file aside."""
        return sorted(p.name for p in self.releases.iterdir() if p.name != ".pd-build.lock")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host with one release, to be copied: a build takes a second or more."""
    host = Host(tmp_path_factory.mktemp("template"))
    done = host.run()
    assert done.returncode == 0, done.stderr
    return host.root


@pytest.fixture
def built(host: Host, template: Path) -> Host:
    """A host with the release r1. Copied with its hard links: the cache and the release share files."""
    subprocess.run(["cp", "-a", template / "releases", template / "cache", host.root], check=True)
    return host


def contents(place: Path) -> dict[str, str]:
    """Path -> mode and sha256 (or target) of everything below, byte code aside."""
    found = {}
    for path in place.rglob("*"):
        if "__pycache__" in path.parts or path.name in (".pd-env.json", "uv_cache.json", "RECORD"):
            continue  # RECORD names uv_cache.json, which holds a time
        mode = oct(path.lstat().st_mode)
        if path.is_symlink():
            found[str(path.relative_to(place))] = f"{mode} -> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(place))] = f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            found[str(path.relative_to(place))] = mode
    return found


def asked(python: Path, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def from_index(host: Host, url: str) -> None:
    host.spec |= {"index_url": url, "wheelhouse": None}


# --- build -----------------------------------------------------------------------------------------------


def test_release_is_whole_and_works_where_it_stands(host: Host) -> None:
    built = host
    assert host.run().returncode == 0
    release = built.releases / "r1"
    assert built.left() == ["r1"]
    assert json.loads((release / "release.json").read_text()) == built.spec["mark"]
    assert asked(release / "env/bin/python", "import alpha, beta, beta.deep.er; print(beta.value)") == "1"
    assert asked(release / "router/bin/python", "import route; print(route.value)") == "3"
    script = subprocess.run([release / "env/bin/alpha-where"], capture_output=True, text=True, timeout=60)
    assert script.stdout.strip() == str(release / "env" / SITE / "alpha/__init__.py")
    for name, lock in (("env", "lock"), ("router", "router_lock")):
        check = [str(BIN / "pd-env"), "check", str(release / name), "--lock", built.spec[lock], "--json"]
        done = subprocess.run(check, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_every_file_is_readable_by_the_service_user(built: Host) -> None:
    closed = []
    for path in [built.releases / "r1", *(built.releases / "r1").rglob("*")]:
        wanted = 0o005 if path.is_dir() else 0o004
        if not path.is_symlink() and path.stat().st_mode & wanted != wanted:
            closed.append(str(path))
    assert closed == []


def test_the_probe_leaves_fresh_byte_code_of_what_it_imports(built: Host) -> None:
    """The service user may not write any, so it is made by the check that imports what the servers import."""
    env = built.releases / "r1/env"
    expect = json.dumps({"imports": ["alpha"]})
    probed = subprocess.run(
        [sys.executable, BIN / "pd-env", "probe", env, "--expect", "-"], input=expect,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert probed.returncode == 0, probed.stdout + probed.stderr
    source = env / SITE / "alpha/__init__.py"
    header = Path(importlib.util.cache_from_source(str(source))).read_bytes()[:16]
    assert int.from_bytes(header[8:12], "little") == int(source.stat().st_mtime)
    assert int.from_bytes(header[12:16], "little") == source.stat().st_size


def test_a_traceback_names_the_final_place(built: Host) -> None:
    code = "import alpha, traceback\ntry:\n    alpha.fail()\nexcept RuntimeError:\n    print(traceback.format_exc())"
    trace = asked(built.releases / "r1/env/bin/python", code)
    assert f'File "{built.releases / "r1/env" / SITE}/alpha/__init__.py"' in trace
    assert ".building" not in trace


def test_there_already_is_done_without_touching_anything(built: Host) -> None:
    before = {p: p.lstat().st_mtime_ns for p in (built.releases / "r1").rglob("*")}
    built.spec["uv"] = "/bin/false"
    done = built.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "there already" in done.stdout
    assert {p: p.lstat().st_mtime_ns for p in (built.releases / "r1").rglob("*")} == before


def test_second_release_shares_files_with_the_first(host: Host) -> None:
    for release in ("r1", "r2"):
        host.spec["id"] = release
        assert host.run().returncode == 0
    assert host.left() == ["r1", "r2"]
    first, second = (host.releases / r / "env" / SITE / "alpha/__init__.py" for r in ("r1", "r2"))
    assert first.samefile(second)


def failed(host: Host, done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The run failed with one line on stderr that holds `words`, and left nothing."""
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("pd-build: ")
    for word in words:
        assert word in done.stderr
    assert host.left() == []


def test_wrong_hash_names_the_package(host: Host) -> None:
    host.lock(pin(host.alpha, "0" * 64) + pin(host.beta), pin(host.route))
    failed(host, host.run(), "alpha==1.0", "hash mismatch")


def test_failure_of_the_second_environment_leaves_nothing(host: Host) -> None:
    host.lock(pin(host.alpha) + pin(host.beta), pin(host.route, "0" * 64))
    done = host.run()
    assert "env from lock.txt" in done.stdout
    failed(host, done, "route==3.0", "hash mismatch")


def test_lock_without_hashes_is_refused(host: Host) -> None:
    host.lock("alpha==1.0\n", pin(host.route))
    failed(host, host.run(), "alpha", "hash")


def test_wheel_folder_that_lacks_one_wheel_names_it(host: Host) -> None:
    host.beta.unlink()
    failed(host, host.run(), "beta==2.0", "not found", f"cd {host.wheels} && sha256sum -c SHA256SUMS")


def test_a_damaged_wheel_of_the_folder_is_named(host: Host) -> None:
    with host.beta.open("ab") as file:
        file.write(b"more")
    failed(host, host.run(), "beta==2.0", f"cd {host.wheels} && sha256sum -c SHA256SUMS")


def test_other_version_than_pinned_names_the_pin(host: Host) -> None:
    with index(host.wheels) as found:
        from_index(host, found.url)
        host.lock(pin(host.alpha).replace("1.0", "1.7"), pin(host.route))
        failed(host, host.run(), "alpha==1.7", "not found")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("503", ["HTTP 503 Service Unavailable", "/simple/"]),
        ("401", ["not found", "401 Unauthorized"]),
        ("half", ["==", "end of file before message length reached"]),
        ("wrong", ["==", "hash mismatch: the file found is not the one of the lock"]),
    ],
)
def test_faults_of_an_index(host: Host, fault: str, words: list[str]) -> None:
    with index(host.wheels, fault) as found:
        from_index(host, found.url)
        failed(host, host.run(), *words)
    with index(host.wheels) as found:
        from_index(host, found.url)
        assert host.run().returncode == 0, "the next run goes on"


def test_credentials_are_used_and_never_printed(host: Host) -> None:
    wanted = "Basic " + base64.b64encode(b"user:hush-hush").decode()
    for fault, code in (("503", 1), ("401", 1), ("", 0)):
        with index(host.wheels, fault) as found:
            from_index(host, found.url.replace("//", "//user:hush-hush@"))
            done = host.run()
        assert done.returncode == code
        assert wanted in found.authorizations
        assert "hush" not in done.stdout + done.stderr
        assert "//***@127.0.0.1" in done.stdout


FULL = """\
#!/bin/sh
# uv on a full disk: it places something, then says what uv 0.13 says
for last; do :; done
case "$*" in
  *" venv "*) mkdir -p "$last/bin" ;;
  *) cat >&2 <<END
Using Python 3.11.7 environment at: /releases/.r1.building/env
Resolved 2 packages in 0.84ms
error: Failed to install: alpha-1.0-py3-none-any.whl (alpha==1.0)
  cause: Failed to copy to \\`/releases/.r1.building/env/alpha-1.0.dist-info/RECORD\\`
  cause: failed to copy file from /cache/RECORD to /full/RECORD: No space left on device (os error 28)
END
    exit 2 ;;
esac
"""


def test_full_disk_is_a_clear_line_and_frees_what_was_taken(host: Host) -> None:
    uv = host.root / "uv"
    uv.write_text(FULL)
    uv.chmod(0o755)
    host.spec["uv"] = str(uv)
    failed(host, host.run(), "alpha==1.0: no space left on the file system of /full/RECORD")


def test_what_an_interrupted_build_left_is_not_trusted(host: Host, tmp_path: Path) -> None:
    assert host.run().returncode == 0
    good = contents(host.releases / "r1")
    left = host.releases / ".r1.building"
    (host.releases / "r1").rename(left)
    (left / "release.json").unlink()
    (left / "env" / SITE / "beta/deep/er.py").unlink()  # uv sees the distribution and calls it installed
    (left / "env" / SITE / "stray.py").write_text("")
    done = host.run()
    assert done.returncode == 0, done.stderr
    assert "interrupted" in done.stdout
    assert host.left() == ["r1"]
    assert contents(host.releases / "r1") == good


def test_interrupted_build_leaves_nothing_and_exits_1(host: Host) -> None:
    with index(host.wheels, held=True) as found:
        from_index(host, found.url)
        process = host.start()
        assert found.asked.wait(60)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr == "pd-build: stopped by SIGTERM\n"
    assert host.left() == []


def test_killed_build_is_waited_for_and_continued(host: Host) -> None:
    with index(host.wheels, held=True) as found:
        from_index(host, found.url)
        first = host.start()
        assert found.asked.wait(60)
        first.kill()
        first.wait(60)
        assert host.left() == [".r1.building"]
        second = host.start()  # uv, left behind by the first, still writes into the temporary place
        assert second.stdout is not None
        assert f"started by pid {first.pid}" in second.stdout.readline()
        found.go.set()
        _, stderr = second.communicate(timeout=120)
        first.communicate()
    assert second.returncode == 0, stderr
    assert host.left() == ["r1"]
    assert asked(host.releases / "r1/env/bin/python", "import alpha, beta; print(beta.value)") == "1"


def test_two_builds_at_once_make_one_release(host: Host) -> None:
    with index(host.wheels, held=True) as found:
        from_index(host, found.url)
        first = host.start()
        assert found.asked.wait(60)
        second = host.start()
        assert second.stdout is not None
        assert "another build is running" in second.stdout.readline()
        found.go.set()
        assert first.wait(120) == 0
        rest, _ = second.communicate(timeout=120)
        first.communicate()
    assert second.returncode == 0
    assert "there already" in rest
    assert host.left() == ["r1"]


def test_folder_that_is_no_release_makes_room(host: Host) -> None:
    (host.releases / "r1/env").mkdir(parents=True)
    assert host.run().returncode == 0
    assert host.left() == ["r1"]
    assert (host.releases / "r1/release.json").is_file()


def test_new_release_does_not_take_over_a_hand_edit_of_an_older_one(host: Host) -> None:
    assert host.run().returncode == 0
    edited = host.releases / "r1/env" / SITE / "alpha/__init__.py"
    poison(host, edited)
    host.spec["id"] = "r2"
    done = host.run()
    assert done.returncode == 0, done.stderr
    assert "alpha/__init__.py not as packed" in done.stdout
    assert (host.releases / "r2/env" / SITE / "alpha/__init__.py").read_text() == ALPHA["alpha/__init__.py"]


def test_wheel_whose_own_list_is_wrong_is_kept_as_its_archive_has_it(host: Host) -> None:
    odd = wheel(host.wheels, "odd", "1.0", {"odd.py": "value = 5\n"}, recorded={"odd.py": "value = 6\n"})
    host.lock(pin(odd) + pin(host.beta), pin(host.route))
    host.spec |= {"wheelhouse": None, "find_links": [str(host.wheels)]}  # else no setting of the host's uv holds
    host.environ |= {"UV_LINK_MODE": "copy", "PIP_NO_INDEX": "1"}
    done = host.run()
    assert done.returncode == 0, done.stderr
    assert "odd: odd.py not as its RECORD says" in done.stdout
    assert asked(host.releases / "r1/env/bin/python", "import odd; print(odd.value)") == "5"


def test_unknown_python_is_one_line(host: Host) -> None:
    host.spec["python"] = "3.99"
    failed(host, host.run(), "No interpreter found for Python 3.99")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "red"}, "unknown colour"),
        ({"mark": None}, "mark is missing or of the wrong type"),
        ({"id": "../r1"}, "id '../r1'"),
        ({"python": "three"}, "python 'three'"),
        ({"releases": "releases"}, "releases: not an absolute path"),
        ({"find_links": "wheels"}, "find_links is missing or of the wrong type"),
        ({"extra_index_urls": [1]}, "extra_index_urls is missing or of the wrong type"),
        ({"patch_list": "/nowhere/patches.json"}, "cannot read /nowhere/patches.json: No such file"),
        ({"lock": "/nowhere/lock.txt"}, "/nowhere/lock.txt: lock not found"),
        ({"lock_sha256": "0" * 64}, "the spec says " + "0" * 64),
        ({"uv": "/nowhere/uv"}, "/nowhere/uv: no such program"),
    ],
)
def test_wrong_spec_exits_2(host: Host, change: dict[str, Any], words: str) -> None:
    host.spec |= change
    command = host.command("build")
    done = subprocess.run(command, env=host.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not host.releases.exists()


def test_missing_field_and_broken_json_exit_2(host: Host) -> None:
    del host.spec["cache"], host.spec["uv"]
    done = host.run()
    assert (done.returncode, "uv is missing or of the wrong type" in done.stderr) == (2, True)
    path = host.root / "r1.json"
    for text in ("{", "[]"):
        path.write_text(text)
        command = [sys.executable, str(BIN / "pd-build"), "build", "--spec", str(path)]
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == 2
    path.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"pd-build: cannot read {path}: No such file or directory\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wheelhouse": "/nowhere/wheels"}, "wheelhouse /nowhere/wheels: not a folder"),
        ({"wheelhouse": None, "find_links": ["/nowhere/wheels"]}, "find_links /nowhere/wheels"),
        ({"certificate": "/nowhere/ca.pem"}, "certificate /nowhere/ca.pem"),
        ({"index_url": "file:///nowhere/simple"}, "index_url file:///nowhere/simple"),
    ],
)
def test_source_of_the_settings_that_is_not_there(host: Host, change: dict[str, Any], words: str) -> None:
    host.spec |= change
    failed(host, host.run(), words)


# --- repair ----------------------------------------------------------------------------------------------


def poison(host: Host, file: Path) -> None:
    """Another content of the same length, in place, with the old times: the worst hand edit. It reaches the cache."""
    status = file.stat()
    text = file.read_text()
    with file.open("r+") as stream:
        stream.write(text.replace("print(__file__)", "print('wrong')_"[:15]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size
    assert any(p.samefile(file) for p in (host.root / "cache").rglob("*.py")), "the cache holds the edited file"


def edit(place: Path) -> None:
    with (place / SITE / "alpha/__init__.py").open("a") as file:
        file.write("wrong = True\n")


def delete(place: Path) -> None:
    (place / SITE / "beta/deep/er.py").unlink()


def delete_common(place: Path) -> None:
    (place / SITE / "common/__init__.py").unlink()


def close(place: Path) -> None:
    (place / SITE / "alpha/__init__.py").chmod(0o600)


def add(place: Path) -> None:
    (place / SITE / "stray/more").mkdir(parents=True)
    (place / SITE / "stray/more/module.py").write_text("")
    (place / SITE / "stray.pth").write_text("import stray\n")


def forget(place: Path) -> None:
    (place / ".pd-env.json").unlink()


def forget_and_edit(place: Path) -> None:
    forget(place)
    edit(place)


def no_list(place: Path) -> None:
    (place / SITE / "alpha-1.0.dist-info/RECORD").unlink()


def no_interpreter(place: Path) -> None:
    (place / "bin/python").unlink()


def no_script(place: Path) -> None:
    (place / "bin/alpha-where").unlink()


def no_environment(place: Path) -> None:
    shutil.rmtree(place)


def no_packages(place: Path) -> None:
    shutil.rmtree(place / SITE)


@pytest.mark.parametrize(
    "damage",
    [
        edit,
        delete,
        delete_common,
        close,
        add,
        forget,
        forget_and_edit,
        no_list,
        no_interpreter,
        no_script,
        no_environment,
        no_packages,
    ],
)
def test_repair_brings_back_what_was_built(built: Host, damage: Callable[[Path], None]) -> None:
    release = built.releases / "r1"
    good = contents(release)
    damage(release / "env")
    done = built.run("repair")
    assert done.returncode == 0, done.stderr
    assert "env is whole again" in done.stdout
    assert contents(release) == good
    assert built.left() == ["r1"]
    again = built.run("repair")
    assert again.stdout == "r1: env is whole\nr1: router is whole\n"


def uv(host: Host, *arguments: str | Path) -> None:
    """uv on the cache of `host`, by hand."""
    command = [str(UV), "--cache-dir", str(host.root / "cache"), *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, env=host.environ, timeout=60)


def install(host: Host, *wheels: Path) -> None:
    python = host.releases / "r1/env/bin/python"
    uv(host, "pip", "install", "--python", python, "--no-deps", "--offline", *wheels)


def test_repair_takes_out_a_package_and_puts_back_what_it_shared(built: Host) -> None:
    good = contents(built.releases / "r1")
    extra = wheel(built.root / "more", "extra", "1.0", {"extra.py": "", "common/__init__.py": "shared = 1\n"})
    install(built, extra)
    done = built.run("repair")
    assert done.returncode == 0, done.stderr
    assert "extra: not in the lock; removed" in done.stdout
    assert contents(built.releases / "r1") == good


def test_repair_brings_back_the_version(built: Host) -> None:
    good = contents(built.releases / "r1")
    install(built, wheel(built.root / "more", "alpha", "1.1", {"alpha/__init__.py": "", "alpha/new.py": ""}))
    assert built.run("repair").returncode == 0
    assert contents(built.releases / "r1") == good


def test_repair_does_not_install_the_edited_copy_of_the_cache(host: Host) -> None:
    assert host.run().returncode == 0
    edited = host.releases / "r1/env" / SITE / "alpha/__init__.py"
    poison(host, edited)
    os.utime(edited)  # as an editor leaves it; the content is as long as before
    done = host.run("repair")
    assert done.returncode == 0, done.stderr
    assert edited.read_text() == ALPHA["alpha/__init__.py"]
    fresh = host.root / "fresh"
    uv(host, "venv", "--python", sys.executable, fresh)
    uv(host, "pip", "install", "--python", fresh / "bin/python", "--no-index", "--find-links", host.wheels, "alpha")
    assert next(fresh.rglob("alpha/__init__.py")).read_text() == ALPHA["alpha/__init__.py"]


def test_repair_touches_only_the_affected_distribution(built: Host) -> None:
    packages = built.releases / "r1/env" / SITE
    before = {p: p.stat().st_ino for p in packages.rglob("*.py")}
    edit(built.releases / "r1/env")
    assert built.run("repair").returncode == 0
    assert {p for p in packages.rglob("*.py") if p.stat().st_ino != before[p]} == {packages / "alpha/__init__.py"}


# --- patches ---------------------------------------------------------------------------------------------

PATCHED = "alpha/__init__.py"
DIFF = "--- a/beta/__init__.py\n+++ b/beta/__init__.py\n@@ -1 +1 @@\n-value = 1\n+value = 7\n"
HOOK = Path(__file__).parents[2] / "files/kernels/hook"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def patches(host: Host, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """An overlay, a whole file and a diff in the spec, each with changes (None: left out)."""
    given: dict[str, dict[str, Any]] = {
        "shim": {
            "apply": "overlay", "replaces": {}, "targets": [{"variable": "always", "module": "alpha", "function": "where"}],
            "files": {"pd_overlay_shim/__init__.py": ["value = 7\n"], "pd_overlay_shim.pth": ["import pd_overlay_shim\n"]},
        },
        "whole": {
            "apply": "file", "replaces": {PATCHED: sha256(ALPHA[PATCHED])}, "targets": [],
            "files": {PATCHED: ["def where():\n", "    print('patched')\n"]},
        },
        "part": {
            "apply": "diff", "replaces": {"beta/__init__.py": sha256(BETA["beta/__init__.py"])}, "targets": [],
            "files": {"part.diff": DIFF.splitlines(keepends=True)},
        },
    }  # fmt: skip
    chosen = {name: {"name": name, **patch, **changes.get(name, {})} for name, patch in given.items()}
    path = host.root / "patches.json"
    path.write_text(json.dumps({"sglang": "9.9", "patches": list(chosen.values()), "demands": []}))
    host.spec["patch_list"] = str(path)
    return chosen


@pytest.fixture
def patched(host: Host) -> Host:
    """A host with the release r1 that carries three patches."""
    patches(host)
    done = host.run()
    assert done.returncode == 0, done.stderr
    return host


def pd_env_check(host: Host, name: str) -> int:
    lock = host.spec["lock" if name == "env" else "router_lock"]
    command = [sys.executable, str(BIN / "pd-env"), "check", str(host.releases / "r1" / name), "--lock", lock]
    return subprocess.run(command, capture_output=True).returncode


def values(host: Host) -> list[str]:
    """What the three patched modules say, in the environment's own interpreter."""
    code = "import alpha, beta, pd_overlay_shim; alpha.where(); print(beta.value, pd_overlay_shim.value)"
    return asked(host.releases / "r1/env/bin/python", code).split()


def test_a_release_is_built_with_its_patches(patched: Host) -> None:
    assert values(patched) == ["patched", "7", "7"]
    assert pd_env_check(patched, "env") == 0
    assert "patched" not in asked(patched.releases / "r1/router/bin/python", "import route; print(route.value)")


def test_the_packages_cache_keeps_the_originals(patched: Host) -> None:
    """Another release of the same packages, built from the same cache, has them byte for byte."""
    patched.spec |= {"id": "r2", "patch_list": None}
    assert patched.run().returncode == 0
    packages = patched.releases / "r2/env" / SITE
    assert (packages / PATCHED).read_text() == ALPHA[PATCHED]
    assert (packages / "beta/__init__.py").read_text() == BETA["beta/__init__.py"]
    assert not list(packages.glob("pd_overlay_*"))


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "hash": (
        {"whole": {"replaces": {PATCHED: "0" * 64}}},
        f"patch whole replaces {PATCHED} with sha256 {'0' * 64}, in SGLang 9.9 it has {sha256(ALPHA[PATCHED])}",
    ),
    "no such file": (
        {"whole": {"replaces": {"alpha/gone.py": "0" * 64}}},
        "patch whole replaces alpha/gone.py, which is not there: alpha has nothing",
    ),
    "function": (
        {"shim": {"targets": [{"variable": "always", "module": "beta", "function": "run"}]}},
        "patch shim looked for run in beta: beta has value",
    ),
    "context": (
        {"part": {"files": {"part.diff": DIFF.replace("value = 1", "value = 2").splitlines(keepends=True)}}},
        "patch part (part.diff) does not apply to beta/__init__.py: line 1 should be 'value = 2', but is 'value = 1'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MISFITS)
def test_a_patch_that_does_not_fit_leaves_no_release_and_the_old_one_as_it_was(built: Host, what: str) -> None:
    before = contents(built.releases / "r1")
    changes, line = MISFITS[what]
    patches(built, **changes)
    built.spec["id"] = "r2"
    done = built.run()
    assert (done.returncode, done.stderr) == (1, f"pd-build: {line}\n")
    assert built.left() == ["r1"]
    assert contents(built.releases / "r1") == before


HAND = {
    "whole file": lambda packages: (packages / PATCHED).write_text("x = 1\n"),
    "the original, put back": lambda packages: (packages / PATCHED).write_text(ALPHA[PATCHED]),
    "diff": lambda packages: (packages / "beta/__init__.py").write_text("value = 9\n"),
    "unpatched file beside it": lambda packages: (packages / "beta/deep/er.py").write_text("value = 9\n"),
    "overlay": lambda packages: (packages / "pd_overlay_shim/__init__.py").write_text("value = 9\n"),
    "overlay gone": lambda packages: shutil.rmtree(packages / "pd_overlay_shim"),
    "overlay by hand": lambda packages: (packages / "pd_overlay_other.pth").write_text("import beta\n"),
    "notes gone": lambda packages: (packages / "pd_overlay_hook/placed.json").unlink(),
    "patched file gone": lambda packages: (packages / PATCHED).unlink(),
    "whole environment": lambda packages: (packages.parents[2] / ".pd-env.json").unlink(),
    "another package": lambda packages: shutil.rmtree(packages / "common"),
}


@pytest.mark.parametrize("what", HAND)
def test_a_release_with_patches_is_repaired_to_what_it_was(patched: Host, what: str) -> None:
    good = contents(patched.releases / "r1")
    packages = patched.releases / "r1/env" / SITE
    HAND[what](packages)
    assert pd_env_check(patched, "env") != 0
    done = patched.run("repair")
    assert done.returncode == 0, done.stderr
    assert contents(patched.releases / "r1") == good
    assert values(patched) == ["patched", "7", "7"]
    assert pd_env_check(patched, "env") == 0


def test_repair_of_another_package_leaves_patched_files_alone(patched: Host) -> None:
    packages = patched.releases / "r1/env" / SITE
    before = {name: (packages / name).stat().st_ino for name in (PATCHED, "beta/__init__.py")}
    patched.lock(pin(patched.alpha) + pin(patched.beta), pin(patched.route))
    (packages / "by_hand.py").write_text("")
    assert patched.run("repair").returncode == 0
    assert {name: (packages / name).stat().st_ino for name in before} == before
    assert not (packages / "by_hand.py").exists()


def test_byte_code_of_what_is_replaced_is_dropped(patched: Host) -> None:
    packages = patched.releases / "r1/env" / SITE
    (packages / PATCHED).unlink()
    (packages / PATCHED).write_text("def where():\n    print('by hand')\n")
    python = patched.releases / "r1/env/bin/python"
    subprocess.run([python, "-m", "compileall", "-q", packages / "alpha"], check=True)
    assert list((packages / "alpha/__pycache__").iterdir())
    assert patched.run("repair").returncode == 0
    assert not list((packages / "alpha").glob("__pycache__/*"))
    assert values(patched) == ["patched", "7", "7"]


def test_repair_without_the_wheel_says_which(built: Host) -> None:
    edit(built.releases / "r1/env")
    built.alpha.unlink()
    done = built.run("repair")
    assert done.returncode == 1
    assert "alpha==1.0: not found in any package source" in done.stderr
    assert built.left() == ["r1"]


def test_repair_of_nothing(host: Host) -> None:
    failed(host, host.run("repair"), "no built release there")


# --- package sources -------------------------------------------------------------------------------------


# --- uv's errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "error: Request failed after 3 retries in 6.9s\n"
            "  cause: Failed to fetch: http://127.0.0.1:9/simple/beta/\n"
            "  cause: error sending request for url (http://127.0.0.1:9/simple/beta/)\n"
            "  cause: client error (Connect)\n"
            "  cause: tcp connect error\n"
            "  cause: Connection refused (os error 111)",
            "Request failed after 3 retries in 6.9s: Failed to fetch: http://127.0.0.1:9/simple/beta/: "
            "Connection refused (os error 111)",
        ),
        (
            "error: No solution found when resolving dependencies\n"
            "  cause: Because gamma was not found in the package registry and you require gamma==1.0, we can conclude"
            " that your requirements are unsatisfiable.",
            "gamma==1.0: not found in any package source",
        ),
        ("thread 'main' panicked\nsomething", "thread 'main' panicked / something"),
        ("", ""),
    ],
)
def test_errors_of_uv_in_one_line(output: str, line: str) -> None:
    assert pd_build.reason(output.splitlines()) == line
