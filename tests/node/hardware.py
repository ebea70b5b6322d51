"""Recorded hardware: the folders below hardware/, and how one is put into a node's tree.

A folder holds commands/TOOL/ANSWER/{args,stdout,stderr,rc} (one argument a line; stderr and rc may be left out)
and files/ABSOLUTE/PATH. A file `base` names a folder that it starts from, `without` lists what it drops of it. A file
`units` names units of the recorded host that the node shall have, each with its state. What `make record` wrote lies
in recordings/, sealed by a list of its files.
"""

import base64
import io
import shutil
import tarfile
import tempfile
from pathlib import Path

from tasks.support import recordings
from tests.node.disk import Disk
from tests.node.process import NodeError

FOLDER = Path(__file__).with_name("hardware")
SHIMS = Path(__file__).with_name("shims")
RECORDED = Path("usr/local/share/recorded-hardware")
UNRECORDED = "unrecorded"  # in the node's journal: questions that had no recorded answer
EARLY_ON_PATH = Path("usr/local/sbin")


def names() -> list[str]:
    """Of this checkout; the user's own are not among them."""
    return _folders(FOLDER)


def _folders(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.glob("[!.]*") if path.is_dir())


def chain(name: str) -> list[Path]:
    """The folders that make up a hardware, first base first."""
    folder, own = FOLDER / name, recordings.FOLDER / name
    if not folder.is_dir() and own.is_dir():
        if wrong := recordings.wrong_with(own):
            raise NodeError(f"recording {name} is not whole, {wrong}: make record HOST={name} writes it anew")
        return [own]
    if not folder.is_dir():
        known = ", ".join([*names(), *_folders(recordings.FOLDER)])
        raise NodeError(f"no recorded hardware {name}: there is {known}; make record HOST=NAME records a host of yours")
    base = folder / "base"
    return [*(chain(base.read_text().strip()) if base.exists() else []), folder]


def write(name: str, root: Path) -> None:
    """Write a hardware, its bases applied, and the shims for its tools below `root`."""
    recorded, shims = root / RECORDED, root / EARLY_ON_PATH
    recorded.mkdir(parents=True)
    shims.mkdir(parents=True, exist_ok=True)
    for folder in chain(name):
        without = folder / "without"
        for dropped in without.read_text().split() if without.exists() else []:
            path = recorded / dropped
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for part in ("commands", "files"):
            if (folder / part).is_dir():
                shutil.copytree(folder / part, recorded / part, dirs_exist_ok=True)

        if (folder / "units").exists():
            _units(folder / "units", root)

    (recorded / "replay").mkdir()
    for tool in (recorded / "commands").iterdir():
        _executable(SHIMS / "replay", recorded / "replay" / tool.name)
        own = SHIMS / tool.name
        _executable(own if own.exists() else SHIMS / "replay", shims / tool.name)
    _executable(SHIMS / "mounts", recorded / "mounts")


def _units(listed: Path, root: Path) -> None:
    """Units that do nothing, in the state that the recorded host's were in."""
    folder = root / "etc/systemd/system"
    (folder / "multi-user.target.wants").mkdir(parents=True, exist_ok=True)
    for unit, state in (line.split() for line in listed.read_text().splitlines()):
        text = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n"
        (folder / unit).write_text(f"[Unit]\nDescription=Stands for {unit} of the recorded host\n{text}")
        wanted = folder / "multi-user.target.wants" / unit
        if state == "active" and not wanted.is_symlink():
            wanted.symlink_to(f"/etc/systemd/system/{unit}")


def install(name: str, disk: Disk) -> None:
    """Put a hardware on the disk of a node that has not booted, and the unit that lays its files over the real ones."""
    disk.directory(f"/{RECORDED.parent}")
    disk.directory(f"/{EARLY_ON_PATH}")
    write(name, disk.layer)
    unit = SHIMS / "recorded-hardware.service"
    disk.write(f"/etc/systemd/system/{unit.name}", unit.read_text())
    wants = disk.directory("/etc/systemd/system/sysinit.target.wants")
    (wants / unit.name).symlink_to(f"/etc/systemd/system/{unit.name}")


def swap(name: str) -> tuple[str, str]:
    """A shell script, and the text for its stdin, that put another hardware into a running node."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w:gz") as archive:
        write(name, Path(folder))
        archive.add(folder, arcname=".")
    script = f"""
        set -e
        systemctl stop recorded-hardware
        for tool in /{RECORDED}/replay/*; do rm -f "/{EARLY_ON_PATH}/${{tool##*/}}"; done
        rm -r /{RECORDED}
        base64 -d | tar -xz --no-overwrite-dir -C /
        systemctl start recorded-hardware
    """
    return script, base64.b64encode(packed.getvalue()).decode()


def _executable(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o755)
