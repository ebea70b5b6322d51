"""A host as the checks see it: every answer of a healthy one, to be changed one at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tasks.plan import checks
from tasks.plan.checks import CHECKS, Found
from tasks.plan.findings import Finding, Level
from tasks.plan.host import answers as reading
from tasks.plan.host.answers import Answer
from tasks.plan.phases.system import directories
from tasks.plan.plan import Plan
from tasks.plan.settings.settings import Settings
from tests.node import hardware as recorded_hardware
from tests.plan.builders import (
    TWO_SOCKETS,
    hardware_sections,
    manifest,
    overlay,
    plan,
    release,
    settings,
    system_sections,
)

Changes = Mapping[str, str | Answer | None]  # answers of a host by name: a text, one with its status, None = missing

NOW = 1_764_500_000
KERNEL = "1204 lines, the first: [    0.000000] Linux version 6.8.0"
XID79 = "[  90.1] NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
HEALTHY_CARD = {
    "utilization.gpu": "0",
    "memory.used": "0",
    "pcie.link.gen.current": "1",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "ecc.mode.current": "Enabled",
}


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


def health_line(index: int, **changes: str) -> str:
    """One card's line of the query; `changes` by column, its dots as underscores."""
    given = {name.replace("_", "."): value for name, value in changes.items()}
    columns = reading.HEALTH_COLUMNS.split(",")
    assert given.keys() <= set(columns), given
    cells = {**dict.fromkeys(columns, "0"), **HEALTHY_CARD, **given, "index": str(index)}
    return ", ".join(cells[name] for name in columns)


def health_text(count: int, **of_gpu: dict[str, str]) -> str:
    """Lines of `count` cards; gpu3={"memory_used": "4000"} changes one of them."""
    return "\n".join(health_line(index, **of_gpu.get(f"gpu{index}", {})) for index in range(count))


def healthy_answers(nodes: list[int]) -> dict[str, Answer]:
    """Everything that the facts bring from a healthy host whose GPU i is on NUMA node nodes[i]."""
    count = len(nodes)
    texts = {
        "controllers": "\n".join(f"0000:{i + 1:02x}:00.0 0x030200" for i in range(count)),
        "licence": "Dual MIT/GPL",
        "iommu": "cmdline BOOT_IMAGE=/vmlinuz ro iommu=off",
        "acs": "00:01.1 PCI bridge: Some bridge\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir-",
        "kernel": KERNEL,
        "shm": "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 528000000 0 528000000 0% /dev/shm",
        "pid1": "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-255\nMems_allowed_list:\t0-1",
        "limits": "Max open files            1024                 524288               files     \n"
        "Max locked memory         8388608              8388608              bytes     ",
        "memory": "MemTotal:       1584850944 kB\nMemAvailable:   1560000000 kB",
        "nodememory": "\n".join(
            f"Node {n} MemTotal:       792244224 kB\nNode {n} MemFree:        782450688 kB"
            for n in sorted(set(nodes))
            if n >= 0
        ),
        "health": health_text(count),
        "rows": "\n".join(f"{uuid(i)}, No, No" for i in range(count)),
        "apps": "",
        "holders": "",
        "fabric": "\n".join(f"{i}, [N/A], [N/A]" for i in range(count)),
        "fabricmanager": "LoadState=not-found\nActiveState=inactive",
        "warned": "",
        "own": "",
        "clock": f"{NOW}\nyes",
        "upgrades": "package ii  apt",
        "listeners": "tcp 00000000:0016 4711",
        "sockets": "4711 1",
        "owners": "1\tssh.service\tsshd: listener",
        "enforced": "refused",
        "files": "",
        "variables": "SGLANG_HOST_IP\nSGLANG_USE_SOMETHING",
        "patches": "fit: shim",
        **{f"binding numactl --cpunodebind={n} --membind={n}": "" for n in set(nodes)},
    }  # fmt: skip
    sysctl = (
        "net.ipv4.ip_local_reserved_ports=\nkernel.numa_balancing=1\n"
        "net.ipv4.ip_local_port_range=32768\t60999\nfs.nr_open=1073741816"
    )
    return {
        **system_sections(sysctl=sysctl),
        **hardware_sections(nodes),
        **{name: Answer(0, text) for name, text in texts.items()},
    }


def place(path: str, *parts: str) -> str:
    """What the fact Planned says of a folder on a bare Debian; `parts`: "PATH KIND MODE OWNER GROUP TARGET", and filled."""
    there = {"/opt": "directory 755 root root", "/etc": "directory 755 root root", "/var": "directory 755 root root"}
    there["/var/lib"] = "directory 755 root root"
    changed = dict(part.partition(" ")[::2] for part in parts if part != "filled")
    rows = []
    for own in [path[:end] for end in range(2, len(path) + 1) if end == len(path) or path[end] == "/"]:
        words = changed.get(own, there.get(own))
        if words is None:
            return "\n".join(rows)
        kind, mode, owner, group, target = [*words.split(" "), ""][:5]
        rows.append("\t".join((kind, mode, owner, group, own, target)))
    return "\n".join([*rows, *(["filled"] if "filled" in parts else [])])


def places(made: Plan, *parts: str) -> dict[str, Answer]:
    return {f"place {one.path}": Answer(0, place(one.path, *parts)) for one in directories(made)}


def found(
    changes: Changes | None = None,
    nodes: list[int] | None = None,
    wanted: Settings | None = None,
    made: Plan | None = None,
    device: str = "cuda",
) -> Found:
    """A healthy host with some answers changed: a text, an answer with its status, or None where it is missing."""
    answers = healthy_answers(nodes or TWO_SOCKETS)
    for name, change in (changes or {}).items():
        if change is None:
            answers.pop(name)
        else:
            answers[name] = change if isinstance(change, Answer) else Answer(0, change)
    cpu: dict[str, object] = {"device": "cpu", "driver_minimum": None, "cuda": None, "compute_capabilities": []}
    of_release = manifest(**(cpu if device == "cpu" else {}))
    wanted = wanted or settings()
    hardware = reading.read_hardware(answers)
    made = made or plan(wanted, hardware, release(of_release, patches=[overlay(compute_capabilities=["12.0"])]))
    every = {**places(made), **answers}
    return Found(wanted, of_release, reading.read_system(answers), every, NOW, hardware, made)


def finding(check: str, *arguments: object, **keywords: object) -> Finding:
    """What one check says of a host made by `found`."""
    return CHECKS[check].finding(found(*arguments, **keywords))  # type: ignore[arg-type]


def verdicts(host: Found) -> dict[str, Finding]:
    """Every check's finding, by id."""
    every = [one for needs in ("system", "hardware", "plan") for one in checks.judged(host, needs)]  # type: ignore[arg-type]
    return {one.id: one for one in every}


def assert_verdict(check: str, changes: Changes, data: Mapping[str, object], level: Level, words: str) -> None:
    """A host made by `found` with these settings is judged so. words: parts of the sentence, "|" between them."""
    said = finding(check, changes, wanted=settings(**data))
    assert said.level is level, said
    for word in words.split("|"):
        assert word in said.sentence, said
    assert "\n" not in said.sentence
    if level is not Level.HEALTHY:
        assert said.advice
    if level is Level.ERROR:
        assert said.stops
    assert all(line.strip() and "\n" not in line for line in said.evidence)


def recorded_answers(name: str, folder: Path) -> dict[str, Answer]:
    """The answers of a recorded host; what no recording holds is a healthy host's."""
    recorded_hardware.write(name, folder)
    folder = folder / recorded_hardware.RECORDED
    said = {
        (tool.name, " ".join((answer / "args").read_text().split())): Answer(
            int((answer / "rc").read_text()) if (answer / "rc").exists() else 0, (answer / "stdout").read_text()
        )
        for tool in (folder / "commands").iterdir()
        for answer in tool.iterdir()
    }

    def ask(tool: str, arguments: str) -> Answer:
        return said.get((tool, arguments)) or said.get((tool, "*")) or Answer(127, "")

    def smi(query: str) -> Answer:
        return ask("nvidia-smi", f"{query} --format=csv,noheader,nounits")

    sys = folder / "files/sys"
    nodes = sorted((sys / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    devices = sorted((sys / "bus/pci/devices").iterdir())

    def of_cards(name: str) -> Answer:
        return Answer(0, "\n".join(f"{d.name} {(d / name).read_text().strip()}" for d in devices))

    log = ask("dmesg", "").text
    events = [line for line in log.splitlines() if re.search("NVRM: (Xid|.*fallen off)", line)]
    driver, status = folder / "files/proc/driver/nvidia/version", (folder / "files/proc/1/status").read_text()
    return {
        **healthy_answers(TWO_SOCKETS),
        "driver": Answer(0, driver.read_text() if driver.exists() else ""),
        "nodes": Answer(0, "\n".join(f"{n.name[4:]} {(n / 'cpulist').read_text().strip()}" for n in nodes)),
        "nodememory": Answer(0, "\n".join(re.findall(r"Node .* Mem(?:Total|Free): .*", "\n".join((n / "meminfo").read_text() for n in nodes)))),
        "pci": of_cards("numa_node"),
        "controllers": of_cards("class"),
        "licence": ask("modinfo", "-F license nvidia"),
        "iommu": Answer(0, f"cmdline {(folder / 'files/proc/cmdline').read_text()}"),
        "acs": Answer(0, "\n".join(re.findall(r"^[0-9a-f]+:.*|.*ACSCtl:.*", ask("lspci", "-vv").text, re.MULTILINE))),
        "kernel": Answer(0, "\n".join([f"{len(log.splitlines())} lines, the first: {log.splitlines()[0]}", *events])),
        "pid1": Answer(0, "\n".join(re.findall(r"^(?:CapEff|Cpus_allowed_list|Mems_allowed_list):.*", status, re.MULTILINE))),
        "gpus": smi(f"--query-gpu={reading.GPU_COLUMNS}"),
        "health": smi(f"--query-gpu={reading.HEALTH_COLUMNS}"),
        "rows": smi("--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure"),
        "topo": ask("nvidia-smi", "topo -m"),
        "p2p": ask("nvidia-smi", "topo -p2p rw"),
        "apps": smi("--query-compute-apps=pid,gpu_uuid,used_memory"),
        "fabric": smi(f"--query-gpu={reading.FABRIC_COLUMNS}"),
        **{f"binding numactl --cpunodebind={n.name[4:]} --membind={n.name[4:]}": Answer(0, "") for n in nodes},
    }  # fmt: skip
