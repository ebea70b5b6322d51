"""Plans, hosts and releases for tests: real objects, made from the settings' own defaults and from readable data.

Nothing here is imported by the code under test, and nothing of it is replaced.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tasks.plan.fleet import members, service
from tasks.plan.fleet.members import Inventoried
from tasks.plan.host import answers as reading
from tasks.plan.host.answers import Answer, Hardware, System
from tasks.plan.model import derive
from tasks.plan.model.profile import ModelProfile
from tasks.plan.plan import Plan
from tasks.plan.proof import judgement as proof
from tasks.plan.proof import probe
from tasks.plan.release.manifest import Manifest, Release
from tasks.plan.release.patches import Patch, PatchManifest
from tasks.plan.service import instances, placement, rules
from tasks.plan.service.instances import Instance
from tasks.plan.service.paths import Paths
from tasks.plan.service.watching import Watched, Watching
from tasks.plan.settings import settings as settings_module
from tasks.plan.settings.place import ALONE, Place
from tasks.plan.settings.settings import Settings
from tasks.support import catalogue
from tests.node import hardware as recorded_hardware
from tests.node.settings import DEFAULTS, variables
from tests.plan import proofs

REPOSITORY = Path(__file__).resolve().parents[2]
API_KEY = "a key with spaces, $dollars and 'quotes'"
GPU_NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


# ---- settings


def defaults() -> dict[str, object]:
    return variables(DEFAULTS)


def settings(place: Place = ALONE, **changes: object) -> Settings:
    """group_data/all.py with changes."""
    return settings_module.load({**defaults(), **changes}, place)


# ---- releases and models


def manifest(**changes: object) -> Manifest:
    """A release for CUDA 13.0 that spells everything out and knows no special limit."""
    fields: dict[str, object] = {
        "name": "sglang-9.9-cu130",
        "description": "for tests",
        "device": "cuda",
        "sglang": "9.9",
        "torch": "9.1.0",
        "cuda": "13.0",
        "packages": {},
        "ucx": "1.23",
        "routers": {"sglang-router": "9.3", "smg": "9.4"},
        "python": ["3.11", "3.12"],
        "glibc": "2.34",
        "driver_minimum": 580,
        "compute_capabilities": ["12.0"],
        "patches": [],
        "jit": [],
        "system_packages": ["g++"],
        "spelling": {
            "decode_graph_max_batch": ["--cuda-graph-max-bs-decode", "{value}"],
            "prefill_graph_off": ["--cuda-graph-backend-prefill=disabled"],
        },
        "renamed": {"--cuda-graph-max-bs": "--cuda-graph-max-bs-decode"},
        "removed": ["--long-gone"],
        "serves": ["speculative", "pcie_ipc_allreduce", "kv_checksum"],
        "chunked_prefill_maximum": None,
        "indexer_walks_whole_context": False,
        "notes": [],
    }
    return Manifest.model_validate({**fields, **changes})


def overlay(name: str = "shim", files: Mapping[str, bytes] | None = None, **manifest: object) -> Patch:
    """An overlay of two files, for every SGLang and GPU."""
    files = (
        files
        if files is not None
        else {f"pd_overlay_{name}/__init__.py": b"one\n", f"pd_overlay_{name}.pth": b"import x\n"}
    )
    return Patch(patch_manifest(name=name, files=list(files), **manifest), files)


def patch_manifest(**changes: object) -> PatchManifest:
    """Of an overlay; None takes a field away."""
    fields: dict[str, object] = {
        "name": "shim",
        "description": "for tests",
        "why": "to test",
        "sglang": "",
        "apply": "overlay",
        "files": ["pd_overlay_shim.pth"],
        "tests": "tests/plan",
        "source": "written for a test",
    }
    return PatchManifest.model_validate({k: v for k, v in {**fields, **changes}.items() if v is not None})


def release(
    found: Manifest | None = None,
    python: str = "3.11",
    lock: str = "sglang==9.9 --hash=sha256:00\n",
    router_lock: str = "sglang-router==9.3 --hash=sha256:00\n",
    patches: Iterable[Patch] = (),
) -> Release:
    return Release(found or manifest(), python, lock, router_lock, tuple(patches))


def profile(**changes: object) -> ModelProfile:
    """A model of 64 heads that is fetched from a hub."""
    fields: dict[str, object] = {
        "name": "some-model",
        "served_name": "some",
        "source": {"hub": "someone/some-model", "revision": "0" * 40},
        "size_gb": 146.0,
        "heads": 64,
        "kv_heads": 1,
        "maximum_context": 1048576,
        "quantization": None,
        "dtype": None,
        "page_size": 256,
        "kv_buffers": [{"name": "KV", "count": 43, "page_bytes": 149760}],
        "kv_cache_dtype": "fp8_e4m3",
        "attention_backend": "dsv4",
        "moe_runner_backend": {"9.9": "triton"},
        "arguments": [],
        "decode_arguments": [],
        "environment": {},
        "reasoning_parser": None,
        "tool_call_parser": None,
        "golden": [{"name": "arithmetic", "prompt": "17*23?", "expect": "391"}],
    }
    return ModelProfile.model_validate({**fields, **changes})


# ---- hardware


def cpus_of_node(node: int) -> str:
    """Kernel list of a node of 64 cores with two threads each, in a host with two nodes: 0 is '0-63,128-191'."""
    return f"{node * 64}-{node * 64 + 63},{node * 64 + 128}-{node * 64 + 191}"


def topo_text(nodes: list[int], links: Mapping[tuple[int, int], str] = MappingProxyType({})) -> str:
    """`nvidia-smi topo -m` of a host whose GPU i is on NUMA node nodes[i]; -1: the matrix does not say.

    links: of pairs (lower, higher) that differ from NODE inside a node and SYS between nodes.
    """
    indices = range(len(nodes))
    lines = ["\t" + "\t".join(f"GPU{i}" for i in indices) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for i in indices:
        usual = ["X" if i == j else "NODE" if nodes[i] == nodes[j] else "SYS" for j in indices]
        row = [links.get((min(i, j), max(i, j)), usual[j]) for j in indices]
        near = f"{cpus_of_node(nodes[i])}\t{nodes[i]}" if nodes[i] >= 0 else "\t"
        lines.append(f"GPU{i}\t" + "\t".join(f"{link:^3}" for link in row) + f"\t{near}\t\tN/A")
    return "\n".join(lines)


def p2p_text(count: int) -> str:
    lines = [" \t" + "".join(f"GPU{i}\t" for i in range(count))]
    for i in range(count):
        lines.append(f" GPU{i}\t" + "".join(("X" if i == j else "OK") + "\t" for j in range(count)))
    return "\n".join(lines)


def gpu_line(index: int, driver: str = "580.95.05", capability: str = "12.0", mig: str = "Disabled") -> str:
    uuid = f"GPU-{index:08d}-0000-0000-0000-000000000000"
    return f"{index}, {uuid}, 00000000:{index + 1:02X}:00.0, {GPU_NAME}, {capability}, {driver}, 97887, Enabled, {mig}"


def module_text(driver: str) -> str:
    return f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (dvs-builder@x)\n"


def hardware_sections(nodes: list[int], driver: str = "580.95.05") -> dict[str, Answer]:
    """What the fact Hardware brings from a host whose GPU i is on NUMA node nodes[i] (-1: nobody says)."""
    return {
        "driver": Answer(0, module_text(driver)),
        "nodes": Answer(0, "\n".join(f"{n} {cpus_of_node(n)}" for n in sorted(set(nodes)) if n >= 0)),
        "distances": Answer(0, ""),
        "pci": Answer(0, "\n".join(f"0000:{i + 1:02x}:00.0 {node}" for i, node in enumerate(nodes))),
        "gpus": Answer(0, "\n".join(gpu_line(i, driver) for i in range(len(nodes)))),
        "topo": Answer(0, topo_text(nodes)),
        "p2p": Answer(0, p2p_text(len(nodes))),
    }


def hardware(
    nodes: list[int],
    driver: str = "580.95.05",
    links: Mapping[tuple[int, int], str] = MappingProxyType({}),
    distances: str = "",
    **sections: Answer,
) -> Hardware:
    """links: as in topo_text; distances: lines of a node and its row of the SLIT; sections: replace others."""
    changed = {"topo": Answer(0, topo_text(nodes, links)), "distances": Answer(0, distances), **sections}
    return reading.read_hardware({**hardware_sections(nodes, driver), **changed})


def recorded(name: str, folder: Path) -> Hardware:
    """A recording of tests/node/hardware, read as the fact Hardware reads the node that replays it."""
    recorded_hardware.write(name, folder)
    folder = folder / recorded_hardware.RECORDED
    answers = {
        " ".join((answer / "args").read_text().split()): (answer / "stdout").read_text()
        for answer in (folder / "commands" / "nvidia-smi").iterdir()
    }
    query = f"--query-gpu={reading.GPU_COLUMNS} --format=csv,noheader,nounits"
    sys = folder / "files" / "sys"
    nodes = sorted((sys / "devices/system/node").glob("node[0-9]*"))
    devices = sorted((sys / "bus/pci/devices").iterdir())
    return reading.read_hardware(
        {
            "driver": Answer(0, (folder / "files/proc/driver/nvidia/version").read_text()),
            "nodes": Answer(0, "\n".join(f"{n.name[4:]} {(n / 'cpulist').read_text().strip()}" for n in nodes)),
            "distances": Answer(0, "\n".join(f"{n.name[4:]} {(n / 'distance').read_text().strip()}" for n in nodes)),
            "pci": Answer(0, "\n".join(f"{d.name} {(d / 'numa_node').read_text().strip()}" for d in devices)),
            "gpus": Answer(0, answers[query]),
            "topo": Answer(0, answers["topo -m"]),
            "p2p": Answer(0, answers["topo -p2p rw"]),
        }
    )


TWO_SOCKETS = [0, 0, 0, 0, 1, 1, 1, 1]


# ---- a host's system


def system_sections(**changes: str) -> dict[str, Answer]:
    """What the fact System brings from a bare Debian 12 with plenty of room, reached as root."""
    texts = {
        "uid": "0",
        "os": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"',
        "machine": "x86_64",
        "glibc": "glibc 2.36",
        "init": "systemd",
        "systemd": "systemd 252 (252.39-1~deb12u1)",
        "pythons": "3 3.11.2 final\n3.11 3.11.2 final",
        "cpus": "0-255",
        "disk": "/opt/sglang-pd 900000000\n/var/lib/sglang-pd 900000000",
        "sysctl": "net.ipv4.ip_local_reserved_ports=\nkernel.numa_balancing=1",
        "packages": "python3",
        "user": "",
        "monitoring": "",
    }
    return {name: Answer(0, text) for name, text in {**texts, **changes}.items()}


def system(**changes: str) -> System:
    return reading.read_system(system_sections(**changes))


# ---- plans


def servers(
    wanted: Settings, found: Hardware, built: Release | None = None, model: ModelProfile | None = None
) -> tuple[Instance, ...]:
    """Prefill, decode and router as the plan makes them, the rules of release and model included."""
    built, model = built or replace(release(), router=wanted.router), model or profile()
    rules.check(wanted, built.manifest, frozenset(), model)
    paths = Paths.of(wanted, model)
    served = instances.workers(wanted, built, model, placement.place(wanted.roles, found), paths)
    return (*served, *([instances.router(wanted, built, served, paths)] if wanted.routes else []))


def plan(
    wanted: Settings,
    found: Hardware,
    built: Release | None = None,
    model: ModelProfile | None = None,
    api_key: str | None = None,
) -> Plan:
    built, model = built or release(), model or profile()
    every = servers(wanted, found, built, model)
    return Plan(
        settings=wanted,
        release=built,
        profile=model,
        paths=Paths.of(wanted, model),
        system=system(),
        hardware=found,
        instances=every,
        uv_requirement=catalogue.uv_lock(),
        watching=Watching((Watched("gpu-1", wanted),)) if wanted.monitoring else None,
        api_key=api_key,
    )


def catalogue_plan(
    data: Mapping[str, object], found: Hardware, api_key: str | None = None, place: Place = ALONE
) -> Plan:
    """A plan with a release and a model of files/, as the deploy makes it from group_data/all.py and `data`."""
    wanted = settings(place, **data)
    named = catalogue.manifest(wanted.release)
    patches = catalogue.chosen_patches(named, wanted.patches, wanted.patch_dir, more=wanted.more_patches)
    python = "3.11" if wanted.python == "auto" else wanted.python
    described = (
        catalogue.described(named, python, wanted.torch_wheel, wanted.router, patches)
        if wanted.serves
        else catalogue.described_without_servers(named, python, wanted.router)
    )
    profile, _ = derive.settled(catalogue.stated(wanted.model), None, wanted.served_name)
    made = plan(wanted, found, described.release, profile, api_key)
    return replace(made, arguments=described.arguments)


# ---- several hosts

REACHED = {f"gpu-{number}": (f"10.1.0.{number}", "eth1") for number in range(1, 8)} | {"gw-1": ("10.1.0.9", "eth0")}
TWO_HOSTS: Mapping[str, tuple[str, ...]] = {"gpu-1": ("prefill", "router"), "gpu-2": ("decode",)}


def inventoried(
    groups: Mapping[str, tuple[str, ...]] = TWO_HOSTS, **changes: Mapping[str, object]
) -> list[Inventoried]:
    """Hosts with their groups. changes: settings by host, gpu_1 for gpu-1."""
    return [
        Inventoried(
            name,
            ("all", *played, name),
            {**defaults(), "service_address": REACHED[name][0], **changes.get(name.replace("-", "_"), {})},
        )
        for name, played in groups.items()
    ]


def fleet_plans(groups: Mapping[str, tuple[str, ...]] = TWO_HOSTS, **changes: Mapping[str, object]) -> dict[str, Plan]:
    """The plan of each host, all of two sockets."""
    hosts = inventoried(groups, **changes)
    found = members.together(members.known(members.members(hosts)), "main")
    joined = service.joined(found, {host.name: host.data for host in hosts}, REACHED)
    made = {}
    for host in hosts:
        wanted = joined[host.name]
        of_host = {name: value for name, value in host.data.items() if value != defaults()[name]}
        cards = hardware(TWO_SOCKETS) if wanted.settings.serves else reading.read_without_gpus({})
        planned = catalogue_plan(of_host, cards, place=wanted.settings.place)
        made[host.name] = replace(planned, others=wanted.others)
    return made


def options(instance: Instance) -> dict[str, str]:
    """Option -> its values, of an instance's arguments."""
    return {line[0]: " ".join(line[1:]) for line in instance.arguments}


# ---- what pd-probe measures

BOOT = "11111111-2222-3333-4444-555555555555"


def measured(planned: Plan, boot: str = BOOT, gbps: float = 40.0) -> dict[str, Any]:
    """A measurement of a host on which everything is as it should be, with the sizes and pairs of its plan."""
    asked = probe.configuration(planned)
    on_gpu = asked["device"] == "cuda"
    shapes = [proofs.row(each["bytes"], max(each["bytes"] / gbps / 1000, 2.7)) for each in asked["shapes"]]
    gpus = asked["peer"]["gpus"]
    copies = [
        {"from": a, "to": b, "bytes": 1 << 28, "gbps": gbps, "same_bytes": True, "peer_access": True}
        for a in gpus
        for b in gpus
        if a != b
    ]
    groups = [
        {
            "instance": each["name"], "gpus": each["gpus"], "control": None, "reason": "",
            "outcome": "right" if len(each["gpus"]) > 1 else "single", "bus_gbps": 22.0, "us_small": 31.0,
        }
        for each in asked["instances"]
    ]  # fmt: skip
    pairs = [
        proofs.pair(
            each["from"], each["to"], prefill=each["prefill"], decode=each["decode"], cuda_ipc=on_gpu, plain_gbps=gbps,
            alone=[dict(shape) for shape in shapes], together=[dict(shape) for shape in shapes],
        )
        for each in asked["pairs"]
    ]  # fmt: skip
    return {
        **proofs.proof(pairs, peer={**proofs.DONE, "pairs": copies}, all_reduce={**proofs.DONE, "groups": groups}),
        "device": asked["device"],
        "depends": {
            "driver": asked["driver"],
            "release": asked["release"],
            "gpus": sorted(uuid for each in asked["instances"] for uuid in each["uuids"]),
            "boot": boot,
            "settings": proof.config_file(planned).sha256,
        },
    }
