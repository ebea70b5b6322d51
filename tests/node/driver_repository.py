"""A small signed package repository with a driver in it: real packages, whose contents are recorded answers.

Its driver is "loaded" at boot only: until then the old module's answers stay, and a library that was replaced under it
says so, as NVIDIA's does.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.node import hardware
from tests.node.node import Node
from tests.node.process import command

RECORDED = "580.95.05"  # the version that the recorded host's answers name
WHERE = "/srv/driver-repository"  # on the node
STAGED = Path("usr/share/recorded-driver")
ON_THE_NODE = f"/{hardware.RECORDED}"

LOAD = f"""#!/bin/sh
# What a boot does: the module of the installed version answers from now on.
set -eu
rm -rf {ON_THE_NODE}/commands/nvidia-smi {ON_THE_NODE}/files/proc/driver/nvidia
cp -a /{STAGED}/commands/. {ON_THE_NODE}/commands
cp -a /{STAGED}/files/. {ON_THE_NODE}/files
cp -a {ON_THE_NODE}/replay/lspci /{hardware.EARLY_ON_PATH}/nvidia-smi
"""
UNIT = f"""[Unit]
DefaultDependencies=no
After=local-fs.target
Before=recorded-hardware.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/{STAGED}/load
"""
# A library replaced under a module of another version.
MISMATCH = f"""#!/bin/sh
set -eu
[ -e /proc/driver/nvidia/version ] || exit 0
grep -q ' VERSION ' /proc/driver/nvidia/version && exit 0
rm -rf {ON_THE_NODE}/commands/nvidia-smi
mkdir -p {ON_THE_NODE}/commands/nvidia-smi/anything
cd {ON_THE_NODE}/commands/nvidia-smi/anything
echo '*' >args
echo 18 >rc
echo 'Failed to initialize NVML: Driver/library version mismatch' >stdout
"""


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    depends: str = ""
    files: Path | None = None  # a tree
    postinst: str = ""


class Repository:
    """Made below a folder of this machine, then copied to a node. `keyring` is the public half of its key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._keys = folder / "repository", folder / "keys"
        self.keyring = folder / "driver.gpg"
        self.folder.mkdir(parents=True)
        self._keys.mkdir(mode=0o700)
        self._gpg("--passphrase", "", "--quick-generate-key", "driver@test.invalid", "ed25519", "sign", "never")
        self._gpg("--output", self.keyring, "--export")

    def close(self) -> None:
        command("gpgconf", "--homedir", self._keys, "--kill", "all")

    def add(self, packages: Iterable[Package]) -> None:
        """Build these packages, write the index anew and sign it."""
        for package in packages:
            tree = self.folder.parent / f"{package.name}_{package.version}"
            shutil.copytree(package.files, tree, symlinks=True) if package.files else tree.mkdir()
            (tree / "DEBIAN").mkdir()
            fields = {"Package": package.name, "Version": package.version, "Architecture": "amd64"}
            fields |= {"Maintainer": "Tests <tests@test.invalid>", "Description": "recorded answers, no driver"}
            fields |= {"Depends": package.depends} if package.depends else {}
            (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
            if package.postinst:
                script = tree / "DEBIAN/postinst"
                script.write_text(package.postinst)
                script.chmod(0o755)
            command("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, self.folder)
        index = []
        for deb in sorted(self.folder.glob("*.deb")):
            content = deb.read_bytes()
            control = command("dpkg-deb", "--field", deb).stdout.strip()
            digest = hashlib.sha256(content).hexdigest()
            index.append(f"{control}\nFilename: ./{deb.name}\nSize: {len(content)}\nSHA256: {digest}\n\n")
        text = "".join(index).encode()
        (self.folder / "Packages").write_bytes(text)
        (self.folder / "Release").write_text(
            f"Origin: Tests\nLabel: driver\nDate: {command('date', '-Ru').stdout.strip()}\n"
            f"SHA256:\n {hashlib.sha256(text).hexdigest()} {len(text)} Packages\n"
        )
        (self.folder / "InRelease").unlink(missing_ok=True)
        self._gpg("--output", self.folder / "InRelease", "--clearsign", self.folder / "Release")

    def put(self, node: Node) -> None:
        """Copy it to a node, to where `WHERE` says."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(self.folder, arcname=".")
        ran = node.run(
            f"rm -rf {WHERE} && mkdir -p {WHERE} && base64 -d | tar -x --no-same-owner -C {WHERE}",
            base64.b64encode(packed.getvalue()).decode(),
        )
        assert ran.returncode == 0, ran.stderr

    def _gpg(self, *arguments: str | Path) -> None:
        command("gpg", "--homedir", self._keys, "--batch", "--quiet", *arguments)


def driver(version: str, folder: Path) -> list[Package]:
    """The packages of one version, with the dependencies among each other that the vendor's have."""
    revision = f"{version}-1"
    module, library = folder / f"module-{version}", folder / f"library-{version}"
    recorded = folder / f"recorded-{version}"
    hardware.write("rtx-pro-6000-x8", recorded)
    staged = module / STAGED
    for part in ("commands/nvidia-smi", "files/proc/driver/nvidia"):
        shutil.copytree(recorded / hardware.RECORDED / part, staged / part)
        for file in (staged / part).rglob("*"):
            if file.is_file() and RECORDED.encode() in (content := file.read_bytes()):
                file.write_bytes(content.replace(RECORDED.encode(), version.encode()))
    (staged / "load").write_text(LOAD)
    (staged / "load").chmod(0o755)
    units = module / "usr/lib/systemd/system"
    (units / "sysinit.target.wants").mkdir(parents=True)
    (units / "recorded-driver.service").write_text(UNIT)
    (units / "sysinit.target.wants/recorded-driver.service").symlink_to("../recorded-driver.service")
    library.mkdir()
    together = f"nvidia-kernel-open-dkms (= {revision}), libcuda1 (= {revision})"
    return [
        Package("nvidia-open", revision, together),
        Package("nvidia-kernel-open-dkms", revision, files=module),
        Package("libcuda1", revision, files=library, postinst=MISMATCH.replace("VERSION", version)),
    ]


def headers(release: str, folder: Path) -> Package:
    """Headers for a kernel: the folder that DKMS builds against."""
    tree = folder / "headers"
    (tree / f"usr/lib/modules/{release}/build").mkdir(parents=True)
    return Package(f"linux-headers-{release}", "1", files=tree)


def kernel() -> str:
    """The kernel that nodes run: this machine's."""
    return os.uname().release
