"""Each recorded hardware is complete and agrees with itself."""

import csv
import json
import re
from pathlib import Path

import pytest

from tests.node import hardware

QUERY = [
    "--query-gpu=index,uuid,pci.bus_id,name,compute_cap,driver_version,memory.total,persistence_mode,mig.mode.current",
    "--format=csv,noheader,nounits",
]
HEALTH = [
    "--query-gpu=index,utilization.gpu,memory.used,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max,ecc.mode.current,ecc.errors.uncorrected.volatile.sram,ecc.errors.uncorrected.volatile.dram,"
    "ecc.errors.uncorrected.aggregate.sram,ecc.errors.corrected.volatile.sram,ecc.errors.corrected.volatile.dram",
    "--format=csv,noheader,nounits",
]
ROWS = ["--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure", "--format=csv,noheader,nounits"]
WITH_DRIVER = [name for name in hardware.names() if name not in {"driver-mismatch", "no-nvidia"}]


@pytest.fixture(params=WITH_DRIVER)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    hardware.write(request.param, tmp_path)
    return tmp_path / hardware.RECORDED


def answer(recorded: Path, tool: str, *arguments: str) -> str:
    """The one recorded answer to these arguments."""
    wanted = "".join(f"{argument}\n" for argument in arguments)
    found = [folder for folder in (recorded / "commands" / tool).iterdir() if (folder / "args").read_text() == wanted]
    assert len(found) == 1, f"{len(found)} answers to {tool} {arguments}"
    return (found[0] / "stdout").read_text()


def gpus(recorded: Path) -> list[list[str]]:
    return list(csv.reader(answer(recorded, "nvidia-smi", *QUERY).splitlines(), skipinitialspace=True))


def expand(cpus: str) -> set[int]:
    ranges = [part.split("-") for part in cpus.strip().split(",")]
    return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}


def topology_rows(recorded: Path) -> list[list[str]]:
    text = re.sub(r"\x1b\[\d+m", "", answer(recorded, "nvidia-smi", "topo", "-m"))
    return [line.split("\t") for line in text.splitlines() if line.startswith("GPU")]


def test_every_answer_about_gpus_names_the_same(recorded: Path) -> None:
    found = gpus(recorded)
    assert [gpu[0] for gpu in found] == [str(index) for index in range(len(found))]
    listed = re.findall(r"GPU (\d+): (.*) \(UUID: (.*)\)", answer(recorded, "nvidia-smi", "-L"))
    assert listed == [(gpu[0], gpu[3], gpu[1]) for gpu in found]
    bus_ids = [gpu[2].lower().removeprefix("0000") for gpu in found]
    folder = recorded / "files/proc/driver/nvidia/gpus"
    assert sorted(path.name for path in folder.iterdir()) == sorted(bus_ids)
    on_bus = sorted(path.name for path in (recorded / "files/sys/bus/pci/devices").iterdir())
    assert [bus_id for bus_id in on_bus if bus_id in bus_ids] == sorted(bus_ids)
    for gpu, bus_id in zip(found, bus_ids, strict=True):
        assert gpu[1] in (folder / bus_id / "information").read_text()
        assert gpu[2] in answer(recorded, "nvidia-smi")
    assert len(re.findall(r"3D controller: NVIDIA", answer(recorded, "lspci", "-vv"))) == len(on_bus)
    of_health = csv.reader(answer(recorded, "nvidia-smi", *HEALTH).splitlines(), skipinitialspace=True)
    assert [line[0] for line in of_health] == [gpu[0] for gpu in found]
    rows = csv.reader(answer(recorded, "nvidia-smi", *ROWS).splitlines(), skipinitialspace=True)
    assert [line[0] for line in rows] == [gpu[1] for gpu in found]
    assert len(answer(recorded, "nvidia-smi", "topo", "-p2p", "rw").split("Legend")[0].strip().splitlines()) - 1 == len(
        found
    )


def test_driver_version_is_the_same_everywhere(recorded: Path) -> None:
    versions = {gpu[5] for gpu in gpus(recorded)}
    assert len(versions) == 1
    version = versions.pop()
    assert f"x86_64  {version}  Release" in (recorded / "files/proc/driver/nvidia/version").read_text()
    assert f"Driver Version: {version} " in answer(recorded, "nvidia-smi")
    assert f"x86_64  {version}  Release" in answer(recorded, "dmesg")
    for information in (recorded / "files/proc/driver/nvidia/gpus").glob("*/information"):
        assert f"GPU Firmware: \t {version}\n" in information.read_text()


def test_topology_agrees_with_pci_and_numa(recorded: Path) -> None:
    rows, count = topology_rows(recorded), len(gpus(recorded))
    assert len(rows) == count
    nodes = recorded / "files/sys/devices/system/node"
    numa = [int(row[count + 2]) for row in rows]
    for row, gpu, node in zip(rows, gpus(recorded), numa, strict=True):
        device = recorded / "files/sys/bus/pci/devices" / gpu[2].lower().removeprefix("0000")
        assert (device / "numa_node").read_text().strip() == str(node)
        cpus = (nodes / f"node{node}/cpulist").read_text().strip()
        assert (device / "local_cpulist").read_text().strip() == row[count + 1] == cpus
        assert f"{gpu[2].lower()[9:]} 3D" in answer(recorded, "lspci", "-vv")
    for one in range(count):
        for other in range(count):
            link = rows[one][other + 1]
            assert link == rows[other][one + 1]
            assert (link == " X ") == (one == other)
            assert (link == "SYS") == (numa[one] != numa[other])


def test_numa_nodes_are_the_same_everywhere(recorded: Path) -> None:
    folder = recorded / "files/sys/devices/system/node"
    nodes = expand((folder / "online").read_text())
    assert nodes == {int(path.name.removeprefix("node")) for path in folder.glob("node[0-9]*")}
    listed = answer(recorded, "numactl", "-H")
    assert listed == answer(recorded, "numactl", "--hardware")
    table = json.loads(answer(recorded, "lscpu", "-J"))
    every: set[int] = set()
    for node in nodes:
        cpus = expand((folder / f"node{node}/cpulist").read_text())
        words = (folder / f"node{node}/cpumap").read_text().strip().split(",")
        assert {bit for bit in range(len(words) * 32) if int("".join(words), 16) >> bit & 1} == cpus
        match = re.search(rf"^node {node} cpus: (.*)$", listed, re.MULTILINE)
        assert match is not None
        assert set(map(int, match[1].split())) == cpus
        shown = (folder / f"node{node}/cpulist").read_text().strip()
        assert f'"NUMA node{node} CPU(s):", "data": "{shown}"' in json.dumps(table)
        assert re.search(rf"NUMA node{node} CPU\(s\): +{re.escape(shown)}\n", answer(recorded, "lscpu"))
        every |= cpus
    assert f'"CPU(s):", "data": "{len(every)}"' in json.dumps(table)
    status = (recorded / "files/proc/1/status").read_text()
    assert expand(re.findall(r"^Cpus_allowed_list:\t(.*)$", status, re.MULTILINE)[0]) == every
    assert expand(re.findall(r"^Mems_allowed_list:\t(.*)$", status, re.MULTILINE)[0]) == nodes


def test_what_the_variants_are_for(tmp_path: Path) -> None:
    made = {}
    for name in hardware.names():
        hardware.write(name, tmp_path / name)
        made[name] = tmp_path / name / hardware.RECORDED
    assert [gpu[5] for gpu in gpus(made["rtx-pro-6000-x8"])] == ["580.95.05"] * 8
    assert [gpu[5] for gpu in gpus(made["driver-570"])] == ["570.172.08"] * 8
    assert len(gpus(made["two-gpus"])) == 2
    assert [row[10] for row in topology_rows(made["rtx-pro-6000-x8"])] == ["0"] * 4 + ["1"] * 4
    assert [row[10] for row in topology_rows(made["spans"])] == ["0"] * 3 + ["1"] * 5
    assert [row[10] for row in topology_rows(made["nps4"])] == ["1", "1", "3", "3", "4", "4", "6", "6"]
    assert len(list((made["nps4"] / "files/sys/devices/system/node").glob("node[0-9]*"))) == 8
    assert [row[10] for row in topology_rows(made["uneven-6-2"])] == ["0"] * 6 + ["1"] * 2
    assert len(gpus(made["one-gpu-hidden"])) == 7
    assert len(list((made["one-gpu-hidden"] / "files/sys/bus/pci/devices").iterdir())) == 8
    assert "OK" not in answer(made["p2p-all-cns"], "nvidia-smi", "topo", "-p2p", "rw").split("Legend")[0]
    assert [line.split(", ")[3] for line in answer(made["idle-gen1"], "nvidia-smi", *HEALTH).splitlines()] == list(
        "15111111"
    )
    assert not (made["no-nvidia"] / "commands/nvidia-smi").exists()
    assert not (made["no-nvidia"] / "files/proc/driver/nvidia").exists()
    assert answer(made["driver-mismatch"], "nvidia-smi", "*").startswith("Failed to initialize NVML")


def test_shims_stand_for_the_recorded_tools_only(tmp_path: Path) -> None:
    hardware.write("no-nvidia", tmp_path)
    shims = sorted(path.name for path in (tmp_path / hardware.EARLY_ON_PATH).iterdir())
    assert shims == ["dmesg", "lscpu", "lspci", "modinfo", "numactl"]
