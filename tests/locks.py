"""Makes a release's locks anew from their inputs: python -m tests.locks RELEASE [uv arguments].

The lock X.txt is made from X.in where there is one, else from server.in or, for router-*, from
router.in; excluded.txt names what is left out though something asks for it. What an old lock pins
and its input still allows stays as it is: `--upgrade` or `--upgrade-package NAME` moves it.
Package sources come from the caller: uv's own configuration and environment, or arguments
(`--find-links FOLDER` for the CPU wheel of torch). Prints what moved.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

LOCKS = Path(__file__).resolve().parent.parent / "files" / "locks"
PLATFORM = "x86_64-manylinux_2_34"


def inputs(release: Path) -> dict[str, str]:
    """Name of each lock of the release -> name of the input that it is made from."""
    manifest = yaml.safe_load((release / "manifest.yaml").read_text())
    found = {}
    for python in manifest["python"]:
        found[f"python{python}.txt"] = "server.in"
        found[f"router-python{python}.txt"] = "router.in"
    for own in release.glob("*python3.*.in"):
        found[f"{own.stem}.txt"] = own.name
    return dict(sorted(found.items()))


def pins(lock: Path) -> dict[str, str]:
    """Package -> version, as the lock pins them; empty without a lock."""
    text = lock.read_text() if lock.exists() else ""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release")
    arguments, extra = parser.parse_known_args()
    releases = sorted(path.parent.name for path in LOCKS.glob("*/manifest.yaml"))
    if arguments.release not in releases:
        parser.error(f"no release {arguments.release}; there are {', '.join(releases)}")
    release = LOCKS / arguments.release
    for lock, source in inputs(release).items():
        old = pins(release / lock)
        compile_lock(release, lock, source, extra)
        new = pins(release / lock)
        print(f"{lock}: {len(new)} packages")
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                print(f"  {name}: {old.get(name, 'new')} -> {new.get(name, 'gone')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
