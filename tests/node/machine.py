"""A system booted by systemd-nspawn from a disk, found again by any process through its pid file."""

import contextlib
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.node.disk import Disk
from tests.node.process import NodeError, interrupts_deferred

# what a real host's systemd has and nspawn withholds: network settings and its units' filters, raised resource limits
CAPABILITIES = "CAP_NET_ADMIN,CAP_BPF,CAP_SYS_RESOURCE,CAP_IPC_LOCK"
SYSTEM_CALLS = "bpf"
# cgroup v2 on any machine, the sysctls of its own network writable, and /tmp on its disk
ENVIRONMENT = {
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
    "SYSTEMD_NSPAWN_TMPFS_TMP": "0",
}


def start(disk: Disk, namespace: Path, bound: Sequence[Path], pid_file: Path, log: Path) -> None:
    """Boot a disk in a network namespace, with folders of this machine bound read-only; returns at once."""
    has_systemd = Path("/run/systemd/system").is_dir()
    nspawn = [
        *("systemd-nspawn", f"--directory={disk.root}", f"--machine={namespace.name}", "--boot", "--register=no"),
        *("--console=pipe", "--resolv-conf=off", "--timezone=off", "--link-journal=no"),
        *(f"--network-namespace-path={namespace}", f"--capability={CAPABILITIES}"),
        f"--system-call-filter={SYSTEM_CALLS}",
        "--rlimit=RLIMIT_NOFILE=1024:524288",  # as Debian's kernel and systemd start a host, whatever we run under
        *(f"--bind-ro={folder}" for folder in bound),
    ]
    script = ["set -e"]
    if not has_systemd:  # with systemd, nspawn asks it for a scope of its own
        nspawn.append("--keep-unit")
        for cgroup in _cgroups(namespace.name):
            cgroup.mkdir(exist_ok=True)
            script.append(f"echo $$ > {shlex.quote(str(cgroup / 'cgroup.procs'))}")
    script.append(shlex.join(["mount", "-t", "overlay", "overlay", "-o", disk.mount_options, str(disk.root)]))
    # with --keep-unit, nspawn leaves it to its caller to start a rebooting system again, and ends with 133
    script.append(f"until {shlex.join(nspawn)}; do [ $? -eq 133 ]; done")
    with interrupts_deferred(), log.open("a") as output:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", "\n".join(script)],  # the mount ends with the node
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **ENVIRONMENT},
        )
        pid_file.write_text(f"{process.pid} {_start_time(process.pid)}\n")


def pid(pid_file: Path) -> int | None:
    """Pid of the shell around nspawn that the file records, None when it has ended (or the pid is used anew)."""
    try:
        number, started = pid_file.read_text().split()
    except FileNotFoundError:
        return None
    return int(number) if _start_time(int(number)) == started else None


def init(pid_file: Path) -> int:
    """Pid, on this machine, of a running system's first process."""
    shell = pid(pid_file)
    nspawn = _children(shell) if shell is not None else []
    found = _children(nspawn[0]) if nspawn else []
    if not found:
        raise NodeError("the node is down")
    return found[0]


def _start_time(number: int) -> str | None:
    """When a running process started, in the kernel's ticks since boot."""
    try:
        state, *fields = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else fields[18]


def stop(pid_file: Path, namespace: Path) -> None:
    """End the system at once, as a power cut would, and wait until its processes are gone."""
    shell = pid(pid_file)
    if shell is not None:
        os.kill(shell, signal.SIGSTOP)  # it starts nothing more
        for nspawn in _children(shell):
            # first its init: the kernel ends all processes of the system with it, and nspawn tidies up and ends
            inits = _children(nspawn)
            for init in inits:
                _kill(init)
            if not inits or not _ends(nspawn, limit=10):
                _kill(nspawn)
        _kill(shell)
    for cgroup in _cgroups(namespace.name):
        for folder, _, _ in os.walk(cgroup, topdown=False):
            Path(folder).rmdir()
    left = Path("/run/systemd/nspawn/propagate", namespace.name)  # nspawn leaves it where /run is no tmpfs
    if left.is_dir():
        left.rmdir()


def _children(number: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def _kill(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    if not _ends(number, limit=10):
        raise NodeError(f"process {number} of a node does not end")


def _ends(number: int, limit: float) -> bool:
    """Whether a process ends within `limit` seconds, whoever its parent is."""
    try:
        descriptor = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)


def _cgroups(name: str) -> Iterator[Path]:
    """The node's own cgroup in systemd's hierarchy and the unified one: nodes side by side must not share one."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            yield Path(mount.split()[4], name)
