"""Wheels from the caller's package sources: pip's own configuration says which these are, and they reach no file."""

import subprocess
import sys
import tempfile
from pathlib import Path

GLIBC = 34  # of manylinux_2_34, what the locks are made for
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)),
    *(f"{old}_x86_64" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")),
]


class Failed(Exception):
    """Wheels that could not be had, in one line."""


def wheels(requirements: list[str], python: str, folder: Path) -> list[Path]:
    """The wheels of lines `NAME==VERSION [--hash=...]` for CPython "3.11" on x86_64 Linux, put into the empty `folder`.

    Raises Failed. With hashes, pip refuses a file that has none of them.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{line}\n" for line in requirements))
        file.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", python, "--dest", str(folder), "-r", file.name]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")] or done.stderr.splitlines()
        raise Failed(said[-1].removeprefix("ERROR: ") if said else f"pip download ended with {done.returncode}")
    return sorted(folder.iterdir())
