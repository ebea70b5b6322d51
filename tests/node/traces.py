"""What a node leaves on this machine, looked for without the code that makes and removes it."""

import subprocess
from pathlib import Path

from tests.node.node import Node


def of_node(node: Node, number: int | None) -> list[str]:
    """Everything on this machine that belongs to the node; without a number, to its folder only."""
    return [*of_folder(node.folder), *(of_number(number) if number is not None else [])]


def of_folder(folder: Path) -> list[str]:
    """The folder, mounts in it, and processes that name it or stand in it."""
    found = [str(folder)] if folder.exists() else []
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            where = str((process / "cwd").readlink())
        except OSError:  # it has just ended, or is a kernel thread
            continue
        if str(folder) in line or where.startswith(str(folder)):
            found.append(f"{process.name}: {line}")
    return found


def of_number(number: int) -> list[str]:
    """Network, firewall and cgroups of a node number."""
    link, table = f"pd-node-{number}", f"pd_node_{number}"
    found = [line for line in _lines("ip", "-oneline", "link") if f" {link}@" in line]
    found += [line for line in _lines("ip", "netns", "list") if line.split()[0] == link]
    found += [line for line in _lines("nft", "list", "tables") if line.split()[-1] == table]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if f"/{link} " in line]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{link}")]
    return found


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
