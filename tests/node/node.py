"""A simulated bare host: a tree of its own, booted under systemd-nspawn with a network of its own, reached by ssh."""

import contextlib
import json
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

from tests.node import debian, hardware, machine, network, package_sources
from tests.node.disk import Disk
from tests.node.network import Network
from tests.node.process import NodeError, command, interrupts_deferred, locked, remove_tree

REPOSITORY = Path(__file__).resolve().parents[2]
STORE = REPOSITORY / ".node"
DEFAULT_HARDWARE = "rtx-pro-6000-x8"
BOOT_LIMIT = 300.0  # seconds; a provisioned node has booted only once its servers are ready


class Node:
    """A node by its name. Made here or by another process: everything it is, is recorded below .node/nodes/NAME."""

    def __init__(self, name: str, hardware: str = DEFAULT_HARDWARE) -> None:
        """`hardware` names the recorded hardware that up() installs."""
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", name):
            raise NodeError(f"{name!r} is no host name: lower-case letters, digits and '-', 32 at most")
        self.name = name
        self.folder = STORE / "nodes" / name
        self.known_hosts = self.folder / "known_hosts"  # the user's: a rebuild leaves the old key in it
        self.ssh_key = STORE / "ssh_key"
        self._host_key = self.folder / "host_key"  # ours: always the key of the node that is up
        self._pid_file = self.folder / "pid"
        self._image = STORE / "images" / name  # of a disk of limited size
        self.wanted_hardware = hardware

    # -- what is recorded

    def _record(self) -> dict[str, str | int]:
        try:
            record: dict[str, str | int] = json.loads((self.folder / "node.json").read_text())
        except FileNotFoundError:
            raise NodeError(f"there is no node {self.name}: python -m tests.node up --name {self.name}") from None
        return record

    def _save(self, **record: str | int) -> None:
        part = self.folder / "node.json.part"
        part.write_text(json.dumps(record) + "\n")
        part.rename(self.folder / "node.json")

    @property
    def network(self) -> Network:
        return Network(int(self._record()["number"]))

    @property
    def address(self) -> str:
        return self.network.address

    @property
    def hardware_name(self) -> str:
        return str(self._record()["hardware"])

    @property
    def _disk(self) -> Disk:
        names = str(self._record()["base"]).split(":")
        return Disk(tuple(STORE / name for name in names), self.folder)

    @property
    def is_up(self) -> bool:
        return machine.pid(self._pid_file) is not None

    @property
    def inside(self) -> Path:
        """The running node's root folder as its own processes see it, what it mounted included."""
        return Path(f"/proc/{machine.init(self._pid_file)}/root")

    # -- life

    def up(self, kept: str = "", disk_gb: int = 0) -> None:
        """Make the node and boot it. An interrupt or error at any point takes away what was made.

        kept: name of what a node left with keep(): this one begins as that one was, under another name and address.
        disk_gb: a disk of its own of this size, which can be filled; 0: it writes to this machine's.
        """
        debian.require_machine(Path(__file__).with_name("packages.txt"))
        hardware.chain(self.wanted_hardware)
        with self._locked():
            if self.is_up:
                raise NodeError(f"node {self.name} is up already: python -m tests.node down --name {self.name}")
            self._remove()
            release = debian.this_release()
            base = debian.base_tree(release, STORE)
            try:
                self.folder.mkdir(parents=True)
                if disk_gb:
                    self._mount_image(disk_gb)
                with interrupts_deferred():
                    number = network.claim().number
                    bases = f"{kept}:{base.name}" if kept else base.name
                    self._save(number=number, hardware=self.wanted_hardware, base=bases)
                network.set_up(self.network)
                self._make_ssh_key()
                self._fill_disk(release)
                shutil.copyfile(self._host_key, self.known_hosts)
                self._boot(release)
            except BaseException:
                self._remove()
                raise

    def down(self) -> None:
        """Take away everything of the node; nothing happens when there is none."""
        with self._locked():
            self._remove()

    def keep(self, name: str) -> None:
        """Shut the node down in order and keep what is on its disk, for other nodes to begin with; the node is gone."""
        self.run("systemctl poweroff")
        self._wait_ended()
        with self._locked(), interrupts_deferred():
            self._disk.layer.rename(STORE / name)
            self._remove()

    def reboot(self) -> None:
        """Reboot in order, as `systemctl reboot` on the node does, and wait until it is up again."""
        before = self._boot_id()
        self.run("systemctl reboot")
        self._wait(lambda: self._answers() and self._boot_id() not in {before, ""}, "answers ssh after the reboot")
        self._wait_booted()

    def power_cut(self) -> None:
        """The power goes and comes back: every process ends at once, what lay in memory is gone, the disk stays.

        Returns as soon as ssh answers; what starts on boot may still be starting, or have failed.
        """
        with self._locked():
            machine.stop(self._pid_file, self.network.namespace)
            remove_tree(self.folder / "work")  # overlayfs takes no layer twice whose last mount did not end in order
            (self.folder / "work").mkdir()
            self._start()

    def rebuild(self) -> None:
        """Replace the node by a fresh one of the same name, address and hardware: new host key, empty disk."""
        with self._locked():
            release = debian.this_release()
            base = debian.base_tree(release, STORE)
            try:
                with interrupts_deferred():
                    machine.stop(self._pid_file, self.network.namespace)
                    for part in (self._disk.layer, self._disk.root, self.folder / "work"):
                        remove_tree(part)
                    self._save(**{**self._record(), "base": base.name})
                self._fill_disk(release)
                self._boot(release)
            except BaseException:
                self._remove()
                raise

    def hardware(self, name: str) -> None:
        """Put other recorded hardware into the running node."""
        script, archive = hardware.swap(name)
        with interrupts_deferred():
            self._run_checked(script, archive)
            self._save(**{**self._record(), "hardware": name})

    # -- use

    def ssh_command(self, known_hosts: Path | None = None) -> list[str]:
        """The ssh command line that reaches the node as root."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "IdentitiesOnly": "yes",
            "LogLevel": "ERROR",
            "ServerAliveInterval": "5",  # a node that was taken away is noticed
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(known_hosts or self._host_key),
        }
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return ["ssh", "-F", "none", "-i", str(self.ssh_key), *flags, f"root@{self.address}"]

    def run(self, cmd: str, text: str | None = None, timeout: float | None = None) -> CompletedProcess[str]:
        """Run a shell command on the node as root, with `text` on its stdin; the caller reads its exit status."""
        return command(*self.ssh_command(), cmd, check=False, text=text, timeout=timeout)

    def unrecorded(self) -> list[str]:
        """Questions to hardware tools that had no recorded answer since the node was made."""
        journal = f"journalctl --sync && journalctl --quiet --output=cat --identifier={hardware.UNRECORDED}"
        return self._run_checked(journal).splitlines()

    # -- parts

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(STORE / "locks" / self.name, busy=f"another process is at work on node {self.name}"):
            yield

    def _remove(self) -> None:
        with interrupts_deferred():
            if not self.folder.exists():
                return
            if (self.folder / "node.json").exists():
                machine.stop(self._pid_file, self.network.namespace)
                network.tear_down(self.network)
            if self.folder.is_mount():
                command("umount", self.folder)
            self._image.unlink(missing_ok=True)
            remove_tree(self.folder)

    def _mount_image(self, size_gb: int) -> None:
        self._image.parent.mkdir(exist_ok=True)
        with interrupts_deferred(), self._image.open("w") as image:
            image.truncate(size_gb << 30)
            command("mkfs.ext4", "-q", "-m", "0", self._image)
            command("mount", "-o", "loop", self._image, self.folder)

    def _make_ssh_key(self) -> None:
        with locked(STORE / "locks" / "ssh_key"):
            if not self.ssh_key.exists():
                part = self.ssh_key.with_suffix(".part")
                for abandoned in STORE.glob("ssh_key.part*"):
                    abandoned.unlink()
                command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests.node", "-f", part)
                part.with_suffix(".part.pub").rename(self.ssh_key.with_suffix(".pub"))
                part.rename(self.ssh_key)

    def _fill_disk(self, release: debian.Release) -> None:
        """An empty layer over the base, and in it identity, keys, package sources and hardware."""
        disk = self._disk
        disk.make()
        disk.write("/etc/hostname", f"{self.name}\n")
        disk.write("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n::1 localhost\n")
        disk.write("/etc/machine-id", f"{secrets.token_hex(16)}\n", mode=0o444)
        host_key = disk.directory("/etc/ssh") / "ssh_host_ed25519_key"
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", host_key)
        kind, key, _ = host_key.with_suffix(".pub").read_text().split()
        self._host_key.write_text(f"{self.address} {kind} {key}\n")
        disk.directory("/root/.ssh").chmod(0o700)
        disk.write("/root/.ssh/authorized_keys", self.ssh_key.with_suffix(".pub").read_text(), mode=0o600)
        bound = package_sources.take_over(disk, release)
        (self.folder / "bound").write_text("".join(f"{folder}\n" for folder in bound))
        hardware.install(self.hardware_name, disk)

    def _boot(self, release: debian.Release) -> None:
        self._start()
        self._wait_booted()
        self._require_route(*package_sources.mirror_endpoint(release))

    def _start(self) -> None:
        bound = [Path(line) for line in (self.folder / "bound").read_text().splitlines()]
        log = self.folder / "console.log"
        machine.start(self._disk, self.network.namespace, bound, self._pid_file, log)
        self._wait(self._answers, "answers ssh")

    def _wait_booted(self) -> None:
        state = self.run("systemctl is-system-running --wait", timeout=BOOT_LIMIT).stdout.strip()
        if state != "running":
            failed = self.run("systemctl --failed --plain --no-legend").stdout.split("\n")
            units = ", ".join(line.split()[0] for line in failed if line) or "no failed unit"
            raise NodeError(f"node {self.name} booted {state or 'not at all'}: {units}")

    def _wait_ended(self) -> None:
        deadline = time.monotonic() + BOOT_LIMIT
        while self.is_up:
            if time.monotonic() > deadline:
                raise NodeError(f"node {self.name} has not shut down in {BOOT_LIMIT:.0f} s")
            time.sleep(0.05)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + BOOT_LIMIT
        while not condition():
            if not self.is_up:
                console = (self.folder / "console.log").read_text(errors="replace").strip().splitlines()
                raise NodeError(f"node {self.name} ended before it {what}: {console[-1] if console else 'no message'}")
            if time.monotonic() > deadline:
                raise NodeError(f"node {self.name} has not come so far in {BOOT_LIMIT:.0f} s that it {what}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def _run_checked(self, cmd: str, text: str | None = None) -> str:
        ran = self.run(cmd, text)
        if ran.returncode != 0:
            raise NodeError(f"node {self.name}: {cmd}: exit {ran.returncode}: {ran.stderr.strip()}")
        return ran.stdout

    def _require_route(self, host: str, port: int) -> None:
        opened = self.run(f"timeout 10 bash -c '</dev/tcp/{host}/{port}'")
        if opened.returncode == 0:
            return
        why = opened.stderr.strip().splitlines()[-1] if opened.stderr.strip() else "no answer in 10 s"
        hint = ""
        if chains := network.dropping_chains():
            hint = f"; this machine's firewall drops forwarded packets ({', '.join(chains)}; docker sets that), allow"
            hint += f" {self.network.link} there: iptables -I FORWARD -i pd-node-+ -j ACCEPT;"
            hint += " iptables -I FORWARD -o pd-node-+ -j ACCEPT"
        raise NodeError(f"node {self.name} cannot reach the package mirror {host}:{port}: {why}{hint}")


def all_nodes() -> list[Node]:
    folder = STORE / "nodes"
    return [Node(path.name) for path in sorted(folder.iterdir())] if folder.is_dir() else []
