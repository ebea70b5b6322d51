"""A host as it was found: what the facts read, parsed once into typed values."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tasks.plan.errors import PlanError, quoted
from tasks.plan.findings import Refused, error
from tasks.plan.host.matrices import (
    P2PMatrix,
    TopologyError,
    TopoMatrix,
    number_list,
    parse_p2p_matrix,
    parse_topo_matrix,
)

GPU_COLUMNS = "index,uuid,pci.bus_id,name,compute_cap,driver_version,memory.total,persistence_mode,mig.mode.current"
# Asked apart from the list: a driver that does not know one of these still lists its GPUs.
HEALTH_COLUMNS = (
    "index,utilization.gpu,memory.used,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max,ecc.mode.current,ecc.errors.uncorrected.volatile.sram,ecc.errors.uncorrected.volatile.dram,"
    "ecc.errors.uncorrected.aggregate.sram,ecc.errors.corrected.volatile.sram,ecc.errors.corrected.volatile.dram"
)
# What Prometheus is shown; the older names of the clocks' reasons, which every driver knows.
METRIC_COLUMNS = (
    "index,uuid,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,enforced.power.limit,clocks.sm,"
    "clocks.max.sm,clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.sw_thermal_slowdown,"
    "ecc.errors.uncorrected.volatile.total,ecc.errors.corrected.volatile.total,pcie.link.gen.current,"
    "pcie.link.width.current"
)
ROW_COLUMNS = "gpu_uuid,remapped_rows.pending,remapped_rows.failure"
FABRIC_COLUMNS = "index,fabric.state,fabric.status"  # of the registration with the NVSwitches
# Distribution -> the Python it carries that a release can serve.
PYTHON_OF = {
    ("debian", "12"): "3.11",
    ("debian", "13"): "3.13",
    ("ubuntu", "24.04"): "3.12",
}


ENDED = "a process that has ended"
CAP_SYS_RESOURCE = 1 << 24  # linux/capability.h: systemd may then raise a hard limit
MISMATCH = "Driver/library version mismatch"
T = TypeVar("T")


# Statuses of sections of the fact Planned, beside those of the commands that they run.
NOT_BUILT = 3  # the release is not built yet
NO_FOLDER = 4  # the folder is not there


@dataclass(frozen=True)
class Answer:
    """What a command of the host printed (stdout and stderr) and its exit status."""

    status: int
    text: str


def json_object(text: str) -> dict[str, Any] | None:
    """What a tool or a file of the host says in JSON; None where it is no object, whatever else it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the second: brackets in brackets, thousands deep
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    bus_id: str  # as in sysfs: 0000:01:00.0
    name: str
    compute_capability: str
    driver: str
    memory_mib: int
    persistence: bool
    mig: bool
    numa_node: int | None  # None: the host does not say


@dataclass(frozen=True)
class NumaNode:
    index: int
    cpus: frozenset[int]
    distances: Mapping[int, int] = field(default_factory=dict)  # by node, of the ACPI SLIT: 10 is itself; {}: not told


@dataclass(frozen=True)
class Listener:
    """A socket that takes connections or packets, by whom it is held, and by which unit of systemd."""

    protocol: str  # tcp or udp
    address: str  # 0.0.0.0 and :: are every one of the host
    port: int
    pid: int | None
    command: str
    unit: str | None


@dataclass(frozen=True)
class System:
    """Operating system, capacity and users, before any GPU is looked at."""

    uid: int
    os_id: str
    os_version: str
    os_name: str
    machine: str
    glibc: str
    systemd: bool
    systemd_version: int  # 0: it does not tell
    pythons: tuple[str, ...]  # versions whose interpreter is there already, pre-releases left out
    prereleases: Mapping[str, str]  # "3.11" -> "3.11.0rc1"
    python3: str | None  # full version of python3, which runs our tools; None: this run installs it
    cpus_online: frozenset[int]  # of the running kernel
    free_kib: Mapping[str, int]  # by path asked for
    sysctls: Mapping[str, str | None]  # None: this kernel has no such key
    packages: frozenset[str]  # of those asked for, the installed ones
    user: str | None  # passwd entry of the service user
    group: str | None  # its primary group's name
    monitored: bool  # something of what a run with monitoring wrote is there

    @property
    def python(self) -> str | None:
        """The Python that the distribution carries, or that is there already: newest first."""
        carried = PYTHON_OF.get((self.os_id, self.os_version))
        if carried:
            return carried
        return max(self.pythons, default=None, key=lambda v: int(v.split(".")[1]))


@dataclass(frozen=True)
class Hardware:
    gpus: tuple[Gpu, ...]
    nodes: tuple[NumaNode, ...]
    topo: TopoMatrix | None  # None where it cannot be read; the check gpu/topology/matrix says why
    p2p: P2PMatrix | None
    driver: str | None  # of the loaded kernel module
    open_files: float  # the most that systemd can give a unit, fs.nr_open left out; inf where nobody says less


def read_system(sections: Mapping[str, Answer]) -> System:
    """From the sections of the fact System. Raises PlanError where a section cannot be read."""
    release = {
        key: value.strip().strip('"')
        for key, _, value in (line.partition("=") for line in _text(sections, "os").splitlines())
    }
    sysctls: dict[str, str | None] = {}
    for line in _text(sections, "sysctl").splitlines():
        key, has, value = line.partition("=")
        sysctls[key] = value.strip() if has else None
    user, group = [*_text(sections, "user").splitlines(), "", ""][:2]
    glibc = re.search(r"([0-9]+\.[0-9]+)", _text(sections, "glibc"))
    systemd = re.match(r"systemd ([0-9]{1,5})\b", _text(sections, "systemd"))
    told = (line.split() for line in _text(sections, "pythons").splitlines())
    pythons = [words for words in told if len(words) == 3 and re.fullmatch(r"3(\.[0-9]{1,3})?", words[0])]
    return System(
        uid=_parsed(sections, "uid", int),
        os_id=release.get("ID", "unknown"),
        os_version=release.get("VERSION_ID", ""),
        os_name=release.get("PRETTY_NAME", "an unknown system"),
        machine=_text(sections, "machine").strip(),
        glibc=glibc[1] if glibc else "0",
        systemd=_text(sections, "init").strip() == "systemd",
        systemd_version=int(systemd[1]) if systemd else 0,
        pythons=tuple(name for name, _, level in pythons if name != "3" and level == "final"),
        prereleases={name: full for name, full, level in pythons if name != "3" and level != "final"},
        python3=next((full for name, full, _ in pythons if name == "3"), None),
        cpus_online=_parsed(sections, "cpus", number_list),
        monitored=bool(_text(sections, "monitoring").strip()),
        free_kib=_parsed(sections, "disk", lambda text: {p: int(kib) for p, _, kib in _rows(text)}),
        sysctls=sysctls,
        packages=frozenset(_text(sections, "packages").split()),
        user=user.strip() or None,
        group=group.strip() or None,
    )


def read_hardware(sections: Mapping[str, Answer]) -> Hardware:
    """From the sections of the fact Hardware. Raises Refused with the driver's own words where it lists no GPUs."""
    cpus_of = _parsed(sections, "nodes", lambda text: {int(n): number_list(cpus) for n, _, cpus in _rows(text)})
    rows = _parsed(
        sections, "distances", lambda text: {int(n): [int(one) for one in row.split()] for n, _, row in _rows(text)}
    )
    nodes = tuple(
        NumaNode(n, cpus, dict(zip(sorted(rows), rows.get(n, []), strict=False))) for n, cpus in cpus_of.items()
    )
    numa_of = _parsed(sections, "pci", lambda text: {bus_id: int(node) for bus_id, _, node in _rows(text)})
    driver = module_version(_text(sections, "driver"))
    answer = _answer(sections, "gpus")
    _require_list(answer)
    topo, p2p = _read(parse_topo_matrix, sections, "topo"), _read(parse_p2p_matrix, sections, "p2p")
    gpus = tuple(_gpu(line, numa_of, topo) for line in answer.text.splitlines() if line.strip())
    return Hardware(gpus, nodes, topo, p2p, driver, _open_files(sections))


def read_without_gpus(sections: Mapping[str, Answer]) -> Hardware:
    """As read_hardware, of a host that runs no server: whatever GPUs it has are left alone."""
    return Hardware((), (), None, None, None, _open_files(sections))


def _open_files(sections: Mapping[str, Answer]) -> float:
    limits, pid1 = (sections[name].text if name in sections else "" for name in ("limits", "pid1"))
    hard = hard_limit(limits, "Max open files")
    return float("inf") if hard is None or may_raise_limits(pid1) is not False else hard


def hard_limit(text: str, name: str) -> float | None:
    """A hard limit in /proc/PID/limits, inf for "unlimited"; None where it is not in it."""
    row = re.search(rf"^{name}\s+\S+\s+([0-9]+|unlimited)\s", text + "\n", re.MULTILINE)
    return None if row is None else float("inf") if row[1] == "unlimited" else float(row[1])


def may_raise_limits(text: str) -> bool | None:
    """Whether /proc/PID/status tells of CAP_SYS_RESOURCE, which raises hard limits; None where it does not say."""
    row = re.search(r"^CapEff:\s*([0-9a-f]+)$", text, re.MULTILINE)
    return bool(int(row[1], 16) & CAP_SYS_RESOURCE) if row else None


def module_version(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, None where no module is loaded."""
    loaded = re.search(r"Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)", text)
    return loaded[1] if loaded else None


def _require_list(answer: Answer) -> None:
    """Raises Refused where nvidia-smi lists no GPU: there is nothing to plan with."""
    said = tuple(line.strip() for line in answer.text.splitlines() if line.strip())[:3]
    if answer.status == 127:
        raise Refused(
            error(
                "gpu/driver/answers",
                "no nvidia-smi on this host",
                "install the NVIDIA driver first (open kernel modules on Blackwell), or let manage_driver do it",
                *said,
            )
        )
    if answer.status in (124, 137):
        raise Refused(
            error(
                "gpu/driver/answers",
                f"nvidia-smi gave {said[0] if said else 'no answer within its limit'}",
                "switch persistence on (`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1`) and run "
                "again: without it each card is started anew for every question; where that does not help the driver "
                "hangs: look at `dmesg | grep -i xid`",
            )
        )
    if answer.status != 0:
        check = "gpu/driver/match" if MISMATCH in answer.text else "gpu/driver/answers"
        line = f"nvidia-smi fails: {quoted(answer.text)}"
        raise Refused(error(check, line, _driver_advice(answer.text), *said))
    if not said:
        raise Refused(
            error(
                "gpu/driver/answers",
                "nvidia-smi lists no GPU although the driver is loaded",
                "`dmesg | grep NVRM` says why: the driver does not know the card (install one that does), the card did "
                "not start, or there is none (`lspci -d 10de:`)",
            )
        )


def read_listeners(sections: Mapping[str, Answer]) -> tuple[Listener, ...]:
    """From the sections of the fact Listeners."""
    owners = _parsed(sections, "owners", lambda text: dict(map(_owner, text.splitlines())))
    holders = _parsed(sections, "sockets", _holders)
    return _parsed(
        sections, "listeners", lambda text: tuple(_listener(line, holders, owners) for line in text.splitlines())
    )


def _holders(text: str) -> dict[str, int]:
    """Inode of a socket -> the first process that holds it."""
    held = [(inode, int(pid)) for inode, _, pid in _rows(text) if inode]
    return dict(sorted(held, reverse=True))


def _owner(line: str) -> tuple[int, tuple[str, str | None]]:
    pid, unit, command = [*line.split("\t", 2), "", ""][:3]
    return int(pid), (command.strip() or ENDED, unit or None)


def _listener(line: str, holders: Mapping[str, int], owners: Mapping[int, tuple[str, str | None]]) -> Listener:
    """From a protocol, an address and an inode of /proc/net: tcp 0100007F:1F40 123."""
    protocol, address, inode = line.split(" ")
    words, _, port = address.rpartition(":")
    holder = holders.get(inode)
    command, unit = owners.get(holder, (ENDED, None)) if holder else ("a process without a pid", None)
    return Listener(protocol, _address(words), int(port, 16), holder, command, unit)


def _address(words: str) -> str:
    """127.0.0.1 of 0100007F: words of four bytes, the last byte first."""
    swapped = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    return str(ipaddress.ip_address(swapped))


def _gpu(line: str, numa_of: Mapping[str, int], topo: TopoMatrix | None) -> Gpu:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(GPU_COLUMNS.split(",")) or not cells[0].isdecimal():
        raise Refused(
            error(
                "gpu/driver/answers",
                f"nvidia-smi's list of GPUs cannot be read, its line says {quoted(line)!r}",
                "run `nvidia-smi` on the host",
                line.strip(),
            )
        )
    index, uuid, bus, name, capability, driver, memory, persistence, mig = cells
    bus_id = bus.lower()[-12:]
    numa: int | None = numa_of.get(bus_id, -1)
    if numa is None or numa < 0:
        near = next((gpu.numa for gpu in topo.gpus if gpu.index == int(index)), ()) if topo else ()
        numa = near[0] if len(near) == 1 else None
    return Gpu(
        int(index), uuid, bus_id, name, capability, driver, int(memory) if memory.isdecimal() else 0,
        persistence == "Enabled", mig == "Enabled", numa,
    )  # fmt: skip


def _read(parse: Callable[[str], T], sections: Mapping[str, Answer], name: str) -> T | None:
    """A matrix, None where it cannot be read."""
    answer = _answer(sections, name)
    try:
        return parse(answer.text) if answer.status == 0 else None
    except TopologyError:
        return None


def _driver_advice(text: str) -> str:
    if MISMATCH in text:
        return "the driver's library was upgraded under the loaded module; reboot the host, then run again"
    if "couldn't communicate with the NVIDIA driver" in text:
        return "the kernel module is not loaded; `modprobe nvidia`, or rebuild it for the running kernel"
    return "mend the driver, then run again"


def _answer(sections: Mapping[str, Answer], name: str) -> Answer:
    if name not in sections:
        raise PlanError(f"the host's answer is cut short: it holds no {name!r}; run again")
    return sections[name]


def _text(sections: Mapping[str, Answer], name: str) -> str:
    return _answer(sections, name).text


def _parsed(sections: Mapping[str, Answer], name: str, parse: Callable[[str], T]) -> T:
    """A section as a value. Raises PlanError that quotes what `parse` cannot read."""
    text = _text(sections, name)
    try:
        return parse(text)
    except ValueError:
        raise PlanError(f"the host's answer to {name!r} cannot be read: {quoted(text)!r}") from None


def _rows(text: str) -> list[tuple[str, str, str]]:
    """Lines of two words; the second may be empty."""
    return [line.partition(" ") for line in text.splitlines()]
