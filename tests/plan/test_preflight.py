"""May this host be provisioned? One line for each thing to mend."""

import dataclasses

import pytest

from tasks.plan import preflight
from tasks.plan.errors import PlanError
from tasks.plan.host import Answer, Listener, read_hardware
from tasks.plan.release import Manifest
from tests.plan.builders import (
    TWO_SOCKETS,
    gpu_line,
    hardware,
    hardware_sections,
    manifest,
    module_text,
    plan,
    profile,
    release,
    servers,
    settings,
    system,
)


def only(lines: list[str]) -> str:
    (line,) = lines
    assert "\n" not in line
    return line


# ---- the system


def judged(found: Manifest | None = None, **changes: str) -> list[str]:
    return preflight.system(system(**changes), found or manifest(), settings())


def test_a_bare_debian_passes() -> None:
    assert judged() == []


def test_no_root() -> None:
    line = only(judged(uid="1000"))
    assert "needs root" in line
    assert "_sudo" in line


def test_no_systemd() -> None:
    assert "systemd does not run this host" in only(judged(init="docker-init"))


def test_another_machine() -> None:
    assert "aarch64" in only(judged(machine="aarch64"))


def test_a_glibc_that_is_too_old_names_both_versions() -> None:
    assert "glibc 2.31 is too old" in only(judged(glibc="glibc 2.31"))


def os_release(name: str, version: str) -> str:
    return f'PRETTY_NAME="{name.title()} {version}"\nID={name}\nVERSION_ID="{version}"'


@pytest.mark.parametrize(
    ("name", "version"), [("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04")]
)
def test_systems_that_are_supported(name: str, version: str) -> None:
    assert judged(os=os_release(name, version)) == []


@pytest.mark.parametrize(
    ("name", "version"), [("debian", "11"), ("ubuntu", "20.04"), ("rocky", "9.4"), ("alpine", "3.20"), ("debian", "")]
)
def test_systems_that_are_not(name: str, version: str) -> None:
    line = only(judged(os=os_release(name, version)))
    assert f"{name.title()} {version} is not supported: Debian from 12 and Ubuntu from 22.04 are" in line


def test_every_fault_is_told_at_once() -> None:
    assert len(judged(uid="1", init="x", machine="y", glibc="glibc 2.1", os=os_release("alpine", "3"))) == 5


# ---- Python


def chosen(asked: object = "auto", found: Manifest | None = None, **changes: str) -> str:
    return preflight.python(system(**changes), found or manifest(), settings(python=asked))


def python_refused(asked: object = "auto", found: Manifest | None = None, **changes: str) -> str:
    with pytest.raises(PlanError) as error:
        chosen(asked, found, **changes)
    return only(list(error.value.lines))


def test_the_python_of_the_distribution() -> None:
    assert chosen() == "3.11"


def test_a_python_that_is_asked_for_and_there() -> None:
    assert chosen("3.12", pythons="3.11 3.12") == "3.12"


def test_a_python_that_is_asked_for_and_not_there() -> None:
    line = python_refused("3.12")
    assert "python = '3.12'" in line
    assert "carries 3.11" in line


def test_a_host_without_a_usable_python() -> None:
    line = python_refused(os=os_release("debian", "13"), pythons="")
    assert "carries no Python that a release can use (3.11 or 3.12)" in line


def test_a_release_without_a_lock_for_the_hosts_python() -> None:
    line = python_refused(found=manifest(python=["3.12"]))
    assert "has locks for Python 3.12, asked is 3.11" in line


# ---- driver and GPUs


def test_a_driver_that_serves_the_release() -> None:
    assert preflight.hardware(hardware(TWO_SOCKETS), manifest()) == []


def test_an_old_driver_names_what_it_serves_and_what_is_needed() -> None:
    line = only(preflight.hardware(hardware(TWO_SOCKETS, driver="570.172.08"), manifest()))
    assert "driver 570.172.08 serves CUDA 12.8" in line
    assert "needs CUDA 13.0" in line
    assert "install driver 580 or newer" in line


def test_a_module_other_than_its_library() -> None:
    sections = {**hardware_sections([0], driver="580.95.05"), "driver": Answer(0, module_text("580.65.06"))}
    line = only(preflight.hardware(read_hardware(sections), manifest()))
    assert "loaded driver module is 580.65.06, its library 580.95.05" in line


def test_without_a_module_file_the_librarys_driver_counts() -> None:
    sections = {**hardware_sections([0], driver="550.90.07"), "driver": Answer(0, "")}
    assert "driver 550.90.07 serves CUDA 12.4" in only(preflight.hardware(read_hardware(sections), manifest()))


def test_gpus_that_the_release_has_no_kernels_for() -> None:
    found = {**hardware_sections([0, 0]), "gpus": Answer(0, f"{gpu_line(0)}\n{gpu_line(1, capability='9.0')}")}
    line = only(preflight.hardware(read_hardware(found), manifest()))
    assert line.startswith("GPU 1 (")
    assert "compute capability 9.0" in line
    assert "kernels for 12.0" in line


def test_mig() -> None:
    found = {**hardware_sections([0, 0]), "gpus": Answer(0, f"{gpu_line(0)}\n{gpu_line(1, mig='Enabled')}")}
    assert "MIG is on for GPU 1" in only(preflight.hardware(read_hardware(found), manifest()))


def test_a_release_for_the_cpu_asks_nothing_of_the_gpus() -> None:
    cpu = manifest(device="cpu", driver_minimum=None, cuda=None, compute_capabilities=[])
    assert preflight.hardware(hardware(TWO_SOCKETS, driver="470.1"), cpu) == []


# ---- ports

INSTANCES = servers(settings(), hardware(TWO_SOCKETS))


def test_a_foreign_holder_is_named_with_pid_and_command() -> None:
    held = [Listener(30000, 812, "python3 -m http.server 30000", None)]
    line = only(preflight.ports(INSTANCES, held))
    assert "port 30000 of prefill (prefill_port) is taken by pid 812 (python3 -m http.server 30000)" in line
    assert "set prefill_port" in line


def test_a_foreign_unit_is_foreign_too() -> None:
    assert "pid 7 (vllm)" in only(preflight.ports(INSTANCES, [Listener(8998, 7, "vllm", "vllm.service")]))


def test_a_holder_without_a_pid() -> None:
    line = only(preflight.ports(INSTANCES, [Listener(8000, None, "a process without a pid", None)]))
    assert "taken by a process without a pid" in line


def test_our_own_unit_may_hold_its_port() -> None:
    assert preflight.ports(INSTANCES, [Listener(30000, 812, "python3", "sglang-pd-prefill.service")]) == []


def test_ports_that_nobody_wants_may_be_taken() -> None:
    assert preflight.ports(INSTANCES, [Listener(22, 1, "sshd", "ssh.service")]) == []


def test_a_port_that_is_held_by_both_is_foreign() -> None:
    ours = Listener(30000, 812, "python3", "sglang-pd-prefill.service")
    other = Listener(30000, 900, "nc -l", None)
    assert "pid 900 (nc -l)" in only(preflight.ports(INSTANCES, [other, ours]))


@pytest.mark.parametrize(
    ("port", "setting"),
    [(30000, "prefill_port"), (8998, "prefill_bootstrap_port"), (30335, "prefill_dist_init_port"),
     (30001, "decode_port"), (30435, "decode_dist_init_port"), (8000, "router_port"), (29001, "router_metrics_port")],
)  # fmt: skip
def test_every_port_of_the_plan_is_looked_at(port: int, setting: str) -> None:
    assert f"({setting})" in only(preflight.ports(INSTANCES, [Listener(port, 1, "x", None)]))


# ---- disk


def space(gigabytes: float) -> str:
    return f"/opt/sglang-pd {int(gigabytes * 1e9 / 1024)}\n/var/lib/sglang-pd 900000000"


def test_room_enough() -> None:
    assert preflight.disk({"/opt/sglang-pd": 24.0}, system(disk=space(24.1)), settings()) == []


def test_too_little_room_names_folder_and_both_numbers() -> None:
    line = only(preflight.disk({"/opt/sglang-pd": 24.0}, system(disk=space(20.0)), settings()))
    assert "/opt/sglang-pd has 20 GB free, 24 GB are needed" in line


def test_the_limit_of_the_setting_wins() -> None:
    wanted = settings(minimum_free_disk_gb=10)
    assert preflight.disk({"/opt/sglang-pd": 24.0}, system(disk=space(20.0)), wanted) == []


def test_a_folder_that_nobody_measured_has_no_room() -> None:
    assert "/elsewhere has 0 GB free" in only(preflight.disk({"/elsewhere": 1.0}, system(), settings()))


def test_what_a_first_install_needs() -> None:
    needs = plan(settings(), hardware(TWO_SOCKETS)).disk_needs
    assert needs["/opt/sglang-pd"] == preflight.RELEASE_GB["cuda"]
    assert needs["/var/lib/sglang-pd"] > 146


@pytest.mark.parametrize(
    ("changes", "source"),
    [({"model_dir": "/models/x"}, {"hub": "a/b", "revision": "0" * 40}), ({}, {"directory": "/models/x"})],
)
def test_a_model_that_is_there_needs_no_room(changes: dict[str, object], source: dict[str, str]) -> None:
    made = plan(settings(**changes), hardware(TWO_SOCKETS), model=profile(source=source))
    assert list(made.disk_needs) == ["/opt/sglang-pd"]


# ---- the model


def test_a_model_that_the_host_brings_must_be_there() -> None:
    made = plan(settings(model_dir="/models/x"), hardware(TWO_SOCKETS))
    assert preflight.model(made, there=True) == []
    assert "model /models/x holds no config.json" in only(preflight.model(made, there=False))


def test_a_model_that_is_fetched_must_be_pinned() -> None:
    open_ended = profile(source={"hub": "someone/some-model"})
    made = plan(settings(), hardware(TWO_SOCKETS), model=open_ended)
    assert "pins no revision of someone/some-model" in only(preflight.model(made, there=False))
    pinned = plan(settings(model_revision="1" * 40), hardware(TWO_SOCKETS), model=open_ended)
    assert preflight.model(pinned, there=False) == []


def test_a_model_that_is_fetched_may_be_absent() -> None:
    assert preflight.model(plan(settings(), hardware(TWO_SOCKETS)), there=False) == []


# ---- kernel settings


def kernel_settings(
    reserved: str | None = "", balancing: str | None = "1", **changes: object
) -> dict[str, tuple[str, str]]:
    lines = [
        f"{key}={value}" if value is not None else key
        for key, value in (("net.ipv4.ip_local_reserved_ports", reserved), ("kernel.numa_balancing", balancing))
    ]
    made = plan(settings(**changes), hardware(TWO_SOCKETS))
    found = dataclasses.replace(made, system=system(sysctl="\n".join(lines)))
    return {setting.key: (setting.wanted, setting.found) for setting in found.kernel_settings}


OWN_PORTS = "8000,8998,29001,30000-30001,30335,30435"


def test_our_ports_are_reserved_in_the_kernels_spelling() -> None:
    assert kernel_settings()["net.ipv4.ip_local_reserved_ports"] == (OWN_PORTS, "")


def test_what_is_reserved_already_stays_so() -> None:
    wanted, found = kernel_settings(reserved="9100,8080-8081")["net.ipv4.ip_local_reserved_ports"]
    assert wanted == "8000,8080-8081,8998,9100,29001,30000-30001,30335,30435"
    assert found == "8080-8081,9100"


def test_ports_that_are_reserved_differ_from_nothing() -> None:
    wanted, found = kernel_settings(reserved=OWN_PORTS)["net.ipv4.ip_local_reserved_ports"]
    assert wanted == found


def test_numa_balancing_is_off() -> None:
    assert kernel_settings()["kernel.numa_balancing"] == ("0", "1")


def test_a_kernel_without_a_key_is_not_asked_for_it() -> None:
    assert kernel_settings(reserved=None, balancing=None) == {}


def test_settings_switch_them_off() -> None:
    assert kernel_settings(reserve_ports=False, disable_numa_balancing=False) == {}


def test_the_release_adds_packages() -> None:
    made = plan(settings(), hardware(TWO_SOCKETS), release(manifest(system_packages=["g++", "libnuma1"])))
    assert {"g++", "libnuma1", "numactl", "python3.11", "python3.11-venv", "python3.11-dev"} <= set(made.packages)
