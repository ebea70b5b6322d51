"""Makes a release's locks anew from their inputs and shows what moved: make lock RELEASE=NAME [UPGRADE=1].

The lock X.txt is made from X.in where there is one, else from server.in or, for a router, from router.in or
router-PACKAGE.in; excluded.txt names what is left out though something asks for it. What an old lock pins and its
input still allows stays as it is: `--upgrade` or `--upgrade-package NAME` moves it. arguments.txt, the options of the
server, is read from SGLang's wheel when the lock moves to another SGLang, or when it is not there; so are those of a
router, in files/locks/routers, for a version that is not there.
Package sources come from the caller: uv's and pip's own configuration and environment, or arguments for uv
(`--find-links FOLDER` for the CPU wheel of torch). They reach no file.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tools import arguments, download

LOCKS = Path(__file__).resolve().parent.parent / "files" / "locks"
PLATFORM = f"x86_64-manylinux_2_{download.GLIBC}"


def inputs(release: Path) -> dict[str, str]:
    """Name of each lock of the release -> name of the input that it is made from."""
    manifest = yaml.safe_load((release / "manifest.yaml").read_text())
    found = {}
    for python in manifest["python"]:
        found[f"python{python}.txt"] = "server.in"
        for router in release.glob("router*.in"):
            found[f"{router.stem}-python{python}.txt"] = router.name
    for own in release.glob("python3.*.in"):
        found[f"{own.stem}.txt"] = own.name
    return dict(sorted(found.items()))


def pins(lock: Path) -> dict[str, str]:
    """Package -> version, as the lock pins them; empty without a lock."""
    text = lock.read_text() if lock.exists() else ""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


def moved(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """A line for each package that differs: 'torch 2.11.0 -> 2.13.0', 'added x 1.0', 'removed y 2.0'."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            lines.append(f"added {name} {new[name]}")
        elif name not in new:
            lines.append(f"removed {name} {old[name]}")
        elif old[name] != new[name]:
            lines.append(f"{name} {old[name]} -> {new[name]}")
    return lines


def compile_lock(release: Path, lock: str, source: str, extra: list[str]) -> None:
    """Runs uv in the release's folder, so that the comments in the lock name no path."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    python = re.search(r"python(3\.\d+)", lock)
    assert python, lock
    command = [uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-emit-index-url"]
    command += ["--python-version", python[1], "--python-platform", PLATFORM]
    command += ["--custom-compile-command", f"make lock RELEASE={release.name}"]
    if (release / "excluded.txt").exists():
        command += ["--excludes", "excluded.txt"]
    subprocess.run([*command, *extra, "--output-file", lock, source], cwd=release, check=True)


def read_arguments(release: Path, version: str, python: str) -> None:
    """Writes arguments.txt from the wheel of this SGLang."""
    with tempfile.TemporaryDirectory() as folder:
        (wheel,) = download.wheels([f"sglang=={version}"], python, Path(folder))
        (release / "arguments.txt").write_text("\n".join(arguments.of_wheel(wheel)) + "\n")


def read_router_arguments(package: str, version: str, python: str) -> Path:
    """The file with the options of this router, written from its wheel where it is not there."""
    file = LOCKS / "routers" / f"{package}-{version}.txt"
    if not file.exists():
        with tempfile.TemporaryDirectory() as folder:
            (wheel,) = download.wheels([f"{package}=={version}"], python, Path(folder))
            file.write_text("\n".join(arguments.of_router_wheel(wheel)) + "\n")
        print(f"{file.name}: read from the wheel of {package} {version}")
    return file


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lock", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("release", help="a folder of files/locks")
    given, extra = parser.parse_known_args()
    releases = sorted(path.parent.name for path in LOCKS.glob("*/manifest.yaml"))
    if given.release not in releases:
        parser.error(f"no release {given.release!r}; there are {', '.join(releases)}")
    release = LOCKS / given.release
    had, has = "", ""
    try:
        for lock, source in inputs(release).items():
            old = pins(release / lock)
            compile_lock(release, lock, source, extra)
            new = pins(release / lock)
            had, has = had or old.get("sglang", ""), has or new.get("sglang", "")
            print(f"{lock}: {len(new)} packages, {len(moved(old, new)) or 'none'} moved")
            for line in moved(old, new):
                print(f"  {line}")
        if had != has or not (release / "arguments.txt").exists():
            read_arguments(release, has, yaml.safe_load((release / "manifest.yaml").read_text())["python"][-1])
            print(f"arguments.txt: read from the wheel of SGLang {has}")
        said = yaml.safe_load((release / "manifest.yaml").read_text())
        for package, version in said["routers"].items():
            read_router_arguments(package, version, said["python"][-1])
    except subprocess.CalledProcessError as failed:
        print(f"{' '.join(map(str, failed.cmd[:3]))} failed with {failed.returncode}: see above", file=sys.stderr)
        return 1
    except download.Failed as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
