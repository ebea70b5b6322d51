"""A package repository of somebody else's than the distribution: its source and its key, as apt reads them."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.plan.errors import PlanError
from tasks.plan.files import WantedFile

KEYRINGS = "/etc/apt/keyrings"
ARMOUR = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
LARGEST_KEYRING = 65536  # bytes; the vendor's has less than 2,000


@dataclass(frozen=True)
class Repository:
    """name: of its settings, driver for driver_repository and driver_keyring."""

    name: str
    what: str  # for people

    @property
    def path(self) -> str:
        return f"/etc/apt/sources.list.d/sglang-pd-{self.name}.sources"

    @property
    def keyrings(self) -> tuple[str, str]:
        """By the end of the name apt tells the format."""
        stem = f"{KEYRINGS}/sglang-pd-{self.name}"
        return f"{stem}.gpg", f"{stem}.asc"

    def keyring(self, content: bytes, name: str) -> WantedFile:
        """A public key as a file for apt. Raises PlanError for anything else."""
        armoured = content.lstrip().startswith(ARMOUR)
        packet = content[:1] and content[0] in (0x98, 0x99, 0x9A, 0xC6)  # OpenPGP: a public key comes first
        if not armoured and not packet:
            raise PlanError(
                f"setting {self.name}_keyring = {name!r} is not an OpenPGP public key: name the key file that the "
                "repository offers (.asc or .gpg)"
            )
        if len(content) > LARGEST_KEYRING:
            raise PlanError(
                f"setting {self.name}_keyring = {name!r} has {len(content)} bytes, more than {LARGEST_KEYRING}: name a "
                "file that holds the key of this repository alone"
            )
        return WantedFile(self.keyrings[armoured], content)

    def source(self, repository: str, keyring: str) -> WantedFile:
        """The repository as apt's sources name it. keyring: a path on the host."""
        uri, suite, *components = repository.split()
        lines = [f"# written by sglang-pd-playbook: {self.what}", "Types: deb", f"URIs: {uri}", f"Suites: {suite}"]
        lines += [f"Components: {' '.join(components)}"] if components else []
        return WantedFile(self.path, ("\n".join([*lines, f"Signed-By: {keyring}"]) + "\n").encode())


DRIVER = Repository("driver", "the NVIDIA driver")
GRAFANA = Repository("grafana", "Grafana")
DCGM = Repository("dcgm", "DCGM and its exporter")
