"""Tries what a unit of ours may not do; runs on a simulated host, inside a unit. Prints a JSON object: name -> fault.

A fault of None means that it could be done. Each is tried by the kernel's own calls, as a program that was taken over
would.
"""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

NEW_USERS, NEW_MOUNTS = 0x10000000, 0x20000  # of unshare(2)
ATTACH = 16  # of ptrace(2)
IO_URING_SETUP = 425
libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write(path: str) -> None:
    Path(path).write_text("x")
    Path(path).unlink()


def trace_a_process() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        call("ptrace", ATTACH, child, None, None)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def leave_a_setuid_file(folder: str) -> None:
    path = Path(folder, "pd-probe-setuid")
    path.touch()
    try:
        path.chmod(0o4755)
    finally:
        path.unlink()


def write_and_run() -> None:
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
        pass


def connect_by_unix() -> None:
    with socket.socket(socket.AF_UNIX):
        pass


def probes(state: str, home: str) -> dict[str, Callable[[], object]]:
    return {
        "write /etc": lambda: write("/etc/pd-probe"),
        "write /usr": lambda: write("/usr/pd-probe"),
        "write /run": lambda: write("/run/pd-probe"),
        "write the release": lambda: write("/opt/sglang-pd/current/pd-probe"),
        "write the model": lambda: write(f"{state}/models/pd-probe"),
        "write the cache": lambda: write(f"{state}/cache/pd-probe"),
        "write /tmp": lambda: write("/tmp/pd-probe"),
        "write /dev/shm": lambda: write("/dev/shm/pd-probe"),
        "read a home": lambda: list(Path(home).iterdir()),
        "see processes of others": lambda: Path("/proc/1/status").read_text(),
        "trace a process": trace_a_process,
        "set up io_uring": lambda: call("syscall", IO_URING_SETUP, 1, ctypes.create_string_buffer(120)),
        "leave a setuid file": lambda: leave_a_setuid_file(f"{state}/cache"),
        "write code and run it": write_and_run,
        "bind CPUs": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
        "open a socket of files": connect_by_unix,
        # last: whoever is in a namespace of its own, may do less
        "make a mount namespace": lambda: call("unshare", NEW_MOUNTS),
        "make a user namespace": lambda: call("unshare", NEW_USERS),
    }


def main() -> None:
    faults: dict[str, str | None] = {}
    for name, probe in probes(*sys.argv[1:]).items():
        faults[name] = None
        try:
            probe()
        except OSError as error:
            faults[name] = os.strerror(error.errno or 0)
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    faults |= {f"status {key}": status[key].strip() for key in ("NoNewPrivs", "CapBnd", "CapEff")}
    print(json.dumps(faults))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
