"""A mount of this machine inside a node, whose node-exporter shows no overlay: python3 lend.py FOLDER PID AT, as root."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

OPEN_TREE, MOVE_MOUNT = 428, 429  # system calls; the same numbers on all of Linux' architectures
CLONE, HERE, EMPTY_PATH = 1, -100, 4


def main(folder: str, pid: str, at: str) -> None:
    call = ctypes.CDLL(None, use_errno=True).syscall
    tree = call(OPEN_TREE, HERE, folder.encode(), CLONE | os.O_CLOEXEC)
    space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY)
    if tree < 0 or ctypes.CDLL(None, use_errno=True).setns(space, 0x20000) < 0:
        raise OSError(ctypes.get_errno(), f"{folder} cannot be lent")
    os.fchdir(root)
    os.chroot(".")
    Path(at).mkdir(parents=True, exist_ok=True)
    if call(MOVE_MOUNT, tree, b"", HERE, at.encode(), EMPTY_PATH) < 0:
        raise OSError(ctypes.get_errno(), f"{folder} cannot be lent")


if __name__ == "__main__":
    main(*sys.argv[1:])
