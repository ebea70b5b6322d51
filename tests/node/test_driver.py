"""manage_driver on a host with real apt, dpkg and systemd, from a signed repository; its driver is recorded answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node import driver_repository
from tests.node.asking import out
from tests.node.deploying import deploy
from tests.node.driver_repository import Repository
from tests.node.node import Node

OLD, WANTED, NEWER = "580.82.07", "580.95.05", "590.44.01"
PACKAGES = ["libcuda1", "nvidia-kernel-open-dkms", "nvidia-open"]
PIN = "/etc/apt/preferences.d/sglang-pd-driver.pref"
LEFT_OUT = "/etc/apt/apt.conf.d/52sglang-pd-driver"
SOURCE, KEYRING = "/etc/apt/sources.list.d/sglang-pd-driver.sources", "/etc/apt/keyrings/sglang-pd-driver.gpg"
SERVER = """[Service]
ExecStart=sleep infinity
ExecStop=sh -c 'echo {name} >>/root/stopped'
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("driver")
    made = Repository(folder / "signed")
    try:
        made.add(package for version in (OLD, WANTED, NEWER) for package in driver_repository.driver(version, folder))
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def node(bare_node: Callable[..., Node], repository: Repository) -> Iterator[Node]:
    """A host without a driver. It has unattended-upgrades, which may upgrade whatever the repository has."""
    made = bare_node("no-nvidia")
    out(made, "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends unattended-upgrades >/dev/null")  # fmt: skip
    made.run("cat >/etc/apt/apt.conf.d/60test", text='#clear Unattended-Upgrade::Origins-Pattern;\nUnattended-Upgrade::Origins-Pattern { "origin=Tests"; };\n')  # fmt: skip
    out(made, "rm /etc/apt/sources.list.d/*")  # the rest of Debian is not asked for again
    repository.put(made)
    yield made
    assert made.unrecorded() == []


@pytest.fixture(scope="module")
def of(repository: Repository) -> Callable[..., dict[str, object]]:
    """Settings for the repository, with changes."""

    def settings(**changes: object) -> dict[str, object]:
        return {
            "manage_driver": True,
            "driver_version": WANTED,
            "driver_repository": f"file:{driver_repository.WHERE} ./",
            "driver_keyring": repository.keyring,
            **changes,
        }

    return settings


def apt(node: Node) -> str:
    """Everything of apt's and dpkg's that a run could have changed."""
    return out(node, "dpkg-query -W; apt-mark showhold; cat /etc/apt/*/* /var/lib/dpkg/status | sha256sum; ls -R /etc/apt /var/lib/apt/lists")  # fmt: skip


def would_upgrade(node: Node) -> list[str]:
    """Packages of the driver that an unattended upgrade would replace now."""
    said = out(node, "unattended-upgrade --dry-run -v 2>&1")
    return [
        name for name in PACKAGES if re.search(rf"^Packages that will be upgraded:.*\b{name}\b", said, re.MULTILINE)
    ]


def versions(node: Node) -> set[str]:
    return set(out(node, f"dpkg-query -W -f '${{Version}}\\n' {' '.join(PACKAGES)}").split())


def refusals(output: str) -> list[str]:
    return [line.split("refused: ", 1)[1] for line in output.splitlines() if "refused: " in line]


# ---- before anything changes


def test_a_kernel_without_headers_is_refused_in_one_line(node: Node, of: Callable[..., dict[str, object]]) -> None:
    before, kernel = apt(node), driver_repository.kernel()
    said = deploy(node, "-y", **of())
    assert said.status != 0
    assert refusals(said.output) == [
        f"no headers for kernel {kernel}, and apt offers no linux-headers-{kernel}: the module cannot be built for it; "
        "install them, or boot a kernel that has some"
    ]
    assert apt(node) == before


def test_what_does_not_fit_is_refused_in_one_line_and_nothing_changes(
    node: Node, of: Callable[..., dict[str, object]], repository: Repository, tmp_path: Path
) -> None:
    repository.add([driver_repository.headers(driver_repository.kernel(), tmp_path)])
    repository.put(node)
    other = Repository(tmp_path / "other")
    other.close()
    before = apt(node)
    for changes, line in (
        ({"driver_version": "580.105.08"}, "setting driver_version = '580.105.08': apt offers 590.44.01, 580.95.05, 580.82.07 of nvidia-open"),
        ({"driver_version": "570.172.08", "release": "sglang-0.5.23-cu130"}, "setting driver_version = '570.172.08' serves CUDA 12.8, release sglang-0.5.23-cu130 needs CUDA 13.0: set 580 or newer"),
        ({"driver_keyring": tmp_path / "none.gpg"}, f"setting driver_keyring = '{tmp_path}/none.gpg' cannot be read on this machine: No such file"),
        ({"driver_keyring": other.keyring}, "apt offers none of nvidia-open; apt-get update fails: "),
    ):  # fmt: skip
        said = deploy(node, "-y", **of(**changes))
        assert said.status != 0
        (told,) = refusals(said.output)
        assert told.startswith(line) or line in told
    assert "NO_PUBKEY" in told or "signed" in told, "another key: apt says why"
    assert apt(node) == before


def test_a_dry_run_shows_what_would_come_and_that_it_ends_there(
    node: Node, of: Callable[..., dict[str, object]]
) -> None:
    before = apt(node)
    dry = deploy(node, "--dry", **of())
    assert dry.status == 0, dry.output
    assert "installs libcuda1 580.95.05-1, nvidia-kernel-open-dkms 580.95.05-1, nvidia-open 580.95.05-1" in dry.output
    assert f"linux-headers-{driver_repository.kernel()}" in dry.output
    assert "no driver is loaded, 580.95.05 is wanted: this run ends with the driver" in dry.output
    assert {name.split(" | ")[0] for name in dry.planned} == {"Driver"}
    assert apt(node) == before


# ---- installed, pinned, held


def test_the_driver_is_installed_and_the_user_asked_to_reboot(node: Node, of: Callable[..., dict[str, object]]) -> None:
    ran = deploy(node, "-y", **of())
    assert ran.status != 0, "the service is not there yet"
    assert "reboot rehearsal, then run again: no driver is loaded, 580.95.05 is wanted" in ran.output
    assert "Traceback" not in ran.output and "Starting operation: System" not in ran.output
    assert versions(node) == {f"{WANTED}-1"}
    assert out(node, "apt-mark showhold").split() == PACKAGES
    assert node.run("ls -d /opt/sglang-pd").returncode != 0


def test_the_same_run_again_changes_nothing_and_asks_again(node: Node, of: Callable[..., dict[str, object]]) -> None:
    before = apt(node)
    ran = deploy(node, "-y", **of())
    assert "reboot rehearsal, then run again" in ran.output and "Success" not in ran.output
    assert apt(node) == before


def test_no_upgrade_moves_it_and_each_guard_alone_would_do(node: Node) -> None:
    """Without all three a newer version of the same repository would come: that is what they guard against."""
    held, pinned = f"apt-mark hold {' '.join(PACKAGES)}", f"mv /root/{Path(PIN).name} {PIN}"
    unheld, unpinned = f"apt-mark unhold {' '.join(PACKAGES)}", f"mv {PIN} /root/"
    listed, unlisted = f"mv /root/{Path(LEFT_OUT).name} {LEFT_OUT}", f"mv {LEFT_OUT} /root/"
    upgraded = "apt-get -s -q dist-upgrade | grep -c '^Inst .*(590' || true"
    assert out(node, upgraded) == "0" and would_upgrade(node) == []

    out(node, unheld)
    assert out(node, upgraded) == "0", "the pin alone"
    out(node, f"{unpinned} && {held}")
    assert out(node, upgraded) == "0", "the hold alone"
    out(node, unheld)
    assert would_upgrade(node) == [], "the list of unattended-upgrades alone"
    out(node, unlisted)
    assert out(node, upgraded) == "3" and would_upgrade(node) == PACKAGES, "nothing is left that keeps it"
    out(node, f"{listed} && {pinned} && {held}")


# ---- the reboot


def test_servers_stop_in_order_then_the_host_reboots_where_that_is_allowed(
    node: Node, of: Callable[..., dict[str, object]]
) -> None:
    names = ("decode", "prefill", "router")
    for name in names:
        node.run(f"cat >/etc/systemd/system/sglang-pd-{name}.service", text=SERVER.format(name=name))
    out(node, "systemctl daemon-reload && systemctl start sglang-pd-decode sglang-pd-prefill sglang-pd-router")
    boot = out(node, "cat /proc/sys/kernel/random/boot_id")
    ran = deploy(node, "-y", **of(allow_reboot=True))
    assert ran.status != 0, "the service is not there yet"
    assert "rebooted, driver 580.95.05 answers: run again, its GPUs can be planned now" in ran.output, ran.output
    assert out(node, "cat /proc/sys/kernel/random/boot_id") != boot
    stopped = out(node, "cat /root/stopped").split()
    assert stopped[0] == "router" and sorted(stopped) == sorted(names)
    assert "580.95.05" in out(node, "cat /proc/driver/nvidia/version")


def test_with_the_driver_loaded_the_run_goes_on_and_the_driver_needs_no_change(
    node: Node, of: Callable[..., dict[str, object]]
) -> None:
    out(node, "rm /etc/systemd/system/sglang-pd-*.service && systemctl daemon-reload")
    out(node, "apt-mark unhold nvidia-open")
    dry = deploy(node, "--dry", **of(allow_reboot=True))
    assert dry.status == 0, dry.output
    assert [name for name in dry.planned if name.startswith("Driver")] == ["Driver | Packages held"]
    assert any(name.startswith("Runtime") for name in dry.planned)
    out(node, "apt-mark hold nvidia-open")
    assert not [name for name in deploy(node, "--dry", **of()).planned if name.startswith("Driver")]


def test_another_version_is_a_setting_also_an_older_one_from_a_repository_that_the_host_knows(node: Node) -> None:
    """Its library replaces the loaded one's at once: only the boot makes them fit again."""
    out(node, f"cp {KEYRING} /usr/share/keyrings/own.gpg && sed s,{KEYRING},/usr/share/keyrings/own.gpg, {SOURCE} >/etc/apt/sources.list.d/own.sources")  # fmt: skip
    older = {"manage_driver": True, "driver_version": OLD}
    ran = deploy(node, "-y", **older)
    assert "reboot rehearsal, then run again: driver 580.95.05 is loaded, 580.82.07 is wanted" in ran.output, ran.output
    assert versions(node) == {f"{OLD}-1"}
    assert out(node, "apt-mark showhold").split() == PACKAGES
    assert "version mismatch" in node.run("nvidia-smi").stdout
    assert out(node, f"ls {SOURCE} {KEYRING} 2>/dev/null || true") == "", "one source is enough"
    node.reboot()
    assert not [name for name in deploy(node, "--dry", **older).planned if name.startswith("Driver")]


def test_a_boot_that_brought_no_driver_is_not_tried_again(node: Node) -> None:
    out(
        node,
        "systemctl mask recorded-driver.service && rm -r /usr/local/share/recorded-hardware/files/proc/driver/nvidia",
    )
    out(node, "rm -r /usr/local/share/recorded-hardware/commands/nvidia-smi /usr/local/sbin/nvidia-smi")
    node.reboot()
    boot = out(node, "cat /proc/sys/kernel/random/boot_id")
    ran = deploy(node, "-y", manage_driver=True, driver_version=OLD, allow_reboot=True)
    (told,) = refusals(ran.output)
    assert told.startswith("no driver is loaded, although 580.82.07 is installed and the host was booted since")
    assert out(node, "cat /proc/sys/kernel/random/boot_id") == boot
