"""What a unit may ask the kernel for: shared memory, pinned memory, open files."""

from __future__ import annotations

from tasks.plan.checks.registry import GB, Found, Unreadable, Verdict, check, error, healthy, warning
from tasks.plan.host.answers import hard_limit, may_raise_limits

# Open files that a server cannot do without. Measured (0.5.20 on the CPU): a process held at most 222 when idle, and 3
# more for each request in flight; two H200 served with 20,000.
LEAST_FILES = 4096


@check(
    "host/shm/size",
    "hardware",
    judges="/dev/shm is large enough",
    source="NCCL user guide, sharing data: containers need --shm-size=1g; sglang#4259",
    settings=("minimum_shm_gb",),
    ask="df -k /dev/shm",
    of_gpu=True,
)
def shm(found: Found) -> Verdict:
    line = found.rows("shm")[-1]
    cells = line.split()
    if len(cells) < 6 or not cells[1].isdecimal():
        raise Unreadable("no size in it", line)
    size, needed = int(cells[1]) * 1024 / GB, found.settings.minimum_shm_gb
    if size < needed:
        return error(
            f"/dev/shm has {size:.2f} GB, {needed:g} GB are needed", "mount it larger (`-o remount,size=50%`)", line
        )
    return healthy(f"/dev/shm has {size:.0f} GB", line)


def _hard(found: Found, name: str) -> float:
    hard = hard_limit(found.text("limits"), name)
    if hard is None:
        raise Unreadable(f"no {name} in it", *found.rows("limits"))
    return hard


def _may_raise(found: Found) -> bool:
    may = may_raise_limits(found.text("pid1"))
    if may is None:
        raise Unreadable("no CapEff in it", *found.rows("pid1"))
    return may


@check(
    "host/limits/memlock",
    "hardware",
    judges="systemd can give a unit the pinned memory that limit_memlock asks for",
    source="ucx#8229: NIXL registers the KV cache; proc(5), capabilities(7)",
    settings=("limit_memlock",),
    ask="grep locked /proc/1/limits",
)
def memlock(found: Found) -> Verdict:
    asked = found.settings.limit_memlock
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    wanted = float("inf") if asked == "infinity" else int(asked.rstrip("KMGT")) * float(factor.get(asked[-1], 1))
    hard = _hard(found, "Max locked memory")
    if wanted > hard and not _may_raise(found):
        return error(
            f"a server may pin {hard / GB:.3f} GB of memory here, systemd cannot raise that, and limit_memlock = "
            f"{asked!r} asks for more",
            "this host is a container: start it with --ulimit memlock=-1; or lower limit_memlock, but not below the KV "
            "cache of a server",
            *found.rows("limits"),
        )
    return healthy(f"limit_memlock = {asked!r} can be given", *found.rows("limits")[:1])


@check(
    "host/limits/nofile",
    "hardware",
    judges="systemd can give a unit the open files that limit_nofile asks for, fs.nr_open included; fewer, from "
    f"{LEAST_FILES:,} on, are taken with a warning",
    source="proc_sys_fs(5): fs.nr_open ends every limit; measured: 222 when idle, 3 more for each request in flight",
    settings=("limit_nofile",),
    ask="grep 'open files' /proc/1/limits; sysctl fs.nr_open",
)
def nofile(found: Found) -> Verdict:
    wanted, most = found.settings.limit_nofile, found.system.sysctls.get("fs.nr_open")
    if not most or not most.isdecimal():
        raise Unreadable("no fs.nr_open")
    hard = _hard(found, "Max open files")
    given = min(int(most), float("inf") if _may_raise(found) else hard)
    said = [*found.rows("limits"), f"fs.nr_open = {most}"]
    if given < min(wanted, LEAST_FILES):
        return error(
            f"a server may open {given:.0f} files here, and needs {LEAST_FILES}",
            "raise fs.nr_open (`sysctl -w fs.nr_open=1048576`), or start the container with --ulimit nofile=1048576",
            *said,
        )
    if given < wanted:
        return warning(
            f"a server may open {given:.0f} files here, limit_nofile = {wanted} asks for more: each request in flight "
            "takes one to three",
            f"raise fs.nr_open or the container's ulimit, or set limit_nofile = {given:.0f}",
            *said,
        )
    return healthy(f"limit_nofile = {wanted} can be given, fs.nr_open = {most}")
