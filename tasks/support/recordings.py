"""Recordings of the user's hosts, on the machine that runs pyinfra: a folder each."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tasks.plan.host.recording import SEAL, fault
from tasks.support.report import file_stem

FOLDER = Path("recordings")  # relative to where pyinfra or make runs, as report_dir is


def write(name: str, files: Mapping[str, bytes]) -> Path:
    """A recording, whole or not at all; one of this name is replaced. Returns its folder."""
    folder = FOLDER / file_stem(name)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for path, content in files.items():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / path).write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return folder


def wrong_with(folder: Path) -> str:
    """Why a recording cannot be played, "" where it can: it was broken off, or changed by hand."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    seal = found.pop(SEAL, None)
    return fault(None if seal is None else seal.decode(errors="replace"), found)
