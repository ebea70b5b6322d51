"""Every check: fine, not fine, and not to be read. A line with figures, evidence, and what to do."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.checks import CHECKS
from tasks.plan.findings import Level
from tasks.plan.host.answers import Answer
from tasks.support import catalogue
from tests.plan.builders import TWO_SOCKETS, fleet_plans, gpu_line, module_text, p2p_text, settings
from tests.plan.judging import (
    KERNEL,
    NOW,
    XID79,
    Changes,
    assert_verdict,
    finding,
    found,
    health_line,
    health_text,
    uuid,
    verdicts,
)  # fmt: skip

HEALTHY, WARNING, ERROR = Level.HEALTHY, Level.WARNING, Level.ERROR
BUSY = {"utilization_gpu": "93", "pcie_link_gen_current": "5"}
SLOW = {"utilization_gpu": "93", "pcie_link_gen_current": "3"}
HELD = "4711, " + uuid(2) + ", 40960"
OURS = "4711\tsglang-pd-prefill.service\t/opt/x/python -m sglang.launch_server"
THEIRS = "4711\tvllm.service\t/usr/bin/vllm serve"
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Jul  8"
BRIDGE = "02:03.0 PCI bridge: Some switch\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+"
UPGRADES_ON = 'APT::Periodic::Unattended-Upgrade "1";\npackage ii  apt\npackage ii  unattended-upgrades\n'
NO_RAISE = "CapEff:\t00000000a80425fb\nCpus_allowed_list:\t0-255\nMems_allowed_list:\t0-1"
CLOSED = "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}"
LIMITS = "Max open files            1024                 4096                 files     \nMax locked memory         65536                65536                bytes     "
NODE_MEMORY = "Node 0 MemFree: 9765625 kB\nNode 0 FilePages: {cache} kB\nNode 1 MemFree: 782450688 kB"
SECOND_GPU = gpu_line(1, capability="9.0")
EIGHT = "\n".join(gpu_line(i) for i in range(8))
LOST = "Unable to determine the device handle for GPU8: 0000:09:00.0: Unknown Error"

WHEELHOUSE: dict[str, object] = {"package_wheelhouse": "/srv/wheels"}
UV = catalogue.uv_lock().split()[0].removeprefix("uv==")
WHEELS = f"sglang-9.9-py3-none-any.whl\nsglang_router-9.3-cp38-abi3-manylinux_2_17_x86_64.whl\nuv-{UV}-py3-none-manylinux_2_17_x86_64.whl"


def list_with(line: str, index: int) -> str:
    lines = EIGHT.splitlines()
    lines[index] = line
    return "\n".join(lines)


TRIXIE = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_ID="13"'

# check, what is changed, settings, level, words of the line (all of them must stand in its sentence)
CASES: list[tuple[str, Changes, dict[str, object], Level, str]] = [
    ("host/user/root", {"uid": "1000"}, {}, ERROR, "needs root on the host|_sudo"),
    ("host/init/systemd", {"init": "docker-init"}, {}, ERROR, "systemd does not run this host"),
    ("host/machine/supported", {"machine": "aarch64"}, {}, ERROR, "this is aarch64"),
    ("host/glibc/minimum", {"glibc": "glibc 2.31"}, {}, ERROR, "glibc 2.31 is too old|need 2.34"),
    ("host/os/supported", {"os": 'PRETTY_NAME="Rocky 9.4"\nID=rocky\nVERSION_ID="9.4"'}, {}, ERROR, "Rocky 9.4 is not supported"),
    ("host/os/supported", {"os": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu\nVERSION_ID="22.04"'}, {}, ERROR, "its python3 is 3.10|3.11.0rc1|Debian 12, Debian 13 and Ubuntu 24.04"),
    ("host/os/supported", {"os": TRIXIE}, {}, HEALTHY, "Debian GNU/Linux 13 (trixie)"),
    ("host/python/usable", {"os": TRIXIE, "pythons": "3 3.13.5 final\n3.13 3.13.5 final"}, {}, ERROR, "carries Python 3.13: release|has locks for 3.11 and 3.12 only|use a system that carries one (Debian 12 or Ubuntu 24.04)"),
    ("host/monitoring/ours", {"packages": "prometheus"}, {"monitoring": True}, ERROR, "prometheus is on the host already|remove these packages"),
    ("host/monitoring/ours", {"packages": "prometheus", "monitoring": "/etc/sglang-pd-monitoring"}, {"monitoring": True}, HEALTHY, "nothing of somebody else's"),
    ("host/monitoring/ours", {"packages": "prometheus"}, {}, HEALTHY, "not asked for"),
    ("host/monitoring/ours", {"packages": "grafana"}, {"monitoring": True}, HEALTHY, "nothing of somebody else's"),
    ("host/monitoring/ours", {"packages": "grafana"},
     {"monitoring": True, "grafana_repository": "https://apt.example/g stable main", "grafana_keyring": "g.gpg"},
     ERROR, "grafana is on the host already|grafana_repository"),
    ("host/python/tools", {"pythons": "3 3.10.12 final"}, {}, ERROR, "python3 is 3.10.12, our tools need 3.11"),
    ("host/python/tools", {"pythons": ""}, {}, HEALTHY, "this run installs"),
    ("host/python/usable", {"pythons": "3 3.11.2 final\n3.11 3.11.0rc1 candidate"}, {}, ERROR, "python3.11 is 3.11.0rc1, a pre-release"),
    ("host/python/usable", {"os": 'PRETTY_NAME="Debian 11"\nID=debian\nVERSION_ID="11"', "pythons": ""}, {}, ERROR, "carries no Python that a release can use (3.11 or 3.12)"),
    ("host/clock/synchronised", {"clock": f"{NOW}\nno"}, {}, WARNING, "not synchronised|chrony"),
    ("host/clock/synchronised", {"clock": f"{NOW + 90}\nyes"}, {}, WARNING, "differs by +90 s|60 s are allowed"),
    ("host/clock/synchronised", {"clock": f"{NOW + 90}\nyes"}, {"maximum_clock_skew_s": 100}, HEALTHY, "90 s"),
    ("host/upgrades/driver", {"upgrades": UPGRADES_ON}, {}, HEALTHY, "no package of the driver"),
    ("host/upgrades/driver", {"upgrades": f"{UPGRADES_ON}package ii  nvidia-driver-580-open"}, {}, WARNING, "1 packages of the driver|apt-mark hold nvidia-driver-580-open"),
    ("host/upgrades/driver", {"upgrades": f"{UPGRADES_ON}package hi  nvidia-driver-580-open"}, {}, HEALTHY, "held"),
    ("host/upgrades/driver", {"upgrades": f"{UPGRADES_ON}package ii  nvidia-driver-580-open"}, {"manage_driver": True, "driver_version": "580.95.05"}, HEALTHY, "left out from this run on"),
    ("host/upgrades/driver", {"upgrades": f"{UPGRADES_ON}package un  nvidia-driver"}, {}, HEALTHY, "no package"),
    ("host/upgrades/driver", {"upgrades": f'{UPGRADES_ON}Unattended-Upgrade::Package-Blacklist:: "libnvidia-";\npackage ii  libnvidia-compute-580'}, {}, HEALTHY, "left out"),
    ("host/upgrades/driver", {"upgrades": f"{UPGRADES_ON.replace('1', '0')}package ii  nvidia-open"}, {}, HEALTHY, "no unattended upgrades"),
    ("gpu/driver/match", {"driver": module_text("580.65.06")}, {}, ERROR, "loaded driver module is 580.65.06, its library 580.95.05|reboot"),
    ("gpu/driver/minimum", {"driver": module_text("570.172.08")}, {}, ERROR, "driver 570.172.08 serves CUDA 12.8|needs CUDA 13.0|install driver 580 or newer"),
    ("gpu/driver/licence", {"licence": "NVIDIA"}, {}, ERROR, "proprietary one (NVIDIA)|nvidia-open"),
    ("gpu/driver/licence", {"licence": Answer(127, "")}, {}, HEALTHY, "open kernel modules"),
    ("gpu/driver/licence", {"licence": Answer(127, ""), "driver": PROPRIETARY}, {}, ERROR, "by its own name"),
    ("gpu/driver/licence", {"licence": "NVIDIA", "gpus": EIGHT.replace("12.0", "9.0")}, {}, HEALTHY, "either"),
    ("gpu/capability/release", {"gpus": list_with(SECOND_GPU, 1)}, {}, ERROR, "GPU 1 (|compute capability 9.0|kernels for 12.0"),
    ("gpu/count/visible", {"controllers": "\n".join(f"0000:0{i}:00.0 0x030200" for i in range(1, 10)) + "\n0000:0a:00.1 0x040300"}, {}, WARNING, "8 of 9 cards|not 0000:09:00.0"),
    ("gpu/kind/uniform", {"gpus": list_with(gpu_line(3).replace("97887", "48000"), 3)}, {}, WARNING, "GPUs of 2 kinds"),
    ("gpu/mig/off", {"gpus": list_with(gpu_line(1, mig="Enabled"), 1)}, {}, ERROR, "MIG is on for GPU 1"),
    ("gpu/mig/off", {"gpus": list_with(gpu_line(7, mig="Enabled"), 7)}, {"decode_tensor_parallel": 2}, WARNING, "GPU 7|no server gets it"),
    ("gpu/persistence/on", {"gpus": EIGHT.replace(", Enabled,", ", Disabled,")}, {}, HEALTHY, "this run switches it on"),
    ("gpu/persistence/on", {"gpus": EIGHT.replace(", Enabled,", ", Disabled,")}, {"gpu_persistence": False}, WARNING, "GPU 0-7"),
    ("gpu/ecc/uncorrected", {"health": health_text(8, gpu2={"ecc_errors_uncorrected_volatile_dram": "3"})}, {}, ERROR, "GPU 2 counts 3 uncorrected"),
    ("gpu/ecc/uncorrected", {"health": health_text(8, gpu2={"ecc_errors_uncorrected_aggregate_sram": "1"})}, {}, ERROR, "GPU 2 counts 1 uncorrected"),
    ("gpu/ecc/uncorrected", {"health": health_text(8, gpu7={"ecc_errors_uncorrected_volatile_dram": "3"})}, {"decode_tensor_parallel": 2}, WARNING, "GPU 7|no server gets it"),
    ("gpu/ecc/uncorrected", {"health": health_text(8, gpu2={"ecc_mode_current": "Disabled"})}, {}, WARNING, "ECC is off for GPU 2"),
    ("gpu/ecc/uncorrected", {"health": "\n".join(health_line(i, ecc_mode_current="[N/A]", ecc_errors_uncorrected_volatile_dram="[N/A]") for i in range(8))}, {}, HEALTHY, "no ECC"),
    ("gpu/ecc/corrected", {"health": health_text(8, gpu2={"ecc_errors_corrected_volatile_sram": "10001"})}, {}, ERROR, "10001 corrected errors (sram)|10000 are allowed"),
    ("gpu/ecc/corrected", {"health": health_text(8, gpu2={"ecc_errors_corrected_volatile_sram": "10000"})}, {}, HEALTHY, "10000"),
    ("gpu/ecc/corrected", {"health": health_text(8, gpu2={"ecc_errors_corrected_volatile_dram": "20000001"})}, {}, ERROR, "(dram)"),
    ("gpu/rows/remapped", {"rows": "\n".join(f"{uuid(i)}, {'Yes' if i == 3 else 'No'}, No" for i in range(8))}, {}, ERROR, "GPU 3 has rows of memory"),
    ("gpu/rows/remapped", {"rows": "\n".join(f"{uuid(i)}, 0, {int(i == 4)}" for i in range(8))}, {}, ERROR, "GPU 4"),
    ("gpu/rows/remapped", {"rows": "\n".join(f"{uuid(i)}, [N/A], [N/A]" for i in range(8))}, {}, HEALTHY, "8 GPUs"),
    ("gpu/use/others", {"apps": HELD, "holders": OURS}, {}, HEALTHY, "1 processes of our own units"),
    ("gpu/use/others", {"apps": HELD, "holders": THEIRS}, {}, ERROR, "GPU 2 by pid 4711 (/usr/bin/vllm serve)"),
    ("gpu/use/others", {"apps": HELD, "holders": ""}, {}, ERROR, "pid 4711 (a process that has ended)"),
    ("gpu/use/others", {"apps": HELD.replace(uuid(2), uuid(7)), "holders": THEIRS}, {"decode_tensor_parallel": 2}, HEALTHY, "no process"),
    ("gpu/memory/free", {"health": health_text(8, gpu2={"memory_used": "40960"})}, {}, ERROR, "GPU 2 holds 40960 MiB|1024 MiB are allowed"),
    ("gpu/memory/free", {"health": health_text(8, gpu2={"memory_used": "40960"}), "apps": HELD, "holders": OURS}, {}, HEALTHY, "7 GPUs"),
    ("gpu/memory/free", {"health": health_text(8, gpu7={"memory_used": "40960"})}, {"decode_tensor_parallel": 2}, HEALTHY, "6 GPUs"),
    ("gpu/inforom/intact", {"warned": "WARNING: infoROM is corrupted at gpu 0000:03:00.0"}, {}, WARNING, "the infoROM of 0000:03:00.0 is corrupted"),
    ("gpu/topology/matrix", {"warned": LOST, "topo": Answer(255, LOST)}, {}, WARNING, "no matrix beside a card that it has lost"),
    ("pcie/width/full", {"health": health_text(8, gpu2={"pcie_link_width_current": "8"})}, {}, ERROR, "GPU 2: x8 of x16"),
    ("pcie/width/full", {"health": health_text(8, gpu7={"pcie_link_width_current": "8"})}, {"decode_tensor_parallel": 2}, WARNING, "GPU 7: x8 of x16"),
    ("pcie/generation/load", {}, {}, HEALTHY, "0 cards under load at full speed, 8 idle ones are not judged"),
    ("pcie/generation/load", {"health": health_text(8, gpu1=BUSY)}, {}, HEALTHY, "1 cards under load"),
    ("pcie/generation/load", {"health": health_text(8, gpu1=SLOW)}, {}, WARNING, "GPU 1: Gen3 of Gen5 at 93 %"),
    ("pcie/generation/load", {"health": health_text(8, gpu1=SLOW)}, {"gpu_load_percent": 95}, HEALTHY, "8 idle"),
    ("pcie/acs/off", {"acs": f"{BRIDGE}\n{BRIDGE.replace('ReqRedir+', 'ReqRedir-')}"}, {}, WARNING, "1 of 2 PCIe bridges"),
    ("pcie/iommu/off", {"iommu": "cmdline ro quiet\nunit ivhd0\ngroup 0000:01:00.0 DMA-FQ"}, {}, WARNING, "translates the DMA of 1 cards|iommu=pt"),
    ("pcie/iommu/off", {"iommu": "cmdline ro quiet\nunit dmar0"}, {}, WARNING, "all cards"),
    ("pcie/iommu/off", {"iommu": "cmdline ro iommu=pt\nunit dmar0"}, {}, HEALTHY, "passes through"),
    ("pcie/iommu/off", {"iommu": "cmdline ro quiet\nunit dmar0\ngroup 0000:01:00.0 identity"}, {}, HEALTHY, "passes through"),
    ("gpu/p2p/group", {"p2p": p2p_text(8).replace("OK", "CNS")}, {}, WARNING, "24 of 24 pairs inside a server|CNS, chipset not supported"),
    ("gpu/p2p/transfer", {"p2p": p2p_text(8).replace("OK", "GNS")}, {}, ERROR, "16 of 16 pairs from prefill to decode|GNS, GPU not supported"),
    ("numa/cpus/enough", {}, {"minimum_cpus_per_gpu": 33}, ERROR, "node 0: 128 CPUs for 4 GPUs|33 a GPU"),
    ("numa/memory/enough", {"nodememory": NODE_MEMORY.format(cache=0)}, {}, ERROR, "node 0: 10 GB for 4 GPUs|8 GB a GPU"),
    ("numa/memory/enough", {"nodememory": NODE_MEMORY.format(cache=50000000)}, {}, HEALTHY, "node 0: 61 GB"),
    ("numa/memory/enough", {"nodememory": NODE_MEMORY.format(cache=0), "own": "sglang-pd-prefill.service anon N0=60000000000 N1=0"}, {}, HEALTHY, "node 0: 70 GB"),
    ("gpu/placement/near", {}, {"prefill_gpus": [0, 1, 2, 4], "decode_gpus": [3, 5, 6, 7]}, WARNING, "of prefill share neither socket nor NVLink|prefill_gpus"),
    ("host/memory/free", {"memory": "MemAvailable: 30000000 kB"}, {}, ERROR, "31 GB of memory are available, 64 GB are needed for 8 GPUs"),
    ("host/memory/free", {"memory": "MemAvailable: 30000000 kB", "own": "sglang-pd-decode.service anon N0=60000000000 N1=1"}, {}, HEALTHY, "91 GB"),
    ("numa/cpuset/cpus", {"pid1": CLOSED.format(cpus="0-15", mems="0-1")}, {}, WARNING, "112 of 128 CPUs of prefill are closed"),
    ("numa/cpuset/cpus", {"pid1": CLOSED.format(cpus="64-127", mems="0-1")}, {}, ERROR, "prefill is to run on CPUs 0-63,128-191"),
    ("numa/cpuset/memory", {"pid1": CLOSED.format(cpus="0-255", mems="0")}, {}, ERROR, "the memory of node 1|use node 0"),
    ("numa/binding/works", {"binding numactl --cpunodebind=1 --membind=1": Answer(1, "libnuma: Warning\n<1> is invalid")}, {}, ERROR, "`numactl --cpunodebind=1 --membind=1 true` fails: <1> is invalid"),
    ("host/shm/size", {"shm": "Filesystem ...\nshm 65536 0 65536 0% /dev/shm"}, {}, ERROR, "/dev/shm has 0.07 GB, 1 GB are needed"),
    ("host/limits/memlock", {"limits": LIMITS, "pid1": NO_RAISE}, {}, ERROR, "limit_memlock = 'infinity'"),
    ("host/limits/memlock", {"limits": LIMITS, "pid1": NO_RAISE}, {"limit_memlock": "64K"}, HEALTHY, "'64K'"),
    ("host/limits/memlock", {"limits": LIMITS, "pid1": NO_RAISE}, {"limit_memlock": "65K"}, ERROR, "'65K'"),
    ("host/limits/memlock", {"limits": LIMITS}, {}, HEALTHY, "can be given"),
    ("host/limits/nofile", {"limits": LIMITS.replace(" 4096", " 2048"), "pid1": NO_RAISE}, {}, ERROR, "a server may open 2048 files here, and needs 4096"),
    ("host/limits/nofile", {"limits": LIMITS.replace(" 4096", "20000"), "pid1": NO_RAISE}, {}, WARNING, "a server may open 20000 files here, limit_nofile = 1048576"),
    ("host/limits/nofile", {"limits": LIMITS.replace(" 4096", "20000"), "pid1": NO_RAISE}, {"limit_nofile": 20000}, HEALTHY, "20000"),
    ("host/limits/nofile", {"sysctl": "fs.nr_open=65536"}, {}, WARNING, "a server may open 65536 files"),
    ("host/disk/release", {"disk": "/opt/sglang-pd 19531250\n/var/lib/sglang-pd 900000000"}, {}, ERROR, "/opt/sglang-pd has 20 GB free, 24 GB are needed"),
    ("host/disk/release", {"disk": "/opt/sglang-pd 19531250\n/var/lib/sglang-pd 900000000"}, {"minimum_free_disk_gb": 10}, HEALTHY, "10 GB are needed"),
    ("host/disk/release", {"disk": "/var/lib/sglang-pd 900000000"}, {}, ERROR, "/opt/sglang-pd has 0 GB free"),
    ("host/wheelhouse/complete", {"wheels": WHEELS}, WHEELHOUSE, HEALTHY, "/srv/wheels holds the 3 wheels"),
    ("host/wheelhouse/complete", {"wheels": WHEELS.replace("sglang_router", "other")}, WHEELHOUSE, ERROR, "package_wheelhouse /srv/wheels lacks sglang-router==9.3 (for Python 3.11)|make wheelhouse RELEASE=sglang-9.9-cu130 PYTHON=3.11"),
    ("host/wheelhouse/complete", {"wheels": ""}, WHEELHOUSE, ERROR, "lacks sglang==9.9, sglang-router==9.3, uv=="),
    ("host/wheelhouse/complete", {"wheels": Answer(4, "")}, WHEELHOUSE, ERROR, "/srv/wheels is not a folder on this host"),
    ("host/disk/model", {"disk": "/opt/sglang-pd 900000000\n/var/lib/sglang-pd 97656250"}, {}, ERROR, "/var/lib/sglang-pd has 100 GB free, 149 GB are needed"),
    ("host/disk/model", {"disk": "/opt/sglang-pd 900000000\n/var/lib/sglang-pd 97656250", "files": "/var/lib/sglang-pd/models/some-model-000000000000/config.json"}, {}, HEALTHY, "is there"),
    ("host/ports/free", {"listeners": "tcp 0100007F:7530 9"}, {}, ERROR, "port 30000 of prefill (prefill_port) is taken by a process without a pid"),
    ("host/filter/enforced", {"enforced": "passed"}, {}, WARNING, "not enforced: systemd ignores IPAddressDeny here|CAP_BPF"),
    ("host/filter/enforced", {"enforced": "refused"}, {}, HEALTHY, "cannot send"),
    ("host/ports/ephemeral", {}, {"reserve_ports": False, "decode_port": 40000}, WARNING, "port 40000 (decode)|reserve_ports = True"),
    ("host/ports/ephemeral", {}, {"reserve_ports": False}, HEALTHY, "32768-60999"),
    ("model/files/there", {}, {"model_dir": "/models/x"}, HEALTHY, "/models/x holds 146 GB of weights"),
    ("model/memory/fits", {}, {}, HEALTHY, "decode: 36.5 GB of weights on each card of 102.6 GB, 60.6 GB for weights and KV cache"),
    ("model/memory/fits", {}, {"decode_mem_fraction": 0.30}, ERROR, "some-model does not fit decode|30.3 GB for weights and KV cache|set decode_mem_fraction to 0.37 or more"),
    ("model/memory/fits", {}, {"decode_tensor_parallel": 1}, ERROR, "146.0 GB of weights|share it over more GPUs (decode_tensor_parallel)|smaller quantization"),
    ("model/memory/fits", {}, {"decode_mem_fraction": 0.37, "context_length": 1048576}, WARNING, "the KV cache of decode holds|one request may have 1,048,576|set context_length ="),
    ("release/transfer/there", {}, {"transfer_backend": "mooncake"}, ERROR, 'transfer_backend = "mooncake": release sglang-9.9-cu130 holds no mooncake-transfer-engine|set it to "nixl"'),
    ("release/auto/fits", {}, {}, HEALTHY, "setting release names sglang-0.5.23-cu130"),
    ("release/auto/fits", {}, {"release": "auto"}, HEALTHY, 'release "auto" is '),
    ("service/environment/known", {}, {}, HEALTHY, "SGLANG_HOST_IP stand in the source (2 names)"),
    ("service/environment/known", {}, {"prefill_environment": {"SGLANG_USE_SOMTHING": "1"}}, ERROR, "no installed code reads SGLANG_USE_SOMTHING|Did you mean SGLANG_USE_SOMETHING?"),
    ("service/environment/known", {}, {"decode_environment": {"OTHER_VARIABLE": "1"}}, HEALTHY, "SGLANG_HOST_IP"),
    ("gpu/patches/capability", {}, {}, HEALTHY, "1 patches serve 12.0"),
    ("gpu/patches/capability", {"gpus": EIGHT.replace("12.0", "10.0")}, {}, ERROR, "patch shim is for compute capability 12.0, GPU 0 has 10.0"),
    ("host/user/service", {"user": "sglang:x:998:998::/var/lib/sglang-pd:/usr/sbin/nologin\nsglang"}, {}, HEALTHY, "user sglang is there"),
    ("host/user/service", {"user": "toor:x:0:0::/root:/bin/sh\nroot"}, {"service_user": "toor"}, ERROR, "service_user = 'toor' is root under another name"),
    ("release/patches/fit", {}, {}, HEALTHY, "shim fit what is installed"),
    ("release/patches/fit", {"patches": Answer(1, "patch shim looked for a.b\npatch shim looked for a.c")}, {}, ERROR, "patch shim looked for a.b; patch shim looked for a.c"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "changes", "data", "level", "words"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_a_verdict(check: str, changes: Changes, data: dict[str, object], level: Level, words: str) -> None:
    assert_verdict(check, changes, data, level, words)


def test_a_healthy_host_is_healthy_in_every_check() -> None:
    every = verdicts(found())
    assert every.keys() == CHECKS.keys()
    assert {id: one.sentence for id, one in every.items() if one.level is not HEALTHY} == {}


def test_every_check_has_a_case_that_is_not_fine() -> None:
    """Except those that only say what reading found, whose faults end in a refusal before."""
    faulty = {check for check, _, _, level, _ in CASES if level is not HEALTHY} | set(UNREADABLE_ONLY)
    told_before = {"host/system/readable", "gpu/driver/answers", "gpu/placement/possible", "release/auto/fits"}
    told_before |= {"model/files/there", "model/profile/agrees"}  # tests/plan/model
    elsewhere = {"gpu/topology/numa", "model/revision/pinned", "gpu/writes/collapse"}
    elsewhere |= {"release/environment/fits", "release/pin/holds"}  # test_existing.py, test_kept.py
    elsewhere |= {"host/folders/ours", "host/user/reads"}  # test_folders.py, test_readable.py
    elsewhere |= {"gpu/xid/none", "gpu/fabric/ready"}  # test_xids.py, test_fabric.py
    assert faulty | told_before | elsewhere == CHECKS.keys()


# ---- answers that cannot be read

# What each check reads; None: its values are parsed before, where a fault ends the reading.
READS = {
    "host/clock/synchronised": ("clock", False),
    "host/upgrades/driver": ("upgrades", False),
    "gpu/count/visible": ("controllers", False),
    "gpu/ecc/uncorrected": ("health", True),
    "gpu/ecc/corrected": ("health", True),
    "gpu/rows/remapped": ("rows", True),
    "gpu/xid/none": ("kernel", True),
    "gpu/fabric/ready": ("fabric", True),
    "pcie/width/full": ("health", True),
    "pcie/generation/load": ("health", False),
    "pcie/acs/off": ("acs", False),
    "pcie/iommu/off": ("iommu", False),
    "gpu/topology/matrix": ("topo", True),
    "gpu/p2p/group": ("p2p", False),
    "gpu/p2p/transfer": ("p2p", True),
    "gpu/memory/free": ("health", True),
    "numa/memory/enough": ("nodememory", True),
    "host/memory/free": ("memory", True),
    "numa/cpuset/cpus": ("pid1", True),
    "numa/cpuset/memory": ("pid1", True),
    "host/shm/size": ("shm", True),
    "host/limits/memlock": ("limits", True),
    "host/limits/nofile": ("limits", True),
    "service/environment/known": ("variables", True),
    "release/patches/fit": ("patches", True),
}
UNREADABLE_ONLY = ["gpu/topology/matrix"]
BAD_ANSWERS = {
    "empty": Answer(0, "\n"),
    "an error text with exit 0": Answer(0, "Unable to determine the device handle for GPU0000:06:00.0: Unknown Error"),
    "hangs": Answer(124, ""),
    "killed after a hang": Answer(137, ""),
    "no tool": Answer(127, "sh: 1: not found"),
    "fails": Answer(9, "something is wrong"),
}


def test_where_no_filter_is_enforced_servers_of_several_hosts_are_refused() -> None:
    """They ask for no key: whoever reaches their address could use them."""
    together = fleet_plans()["gpu-2"]
    told = {said: finding("host/filter/enforced", {"enforced": said}, wanted=together.settings, made=together)
            for said in ("refused", "passed")}  # fmt: skip
    assert told["refused"].level is HEALTHY
    assert told["passed"].stops and "take requests without" in told["passed"].line


@pytest.mark.parametrize(
    ("check", "bad"), [(one, bad) for one in READS for bad in BAD_ANSWERS if (one, bad) != ("pcie/acs/off", "no tool")]
)
def test_a_bad_answer_is_incomplete_never_fine(check: str, bad: str) -> None:
    section, required = READS[check]
    said = finding(check, {section: BAD_ANSWERS[bad]})
    assert said.level is Level.INCOMPLETE, said
    assert said.stops is required
    assert said.line.startswith("could not be read: ")
    assert CHECKS[check].ask in said.advice
    assert "\n" not in said.sentence


@pytest.mark.parametrize("check", [check for check in READS if READS[check][0] not in ("topo", "p2p")])
def test_a_missing_answer_is_incomplete(check: str) -> None:
    said = finding(check, {READS[check][0]: None})
    assert said.level is Level.INCOMPLETE
    assert "cut short" in said.line


@pytest.mark.parametrize(
    ("check", "section", "text"),
    [
        ("gpu/ecc/uncorrected", "health", health_text(7)),
        ("gpu/ecc/uncorrected", "health", health_text(8)[:-3]),
        ("gpu/ecc/uncorrected", "health", health_text(8, gpu3={"ecc_errors_uncorrected_volatile_dram": "[N/A]"})),
        ("gpu/ecc/uncorrected", "health", health_text(8, gpu3={"ecc_errors_uncorrected_volatile_dram": "[Unknown Error]"})),
        ("gpu/memory/free", "health", health_text(8, gpu3={"memory_used": "[N/A]"})),
        ("gpu/rows/remapped", "rows", f"{uuid(0)}, No, No"),
        ("gpu/rows/remapped", "rows", f"{uuid(0)}, No"),
        ("gpu/rows/remapped", "rows", "\n".join(f"{uuid(i)}, Maybe, No" for i in range(8))),
        ("gpu/use/others", "apps", "4711, GPU-"),
        ("gpu/use/others", "apps", "Failed to initialize NVML"),
        ("gpu/xid/none", "kernel", "0 lines, the first: "),
        ("gpu/xid/none", "kernel", f"{KERNEL}\nNVRM: Xid (PCI:0000:03"),
        ("gpu/p2p/transfer", "p2p", p2p_text(7)),
        ("gpu/topology/matrix", "topo", "\tGPU0\tGPU1\nGPU0\t X \tPIX\n"),
        ("numa/memory/enough", "nodememory", "Node 0 MemFree: 782450688 kB"),
        ("numa/memory/enough", "own", "something else"),
        ("gpu/driver/match", "driver", "NVRM version: unknown"),
        ("host/ports/free", "listeners", "awk: not found"),
        ("numa/binding/works", "binding numactl --cpunodebind=1 --membind=1", ""),
    ],
)  # fmt: skip
def test_answers_cut_short_or_of_another_shape_are_incomplete(check: str, section: str, text: str) -> None:
    answer = Answer(124, "") if section.startswith("binding") else Answer(0, text)
    said = finding(check, {section: answer})
    assert said.level is Level.INCOMPLETE, said
    assert said.stops


def test_a_module_that_says_nothing_is_incomplete_and_its_librarys_driver_counts() -> None:
    assert finding("gpu/driver/match", {"driver": ""}).level is Level.INCOMPLETE
    said = finding("gpu/driver/minimum", {"driver": "", "gpus": EIGHT.replace("580.95.05", "550.90.07")})
    assert "driver 550.90.07 serves CUDA 12.4" in said.line


@given(text=st.text(alphabet="0123456789,-. \nGPUENA[]x:", max_size=120), check=st.sampled_from(sorted(READS)))
def test_whatever_a_tool_says_a_check_answers_and_never_raises(text: str, check: str) -> None:
    said = finding(check, {READS[check][0]: text})
    assert said.line and "\n" not in said.sentence


# ---- what is judged later, or not at all


def test_what_this_run_makes_is_incomplete_without_stopping_it() -> None:
    for check, section, status in (
        ("service/environment/known", "variables", 3),
        ("release/patches/fit", "patches", 3),
        ("numa/binding/works", "binding numactl --cpunodebind=0 --membind=0", 127),
        ("pcie/acs/off", "acs", 127),
    ):
        said = finding(check, {section: Answer(status, "")})
        assert (said.level, said.stops, said.advice) == (Level.INCOMPLETE, False, "")


def test_a_release_for_the_cpu_is_not_refused_for_its_gpus() -> None:
    """They are judged all the same: the report shows it, silenced with the reason."""
    host = found(
        {
            "driver": module_text("470.1"),
            "health": health_text(8, gpu0={"pcie_link_width_current": "8"}),
            "kernel": f"{KERNEL}\n{XID79}",
            "p2p": Answer(124, ""),
            "rows": Answer(9, "not supported"),
        },
        device="cpu",
    )
    every = verdicts(host)
    assert not [one for one in every.values() if one.stops]
    for id in ("gpu/driver/match", "pcie/width/full", "gpu/xid/none", "gpu/p2p/transfer", "gpu/rows/remapped"):
        assert every[id].level is Level.SILENCED
        assert "runs on the CPU" in every[id].reason
    assert every["host/user/root"].level is HEALTHY


def test_a_release_for_the_cpu_is_refused_for_what_it_uses() -> None:
    said = verdicts(found({"listeners": "tcp 0100007F:7530 9"}, device="cpu"))["host/ports/free"]
    assert said.stops


def test_a_check_that_a_host_silences_keeps_its_line_and_shows_the_reason() -> None:
    reason = "riser of 8 lanes, accepted until March"
    host = found(
        {"health": health_text(8, gpu2={"pcie_link_width_current": "8"})},
        wanted=settings(silenced_checks={"pcie/width/full": reason}),
    )
    said = verdicts(host)["pcie/width/full"]
    assert (said.level, said.reason, said.stops) == (Level.SILENCED, reason, False)
    assert "GPU 2: x8 of x16" in said.line


def test_an_unknown_numa_node_is_a_warning_on_a_host_with_several() -> None:
    host = found({"nodes": "0 0-63\n1 64-127"}, nodes=[-1] * 8)
    assert CHECKS["gpu/topology/numa"].finding(host).level is WARNING
    assert CHECKS["gpu/topology/numa"].finding(found({"nodes": "0 0-63"}, nodes=[-1] * 8)).level is HEALTHY


def test_without_a_plan_every_gpu_counts_as_wanted() -> None:
    host = dataclasses.replace(found(), known_plan=None)
    assert host.wanted == frozenset(range(len(TWO_SOCKETS)))
