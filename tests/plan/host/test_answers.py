"""What the facts bring, read into typed values; a driver that fails speaks for itself."""

from pathlib import Path

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer, Listener, read_hardware, read_listeners, read_system
from tests.plan.builders import (
    GPU_NAME,
    TWO_SOCKETS,
    gpu_line,
    hardware,
    hardware_sections,
    module_text,
    recorded,
    settings,
    system,
    system_sections,
)
from tests.plan.judging import finding

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95"
NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)


def refused(sections: dict[str, Answer]) -> str:
    with pytest.raises(PlanError) as error:
        read_hardware(sections)
    (line,) = error.value.lines
    assert "\n" not in line
    return line


def with_smi(status: int, text: str) -> dict[str, Answer]:
    """A host on which every question to nvidia-smi ends the same way."""
    return {**hardware_sections(TWO_SOCKETS), **dict.fromkeys(("gpus", "topo", "p2p"), Answer(status, text))}


# ---- GPUs


def test_a_healthy_host() -> None:
    found = hardware(TWO_SOCKETS)
    assert [gpu.numa_node for gpu in found.gpus] == TWO_SOCKETS
    gpu = found.gpus[5]
    assert (gpu.index, gpu.name, gpu.bus_id, gpu.compute_capability) == (5, GPU_NAME, "0000:06:00.0", "12.0")
    assert (gpu.driver, gpu.memory_mib, gpu.persistence, gpu.mig) == ("580.95.05", 97887, True, False)
    assert [node.index for node in found.nodes] == [0, 1]
    assert found.driver == "580.95.05"


def test_the_recorded_host(tmp_path: Path) -> None:
    found = recorded("rtx-pro-6000-x8", tmp_path)
    assert [gpu.numa_node for gpu in found.gpus] == TWO_SOCKETS
    assert {gpu.name for gpu in found.gpus} == {GPU_NAME}
    assert [dict(node.distances) for node in found.nodes] == [{0: 10, 1: 32}, {0: 32, 1: 10}]
    assert found.topo is not None
    assert found.p2p is not None


def test_distances_belong_to_the_nodes_that_are_there() -> None:
    sections = {**hardware_sections([0, 4]), "distances": Answer(0, "4 12 10\n0 10 12")}
    assert [dict(node.distances) for node in read_hardware(sections).nodes] == [{0: 10, 4: 12}, {0: 12, 4: 10}]


def test_distances_that_are_no_numbers() -> None:
    assert "'0 near far'" in refused({**hardware_sections([0]), "distances": Answer(0, "0 near far")})


def test_the_pci_bus_wins_over_the_matrix() -> None:
    sections = {**hardware_sections([0, 1]), "pci": Answer(0, "0000:01:00.0 1\n0000:02:00.0 0")}
    assert [gpu.numa_node for gpu in read_hardware(sections).gpus] == [1, 0]


@pytest.mark.parametrize("pci", ["", "0000:01:00.0 -1\n0000:02:00.0 -1"])
def test_the_matrix_speaks_where_the_pci_bus_does_not(pci: str) -> None:
    sections = {**hardware_sections([0, 1]), "pci": Answer(0, pci)}
    assert [gpu.numa_node for gpu in read_hardware(sections).gpus] == [0, 1]


def test_a_gpu_near_several_nodes_has_none() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-63\t0-1\n"
    sections = {**hardware_sections([-1]), "topo": Answer(0, text)}
    assert read_hardware(sections).gpus[0].numa_node is None


def test_nobody_knows_the_node() -> None:
    assert [gpu.numa_node for gpu in hardware([-1, -1]).gpus] == [None, None]


def test_modes_that_the_driver_does_not_know() -> None:
    line = f"0, GPU-x, 00000000:01:00.0, {GPU_NAME}, 12.0, 580.95.05, [N/A], [N/A], [N/A]"
    (gpu,) = read_hardware({**hardware_sections([0]), "gpus": Answer(0, line)}).gpus
    assert (gpu.memory_mib, gpu.persistence, gpu.mig) == (0, False, False)


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (module_text("580.95.05"), "580.95.05"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08  Tue Jul  8\nGCC version: 12.2.0", "570.172.08"),
        ("", None),
    ],
)
def test_the_driver_module_that_is_loaded(text: str, driver: str | None) -> None:
    assert read_hardware({**hardware_sections([0]), "driver": Answer(0, text)}).driver == driver


@pytest.mark.parametrize("name", ["topo", "p2p"])
def test_a_matrix_that_the_driver_refuses_is_none(name: str) -> None:
    found = read_hardware({**hardware_sections([0, 1]), name: Answer(255, "not supported")})
    assert getattr(found, name) is None


# ---- a driver that fails


def test_no_nvidia_smi() -> None:
    assert refused(with_smi(127, "")).startswith(
        "gpu/driver/answers: no nvidia-smi on this host: install the NVIDIA driver"
    )


@pytest.mark.parametrize("status", [124, 137])
def test_a_driver_that_hangs(status: int) -> None:
    line = refused(with_smi(status, "no answer within 110 s"))
    assert "nvidia-smi gave no answer within 110 s: switch persistence on (" in line
    assert "dmesg" in line
    assert "no answer within its limit" in refused(with_smi(status, ""))


def test_however_much_the_driver_says_its_line_fits_a_screen() -> None:
    line = refused(with_smi(15, "something is wrong with a card\n" * 50))
    assert "something is wrong with a card; something" in line
    assert len(line) < 500


def test_driver_and_library_differ() -> None:
    line = refused(with_smi(18, MISMATCH))
    assert line.startswith("gpu/driver/match: nvidia-smi fails: ")
    assert "Driver/library version mismatch; NVML library version: 580.95" in line
    assert "reboot the host" in line


def test_a_module_that_is_not_loaded() -> None:
    line = refused(with_smi(9, NOT_LOADED))
    assert "couldn't communicate with the NVIDIA driver" in line
    assert "modprobe nvidia" in line


def test_a_failure_that_nobody_knows_is_quoted() -> None:
    assert "nvidia-smi fails: Something else" in refused(with_smi(3, "Something else\n"))


def test_a_failure_without_a_word() -> None:
    assert "nvidia-smi fails: without a word" in refused(with_smi(1, "\n"))


@pytest.mark.parametrize("status", [0, 6])
def test_no_devices(status: int) -> None:
    assert "nvidia-smi" in refused(with_smi(status, "No devices were found\n"))


def test_an_empty_list_of_gpus() -> None:
    assert "lists no GPU" in refused(with_smi(0, "\n"))


@pytest.mark.parametrize("line", ["x" + gpu_line(0), gpu_line(0).rsplit(",", 2)[0], "0"])
def test_a_list_of_gpus_that_cannot_be_read_is_quoted(line: str) -> None:
    assert repr(line) in refused({**hardware_sections([0]), "gpus": Answer(0, line)})


def test_a_matrix_cut_short_is_none_and_its_check_says_why() -> None:
    sections = hardware_sections([0, 1])
    text = sections["topo"].text
    cut = Answer(0, text[: text.rindex("\nGPU1")])
    assert read_hardware({**sections, "topo": cut}).topo is None
    settings_for_two = settings(prefill_tensor_parallel=1, decode_tensor_parallel=1)
    said = finding("gpu/topology/matrix", {"topo": cut}, nodes=[0, 1], wanted=settings_for_two)
    assert "no row for GPU1" in said.line
    assert said.stops


@pytest.mark.parametrize("missing", sorted(hardware_sections([0])))
def test_an_answer_cut_short(missing: str) -> None:
    sections = hardware_sections([0])
    del sections[missing]
    assert f"cut short: it holds no {missing!r}" in refused(sections)


def test_no_answer_at_all() -> None:
    assert "cut short" in refused({})


@pytest.mark.parametrize("line", ["2", "2 "])
def test_a_node_without_cpus(line: str) -> None:
    sections = {**hardware_sections([0]), "nodes": Answer(0, f"0 0-63\n{line}")}
    assert read_hardware(sections).nodes[1].cpus == frozenset()


@pytest.mark.parametrize(("name", "text"), [("nodes", "0 0-x"), ("nodes", "node0"), ("pci", "0000:01:00.0 none")])
def test_numbers_that_cannot_be_read_are_named(name: str, text: str) -> None:
    line = refused({**hardware_sections([0]), name: Answer(0, text)})
    assert name in line
    assert text in line


# ---- the system


def test_a_bare_debian() -> None:
    found = system()
    assert (found.uid, found.os_id, found.os_version, found.machine, found.glibc) == (
        0,
        "debian",
        "12",
        "x86_64",
        "2.36",
    )
    assert found.os_name == "Debian GNU/Linux 12 (bookworm)"
    assert found.systemd
    assert found.cpus_online == frozenset(range(256))
    assert found.free_kib == {"/opt/sglang-pd": 900000000, "/var/lib/sglang-pd": 900000000}
    assert found.user is None


def test_a_sysctl_that_the_kernel_lacks_is_none_and_an_empty_one_is_empty() -> None:
    found = system(sysctl="net.ipv4.ip_local_reserved_ports=\nkernel.numa_balancing")
    assert found.sysctls == {"net.ipv4.ip_local_reserved_ports": "", "kernel.numa_balancing": None}


@pytest.mark.parametrize(
    ("os", "pythons", "python"),
    [
        ('ID=debian\nVERSION_ID="12"', "", "3.11"),
        ('ID=ubuntu\nVERSION_ID="24.04"', "", "3.12"),
        ('ID=ubuntu\nVERSION_ID="22.04"', "", None),
        ('ID=debian\nVERSION_ID="14"', "3.11 3.11.9 final\n3.12 3.12.3 final", "3.12"),
        ('ID=debian\nVERSION_ID="14"', "3.11 3.11.9 final\n3.12 3.12.0b4 beta", "3.11"),
        ('ID=debian\nVERSION_ID="13"', "3.12 3.12.3 final", "3.13"),
    ],
)
def test_the_python_that_a_host_carries(os: str, pythons: str, python: str | None) -> None:
    assert system(os=os, pythons=pythons).python == python


@pytest.mark.parametrize("missing", sorted(system_sections()))
def test_a_systems_answer_cut_short(missing: str) -> None:
    sections = system_sections()
    del sections[missing]
    with pytest.raises(PlanError, match=f"cut short: it holds no '{missing}'"):
        read_system(sections)


@pytest.mark.parametrize(
    ("name", "text"),
    [("uid", ""), ("uid", "id: command not found"), ("cpus", "cat: no such file"), ("disk", "/opt "), ("disk", "df")],
)
def test_a_systems_number_that_cannot_be_read_is_named(name: str, text: str) -> None:
    with pytest.raises(PlanError) as error:
        system(**{name: text})
    (line,) = error.value.lines
    assert repr(name) in line


# ---- ports that are taken

LISTENING = (
    "tcp 0100007F:7530 101\ntcp 00000000000000000000000000000000:0016 102\nudp 0201D50A:2326 103\n"
    "tcp 000080FE00000000FF005450010000FE:1F40 104"
)
SOCKETS = "101 812\n102 990\n102 1"


def listening(listeners: str = LISTENING, sockets: str = SOCKETS, owners: str = "") -> dict[str, Answer]:
    told = {"listeners": listeners, "sockets": sockets, "owners": owners}
    return {name: Answer(0, text) for name, text in told.items()}


def test_listeners_with_their_owners() -> None:
    owners = "812\tsglang-pd-prefill.service\t/opt/x/python3 -m sglang\n1\t\tsshd: listener"
    assert read_listeners(listening(owners=owners)) == (
        Listener("tcp", "127.0.0.1", 30000, 812, "/opt/x/python3 -m sglang", "sglang-pd-prefill.service"),
        Listener("tcp", "::", 22, 1, "sshd: listener", None),
        Listener("udp", "10.213.1.2", 8998, None, "a process without a pid", None),
        Listener("tcp", "fe80::5054:ff:fe00:1", 8000, None, "a process without a pid", None),
    )


def test_a_holder_that_has_ended_since() -> None:
    found = read_listeners(listening(owners="812\t\t"))
    assert (found[0].pid, found[0].command) == (812, "a process that has ended")


def test_a_holder_that_its_owner_does_not_know_still_has_words() -> None:
    found = read_listeners(listening())
    assert all(listener.command for listener in found)


@pytest.mark.parametrize("missing", ["listeners", "sockets", "owners"])
def test_listeners_cut_short(missing: str) -> None:
    sections = listening()
    del sections[missing]
    with pytest.raises(PlanError, match="cut short"):
        read_listeners(sections)


@pytest.mark.parametrize(
    "text", ["awk: not found", "tcp 0100007F", "tcp 0100007F:http 101", "tcp 01007F:1F40 1", "tcp localhost:1F40 1"]
)
def test_listeners_that_cannot_be_read_are_quoted(text: str) -> None:
    with pytest.raises(PlanError) as error:
        read_listeners(listening(text))
    (line,) = error.value.lines
    assert repr(text) in line
