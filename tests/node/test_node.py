"""The simulated host is what it says: bare, a real system, with recorded hardware, and gone without a trace."""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Checkout
from tests.node import debian, network, traces
from tests.node.node import REPOSITORY, Node
from tests.node.process import NodeError
from tests.node.settings import REHEARSAL, of_node
from tests.node.waiting import until

MakeNode = Callable[..., Node]
GPUS = 8


@pytest.fixture(scope="module")
def node(bare_node: MakeNode) -> Node:
    return bare_node()


def say(node: Node, cmd: str) -> str:
    """What a command that succeeds prints on the node."""
    ran = node.run(cmd)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# -- bare


def test_holds_the_named_packages_and_what_they_need_only(node: Node) -> None:
    fields = "${Package}\t${Provides}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\n"
    packages = {}
    for line in say(node, f"dpkg-query -W -f '{fields}'").splitlines():
        package, provides, essential, priority, needs = line.split("\t")
        packages[package] = (provides, essential == "yes" or priority == "required", needs)
    providers: dict[str, set[str]] = {}
    for package, (provides, _, _) in packages.items():
        for name in [package, *re.findall(r"[a-z0-9][a-z0-9+.-]+(?=\s*(?:\(|,|$))", provides)]:
            providers.setdefault(name, set()).add(package)

    wanted = {name for name, (_, basic, _) in packages.items() if basic} | {"apt", *debian.PACKAGES}
    reached: set[str] = set()
    while wanted:
        package = wanted.pop()
        reached.add(package)
        names = re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", packages[package][2])
        wanted |= {provider for name in names for provider in providers.get(name, ())} - reached

    assert set(debian.PACKAGES) <= packages.keys()
    assert packages.keys() - reached == set()


@pytest.mark.parametrize("tool", ["python3", "gcc", "cc", "make", "curl", "wget", "git"])
def test_lacks_what_a_bare_host_lacks(node: Node, tool: str) -> None:
    assert node.run(f"command -v {tool}").returncode != 0


def test_has_an_identity_of_its_own(node: Node) -> None:
    assert say(node, "hostname").strip() == node.name
    assert re.fullmatch(r"[0-9a-f]{32}", say(node, "cat /etc/machine-id").strip())
    assert say(node, "ls /etc/ssh/ssh_host_*_key").split() == ["/etc/ssh/ssh_host_ed25519_key"]


def test_is_of_this_machines_suite(node: Node) -> None:
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    assert f"VERSION_CODENAME={suite}\n" in say(node, "cat /etc/os-release")


# -- a real system


def test_systemd_runs_and_is_not_confused_by_recorded_files(node: Node) -> None:
    assert say(node, "systemctl daemon-reload && systemctl is-system-running").strip() == "running"


def test_a_unit_has_a_cgroup_of_its_own_that_is_killed_whole(node: Node) -> None:
    say(node, "systemd-run --unit=family sh -c 'setsid sleep infinity & exec sleep infinity'")
    processes = "/sys/fs/cgroup/system.slice/family.service/cgroup.procs"
    # both processes have become sleep
    wait = f"until [ $(cat {processes} | xargs -I{{}} cat /proc/{{}}/comm | grep -c sleep) = 2 ]; do :; done"
    members = say(node, f"timeout 20 sh -c '{wait}'; cat {processes}").split()
    assert len(members) == 2
    for member in members:
        assert "0::/system.slice/family.service\n" in say(node, f"cat /proc/{member}/cgroup")
    say(node, "systemctl kill --signal=KILL family")
    node.run("timeout 20 sh -c 'while systemctl is-active --quiet family; do :; done'")
    for member in members:
        assert node.run(f"test -e /proc/{member}").returncode == 1


def test_writes_sysctls_of_its_own_network(node: Node) -> None:
    ours = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
    before = ours.read_text()
    assert say(node, f"echo 8998,30000-30001 > {ours} && cat {ours}").strip() == "8998,30000-30001"
    assert ours.read_text() == before


def test_installs_packages_from_this_machines_source(node: Node) -> None:
    assert "Reading package lists" in say(node, "apt-get update")
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    assert f"n={suite}-security" in say(node, "apt-cache policy") or suite not in {"bookworm", "trixie"}


def test_pyinfra_sees_this_machines_package_settings(node: Node) -> None:
    line = [str(Path(sys.executable).with_name("pyinfra")), "-y", "tests/node/inventory.py", "exec", "--", "env"]
    environment = {"NODE": node.name, "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(line, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    settings = re.findall(r'^(\w+)="(.*)"$', say(node, "cat /etc/environment"), re.MULTILINE)
    for name, value in settings:
        assert f"{name}={value}" in ran.stdout + ran.stderr


def test_takes_nothing_from_the_users_own_group_data(node: Node, checkout: Checkout) -> None:
    (checkout.folder / "tests").symlink_to(REPOSITORY / "tests")
    own = checkout.folder / "group_data"
    (own / "gpu-1.example.com.py").write_text("model_dir = '/data/models/mine'\n")  # a host of the user's inventory
    for group in ("rehearsal", "hosts", "inventory"):  # groups that this inventory has too
        (own / f"{group}.py").write_text("context_length = 4096\nmodel_dir = '/data/models/mine'\n")
    line = checkout.command("--json", inventory="tests/node/inventory.py", operations="debug-inventory")
    ran = subprocess.run(
        line, cwd=checkout.folder, env={**checkout.environment, "NODE": node.name}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    (host,) = json.loads(ran.stdout)
    assert (host["data"]["context_length"], host["data"]["model_dir"]) == (REHEARSAL["context_length"], None)
    assert {**host["data"], **of_node()} == host["data"]


# -- recorded hardware

QUERY = (
    "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name,compute_cap,driver_version,memory.total,persistence_mode,"
    "mig.mode.current --format=csv,noheader,nounits"
)


def test_tools_answer_a_service_too(node: Node) -> None:
    asked = say(node, f"systemd-run --quiet --wait --pipe -p DynamicUser=yes {QUERY}")
    assert asked == say(node, QUERY)
    assert len(asked.splitlines()) == GPUS


def test_a_question_that_was_not_recorded_fails_and_is_remembered(node: Node) -> None:
    asked = node.run("nvidia-smi --query-gpu=index,fan.speed --format=csv")
    assert (asked.returncode, asked.stdout) == (9, "")
    assert asked.stderr == "nvidia-smi: no recorded answer to: nvidia-smi --query-gpu=index,fan.speed --format=csv\n"
    assert node.run("systemd-run --quiet --wait --pipe -p DynamicUser=yes lspci -nn").returncode == 9
    assert node.unrecorded() == ["nvidia-smi --query-gpu=index,fan.speed --format=csv", "lspci -nn"]


@pytest.mark.parametrize("binding", ["--cpunodebind=1 --membind=1", "-N 0 -m 0,1", "--membind 0-1", "-N1 --", ""])
def test_numactl_runs_the_command(node: Node, binding: str) -> None:
    if binding:
        assert say(node, f"numactl {binding} sh -c 'echo \"$0\" \"$1\"' 'a b' c") == "a b c\n"
    else:
        assert say(node, "numactl --hardware").startswith("available: 2 nodes (0-1)\n")


@pytest.mark.parametrize("binding", ["--cpunodebind=5", "--membind=0,5", "-N 5", "-m4-5"])
def test_numactl_refuses_a_node_that_the_recorded_host_lacks(node: Node, binding: str) -> None:
    ran = node.run(f"numactl {binding} echo ran")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "libnuma: Warning: node argument" in ran.stderr
    assert " is out of range" in ran.stderr
    assert " is invalid" in ran.stderr


def test_recorded_files_hide_this_machines(node: Node) -> None:
    assert "iommu=off" in say(node, "cat /proc/cmdline")
    assert say(node, "cat /sys/devices/system/node/online") == "0-1\n"
    assert len(say(node, "ls /sys/bus/pci/devices").split()) == GPUS
    assert "580.95.05" in say(node, "cat /proc/driver/nvidia/version")


def test_other_hardware_in_a_running_node(node: Node) -> None:
    node.hardware("two-gpus")
    assert len(say(node, QUERY).splitlines()) == 2
    assert say(node, "cat /sys/devices/system/node/online") == "0\n"
    assert node.run("numactl --cpunodebind=1 true").returncode == 1
    node.hardware("driver-mismatch")
    asked = node.run(QUERY)
    assert asked.returncode == 18
    assert asked.stdout.startswith("Failed to initialize NVML: Driver/library version mismatch\n")
    node.hardware("no-nvidia")
    assert node.run("command -v nvidia-smi").returncode != 0
    assert node.run("test -e /proc/driver/nvidia").returncode == 1
    node.hardware("rtx-pro-6000-x8")
    assert len(say(node, QUERY).splitlines()) == GPUS
    assert say(node, "mount | grep -c /sys/bus/pci").strip() == "1"


# -- life (each may leave the node changed: they come last)


def test_two_nodes_side_by_side(bare_node: MakeNode, node: Node) -> None:
    other = bare_node(hardware="two-gpus")
    assert other.address != node.address
    assert say(other, "cat /etc/machine-id") != say(node, "cat /etc/machine-id")
    say(other, "systemctl stop dbus.socket dbus")
    assert say(node, "systemctl is-active dbus").strip() == "active"
    assert say(node, f"timeout 5 bash -c '</dev/tcp/{other.address}/22' && echo reached") == "reached\n"
    say(node, f"systemd-run -q --unit=held bash -c 'exec 3<>/dev/tcp/{other.address}/22 && sleep infinity'")
    until(
        lambda: f" {node.address}:" in say(other, "ss -Htn state established"),
        "the other sees it by its own address",
        10,
    )
    say(node, "systemctl stop held")
    other.down()
    assert say(node, "hostname").strip() == node.name


def test_reboot(node: Node) -> None:
    say(node, "echo 0 > /proc/sys/kernel/numa_balancing && touch /root/kept")
    before = say(node, "cat /proc/sys/kernel/random/boot_id")
    node.reboot()
    assert say(node, "cat /proc/sys/kernel/random/boot_id") != before
    assert say(node, "cat /proc/sys/kernel/numa_balancing") == "1\n"
    assert say(node, "ls /root") == "kept\n"
    assert len(say(node, QUERY).splitlines()) == GPUS


def test_rebuild(node: Node) -> None:
    address, key = node.address, say(node, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    say(node, "touch /root/lost")
    node.rebuild()
    assert node.address == address
    assert say(node, "cat /etc/ssh/ssh_host_ed25519_key.pub") != key
    assert say(node, "ls /root") == ""
    # the user's known_hosts still holds the old key
    line = [*node.ssh_command(node.known_hosts), "true"]
    refused = subprocess.run(line, capture_output=True, text=True, check=False)
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr


def test_down_leaves_nothing(node: Node) -> None:
    number = json.loads((node.folder / "node.json").read_text())["number"]
    assert traces.of_node(node, number) != []
    others = any(path.name != f"pd-node-{number}" for path in Path("/sys/class/net").glob("pd-node-*"))
    forwarded_by_us = network.FORWARD_MARK in subprocess.check_output(["nft", "list", "tables"], text=True)
    node.down()
    assert traces.of_node(node, number) == []
    if not any(Path("/run/netns").glob("*")):
        assert " /run/netns " not in Path("/proc/self/mountinfo").read_text()
    if forwarded_by_us and not others:
        assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "0\n"
        assert network.FORWARD_MARK not in subprocess.check_output(["nft", "list", "tables"], text=True)


# -- what cannot be made


def test_no_way_to_the_mirror(bare_node: MakeNode) -> None:
    node = bare_node()
    number = json.loads((node.folder / "node.json").read_text())["number"]
    rules = f"""
        table ip pd_test_{number} {{
            chain forward {{
                type filter hook forward priority 0;
                iifname "pd-node-{number}" ip protocol tcp reject with tcp reset
            }}
        }}
    """
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    try:
        with pytest.raises(NodeError, match=f"node {node.name} cannot reach the package mirror .*: Connection refused"):
            node.rebuild()
    finally:
        subprocess.run(["nft", "delete", "table", "ip", f"pd_test_{number}"], check=True)
    assert traces.of_node(node, number) == []


def test_a_firewall_that_drops_what_it_should_forward_is_named() -> None:
    chain = "table {} {{\nchain {} {{\ntype filter hook forward priority 0; policy {};\n}}\n}}\n"
    rules = chain.format("ip filter", "FORWARD", "drop") + chain.format("inet other", "forward", "accept")
    program = f"from tests.node import network, process; process.command('nft', '-f', '-', text={rules!r});"
    program += "print(network.dropping_chains())"
    ran = subprocess.check_output(["unshare", "--net", sys.executable, "-c", program], cwd=REPOSITORY, text=True)
    assert ran == "['ip filter FORWARD']\n"


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NodeError, match="a node needs root"):
        Node("refused").up()
    assert traces.of_folder(Node("refused").folder) == []


def test_missing_packages_are_all_named(tmp_path: Path) -> None:
    asked = tmp_path / "packages.txt"
    asked.write_text("no-such-tool\niproute2\nno-such-other\n")
    with pytest.raises(NodeError, match=r"apt-get install .* no-such-tool no-such-other$"):
        debian.require_machine(asked)


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "-a", "a" * 33])
def test_bad_name(name: str) -> None:
    with pytest.raises(NodeError, match="no host name"):
        Node(name)


def test_unknown_hardware() -> None:
    with pytest.raises(NodeError, match=r"no recorded hardware h100: there is .*rtx-pro-6000-x8"):
        Node("refused", hardware="h100").up()


def test_a_node_that_is_not_there() -> None:
    with pytest.raises(NodeError, match="there is no node never-made"):
        Node("never-made").run("true")
