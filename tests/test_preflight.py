"""May this host be provisioned? One line for each thing to mend."""

import dataclasses

import pytest

from tasks.plan.checks import CHECKS, judged
from tasks.plan.checks.disk import RELEASE_GB, needs
from tasks.plan.errors import PlanError
from tasks.plan.findings import Level
from tasks.plan.phases.system import kernel_settings, packages
from tasks.plan.plan import Plan
from tasks.plan.release import python
from tasks.plan.release.manifest import Manifest
from tasks.support import catalogue
from tests.plan.builders import TWO_SOCKETS, hardware, manifest, plan, profile, release, settings, system
from tests.plan.judging import found as found_host


def only(lines: list[str]) -> str:
    (line,) = lines
    assert "\n" not in line
    return line


# ---- the system


def faults(**changes: str) -> list[str]:
    """Of the checks that come before any GPU is looked at."""
    return [one.sentence for one in judged(found_host(changes), "system") if one.stops]


def test_a_bare_debian_passes() -> None:
    assert faults() == []


def test_no_root() -> None:
    line = only(faults(uid="1000"))
    assert "needs root" in line
    assert "_sudo" in line


def test_no_systemd() -> None:
    assert "systemd does not run this host" in only(faults(init="docker-init"))


def test_another_machine() -> None:
    assert "aarch64" in only(faults(machine="aarch64"))


def test_a_glibc_that_is_too_old_names_both_versions() -> None:
    assert "glibc 2.31 is too old" in only(faults(glibc="glibc 2.31"))


def os_release(name: str, version: str) -> str:
    return f'PRETTY_NAME="{name.title()} {version}"\nID={name}\nVERSION_ID="{version}"'


@pytest.mark.parametrize(("name", "version"), [("debian", "12"), ("ubuntu", "24.04")])
def test_systems_that_are_supported(name: str, version: str) -> None:
    assert faults(os=os_release(name, version)) == []


@pytest.mark.parametrize(
    ("name", "version"),
    [("debian", "11"), ("ubuntu", "22.04"), ("ubuntu", "26.04"), ("rocky", "9.4"), ("alpine", "3.20"), ("debian", "")],
)
def test_systems_that_are_not(name: str, version: str) -> None:
    line = only(faults(os=os_release(name, version)))
    assert f"{name.title()} {version} is not supported" in line
    assert "tried are Debian 12, Debian 13 and Ubuntu 24.04" in line


def test_every_fault_is_told_at_once() -> None:
    assert len(faults(uid="1", init="x", machine="y", glibc="glibc 2.1", os=os_release("alpine", "3"))) == 5


# ---- Python


def chosen(asked: object = "auto", found: Manifest | None = None, **changes: str) -> str:
    return python.choose(system(**changes), found or manifest(), settings(python=asked))


def python_refused(asked: object = "auto", found: Manifest | None = None, **changes: str) -> str:
    with pytest.raises(PlanError) as error:
        chosen(asked, found, **changes)
    return only(list(error.value.lines))


def test_the_python_of_the_distribution() -> None:
    assert chosen() == "3.11"


def test_a_python_that_is_asked_for_and_there() -> None:
    assert chosen("3.12", pythons="3.11 3.11.2 final\n3.12 3.12.3 final") == "3.12"


def test_a_python_that_is_asked_for_and_not_there() -> None:
    line = python_refused("3.12")
    assert "python = '3.12'" in line
    assert "carries 3.11" in line


def test_a_host_without_a_usable_python() -> None:
    line = python_refused(os=os_release("debian", "11"), pythons="")
    assert "carries no Python that a release can use (3.11 or 3.12)" in line


def test_a_release_without_a_lock_for_the_hosts_python() -> None:
    line = python_refused(found=manifest(python=["3.12"]))
    assert "carries Python 3.11: release" in line
    assert "use a system that carries one (Ubuntu 24.04)" in line
    assert 'leave python at "auto"' in python_refused("3.13")


@pytest.mark.parametrize("release", ["sglang-0.5.13.post1-cu130", "sglang-0.5.17-cu130", "sglang-0.5.23-cu130"])
def test_a_release_for_gpus_tells_why_it_has_no_lock_for_debian_13(release: str) -> None:
    line = python_refused(found=catalogue.manifest(release), os=os_release("debian", "13"))
    assert "locks for 3.11 and 3.12 only: outlines-core 0.1.26 that SGLang asks for has no wheel for it" in line
    assert "Debian 12 or Ubuntu 24.04" in line
    assert chosen(found=catalogue.manifest("sglang-0.5.20-cpu"), os=os_release("debian", "13")) == "3.13"


# ---- ports


def held(*holders: tuple[int, int | None, str, str]) -> list[str]:
    """Faults of the ports where these are held: port, pid, command, unit ("" for none)."""
    listeners = "\n".join(f"tcp 0100007F:{port:04X} {inode}" for inode, (port, *_) in enumerate(holders))
    sockets = "\n".join(f"{inode} {pid}" for inode, (_, pid, _, _) in enumerate(holders) if pid)
    owners = "\n".join(f"{pid}\t{unit}\t{command}" for _, pid, command, unit in holders if pid)
    said = CHECKS["host/ports/free"].finding(found_host({"listeners": listeners, "sockets": sockets, "owners": owners}))
    assert said.stops == (said.level is Level.ERROR)
    return [said.sentence] if said.stops else []


def test_a_foreign_holder_is_named_with_pid_and_command() -> None:
    line = only(held((30000, 812, "python3 -m http.server 30000", "")))
    assert "port 30000 of prefill (prefill_port) is taken by pid 812 (python3 -m http.server 30000)" in line
    assert "set prefill_port" in line


def test_a_foreign_unit_is_foreign_too() -> None:
    assert "pid 7 (vllm)" in only(held((8998, 7, "vllm", "vllm.service")))


def test_a_holder_without_a_pid() -> None:
    assert "taken by a process without a pid" in only(held((8000, None, "", "")))


def test_our_own_unit_may_hold_its_port() -> None:
    assert held((30000, 812, "python3", "sglang-pd-prefill.service")) == []


def test_ports_that_nobody_wants_may_be_taken() -> None:
    assert held((22, 1, "sshd", "ssh.service")) == []


def test_a_port_that_is_held_by_both_is_foreign() -> None:
    ours = (30000, 812, "python3", "sglang-pd-prefill.service")
    assert "pid 900 (nc -l)" in only(held((30000, 900, "nc -l", ""), ours))


def test_two_ports_that_are_held_are_both_named() -> None:
    line = only(held((30000, 812, "a", ""), (30001, 813, "b", "")))
    assert "pid 812 (a)" in line
    assert "pid 813 (b)" in line
    assert "prefill_port and decode_port" in line


def test_nobody_listens() -> None:
    assert held() == []


@pytest.mark.parametrize(
    ("port", "setting"),
    [(30000, "prefill_port"), (8998, "prefill_bootstrap_port"), (30335, "prefill_dist_init_port"),
     (30001, "decode_port"), (30435, "decode_dist_init_port"), (8000, "router_port"), (29001, "router_metrics_port")],
)  # fmt: skip
def test_every_port_of_the_plan_is_looked_at(port: int, setting: str) -> None:
    assert f"({setting})" in only(held((port, 1, "x", "")))


# ---- disk


def space(gigabytes: float) -> str:
    return f"/opt/sglang-pd {int(gigabytes * 1e9 / 1024)}\n/var/lib/sglang-pd 900000000"


def test_room_enough() -> None:
    assert CHECKS["host/disk/release"].finding(found_host({"disk": space(24.1)})).level is Level.HEALTHY


def test_a_release_that_is_built_needs_no_room() -> None:
    made = plan(settings(), hardware(TWO_SOCKETS))
    host = found_host({"disk": space(1), "files": made.release_file}, made=made)
    assert CHECKS["host/disk/release"].finding(host).level is Level.HEALTHY


def test_what_a_first_install_needs() -> None:
    needed = needs(plan(settings(), hardware(TWO_SOCKETS)))
    assert needed["/opt/sglang-pd"] == RELEASE_GB["cuda"]
    assert needed["/var/lib/sglang-pd"] > 146


@pytest.mark.parametrize(
    ("changes", "source"),
    [({"model_dir": "/models/x"}, {"hub": "a/b", "revision": "0" * 40}), ({}, {"directory": "/models/x"})],
)
def test_a_model_that_is_there_needs_no_room(changes: dict[str, object], source: dict[str, str]) -> None:
    made = plan(settings(**changes), hardware(TWO_SOCKETS), model=profile(source=source))
    assert list(needs(made)) == ["/opt/sglang-pd"]


# ---- the model


def of_model(made: Plan) -> list[str]:
    return [
        said.sentence
        for said in (
            CHECKS[f"model/{name}"].finding(found_host(made=made)) for name in ("files/there", "revision/pinned")
        )
        if said.stops
    ]


def test_a_model_that_is_fetched_must_be_pinned() -> None:
    open_ended = profile(source={"hub": "someone/some-model"})
    line = only(of_model(plan(settings(), hardware(TWO_SOCKETS), model=open_ended)))
    assert "pins no revision of someone/some-model" in line
    assert of_model(plan(settings(model_revision="1" * 40), hardware(TWO_SOCKETS), model=open_ended)) == []


def test_a_model_that_is_fetched_may_be_absent() -> None:
    assert of_model(plan(settings(), hardware(TWO_SOCKETS))) == []


# ---- kernel settings


def sysctls(reserved: str | None = "", balancing: str | None = "1", **changes: object) -> dict[str, tuple[str, str]]:
    lines = [
        f"{key}={value}" if value is not None else key
        for key, value in (("net.ipv4.ip_local_reserved_ports", reserved), ("kernel.numa_balancing", balancing))
    ]
    made = plan(settings(**changes), hardware(TWO_SOCKETS))
    found = dataclasses.replace(made, system=system(sysctl="\n".join(lines)))
    return {setting.key: (setting.wanted, setting.found) for setting in kernel_settings(found)}


OWN_PORTS = "8000,8998,29001,30000-30001,30335,30435"


def test_our_ports_are_reserved_in_the_kernels_spelling() -> None:
    assert sysctls()["net.ipv4.ip_local_reserved_ports"] == (OWN_PORTS, "")


def test_what_is_reserved_already_stays_so() -> None:
    wanted, found = sysctls(reserved="9100,8080-8081")["net.ipv4.ip_local_reserved_ports"]
    assert wanted == "8000,8080-8081,8998,9100,29001,30000-30001,30335,30435"
    assert found == "8080-8081,9100"


def test_ports_that_are_reserved_differ_from_nothing() -> None:
    wanted, found = sysctls(reserved=OWN_PORTS)["net.ipv4.ip_local_reserved_ports"]
    assert wanted == found


def test_numa_balancing_is_off() -> None:
    assert sysctls()["kernel.numa_balancing"] == ("0", "1")


def test_a_kernel_without_a_key_is_not_asked_for_it() -> None:
    assert sysctls(reserved=None, balancing=None) == {}


def test_settings_switch_them_off() -> None:
    assert sysctls(reserve_ports=False, disable_numa_balancing=False) == {}


def test_the_release_adds_packages() -> None:
    made = plan(settings(), hardware(TWO_SOCKETS), release(manifest(system_packages=["g++", "libnuma1"])))
    assert {"g++", "libnuma1", "numactl", "python3.11", "python3.11-venv", "python3.11-dev"} <= set(packages(made))
