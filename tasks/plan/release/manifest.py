"""A release: versions that fit together, as data, and the identity of one build of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tasks.plan.errors import nearest
from tasks.plan.release.patches import Patch, patch_list

# Driver branch -> newest CUDA that it serves (CUDA release notes, toolkit driver versions).
CUDA_OF_DRIVER = {
    525: "12.0", 530: "12.1", 535: "12.2", 545: "12.3", 550: "12.4", 555: "12.5",
    560: "12.6", 565: "12.7", 570: "12.8", 575: "12.9", 580: "13.0", 590: "13.1", 595: "13.2",
}  # fmt: skip


# Setting that a release serves or not -> the first SGLang that does: NextN drafts on compute capability 12.0 have a MoE
# kernel since 0.5.16 (before, they were routed to one for 10.0 only); the variable is read since 0.5.21.
SERVED_SINCE = {"speculative": "0.5.16", "pcie_ipc_allreduce": "0.5.21", "kv_checksum": "0.5.21"}

RouterPackage = Literal["sglang-router", "smg"]


class Spelling(BaseModel):
    """How this release spells what settings ask for; an empty list means that nothing has to be passed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decode_graph_max_batch: list[str]
    prefill_graph_off: list[str]


class Manifest(BaseModel):
    """files/locks/RELEASE/manifest.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str
    device: Literal["cuda", "cpu"]
    sglang: str
    torch: str
    cuda: str | None
    packages: dict[str, str]
    ucx: str
    routers: dict[RouterPackage, str]  # version of each that has locks
    python: list[str]
    glibc: str
    driver_minimum: int | None
    compute_capabilities: list[str]
    patches: list[str]
    # generators of kernels that every server compiles, see pd-jit; {head}, {key_bytes} and {value_bytes} stand for
    # numbers of the model, where it keeps keys and values in bfloat16
    jit: list[str]
    system_packages: list[str]
    spelling: Spelling
    renamed: dict[str, str]  # options of the releases before it -> what they are called now
    removed: list[str]  # options of the releases before it that have gone
    serves: list[
        Literal["speculative", "pcie_ipc_allreduce", "kv_checksum"]
    ]  # settings, off by default, that it can serve
    chunked_prefill_maximum: int | None
    indexer_walks_whole_context: bool
    notes: list[str]
    arguments: list[str] = []  # of every server, whatever the model
    decode_arguments: list[str] = []  # of decode servers besides
    environment: dict[str, str] = {}  # of every server
    no_lock: dict[str, str] = {}  # Python that a supported system carries -> why there is no lock for it
    page_size: int | None = None  # tokens; the only size of a KV page that it can serve; None: what the model wants


@dataclass(frozen=True)
class Environment:
    """One Python environment of a host, as its interpreter tells it."""

    python: str  # path of the interpreter, below a folder bin
    version: str  # "3.12"
    site_packages: str | None  # folder that holds sglang
    cuda: str | None  # that torch is built for
    packages: dict[str, str]  # version by normalised name


@dataclass(frozen=True)
class Existing:
    """What others installed, in the place of a release that is built here."""

    paths: tuple[str, ...]  # folders that PYTHONPATH adds
    servers: Environment
    router: Environment


@dataclass(frozen=True)
class Release:
    """A manifest with the lock for one Python and the patches that it carries, or with what is there already."""

    manifest: Manifest
    python: str
    lock: str  # text of the server environment's lock
    router_lock: str  # text of the router environment's lock
    patches: tuple[Patch, ...]
    router: RouterPackage = "sglang-router"  # that router_lock installs
    existing: Existing | None = None  # then there are no locks, and nothing is built

    @property
    def lock_sha256(self) -> str:
        return hashlib.sha256((self.lock + "\0" + self.router_lock).encode()).hexdigest()

    @property
    def id(self) -> str:
        """NAME-pyVERSION-HASH: the same locks, patches and Python give the same id; so does the same environment."""
        if self.existing:
            told = json.dumps(asdict(self.existing), sort_keys=True)
            return f"{self.manifest.name}-existing-{hashlib.sha256(told.encode()).hexdigest()[:10]}"
        digest = hashlib.sha256(f"{self.lock_sha256}\0{self.python}".encode())
        for patch in sorted(self.patches, key=lambda p: p.name):
            digest.update(f"\0{patch.name}\0{patch.sha256}".encode())
        return f"{self.manifest.name}-py{self.python}-{digest.hexdigest()[:10]}"

    def interpreter(self, environment: str) -> str:
        """The Python of "env" or "router", relative to the release's folder."""
        if self.existing is None:
            return f"{environment}/bin/python"
        part = self.existing.servers if environment == "env" else self.existing.router
        return f"{environment}/bin/{part.python.rpartition('/')[2]}"

    @property
    def folders(self) -> dict[str, str]:
        """ "env" and "router" -> folder of an environment that is there already; {} where they are built."""
        if self.existing is None:
            return {}
        parts = {"env": self.existing.servers, "router": self.existing.router}
        return {name: part.python.rpartition("/bin/")[0] or "/" for name, part in parts.items()}

    def patch_list(self, *, contents: bool = True) -> bytes:
        """The release's patches as pd-patch reads them; b"" where there are none. contents: as for patch_list."""
        return patch_list(self.patches, self.manifest.sglang, contents=contents) if self.patches else b""


def patch_changes(wanted: Sequence[Patch], serving: str | None) -> list[str]:
    """What a switch of releases does to patches, a line each. serving: text of the serving one's release.json."""
    try:
        now: dict[str, str] = dict(json.loads(serving or "{}").get("patches", {}))
    except (ValueError, AttributeError, TypeError):
        now = {}
    lines = []
    for patch in wanted:
        if patch.name not in now:
            lines.append(f"patch {patch.name}: placed ({patch.summary})")
        elif now[patch.name] != patch.sha256:
            lines.append(f"patch {patch.name}: another version placed ({patch.summary})")
    names = {patch.name for patch in wanted}
    return lines + [f"patch {name}: taken out, SGLang's own is back" for name in now if name not in names]


def damage(part: Mapping[str, Any] | None) -> list[str]:
    """What `pd-env check` found wrong in one environment, a line each."""
    if part is None:
        return ["its check gave no answer"]
    if part.get("whole"):
        return []
    packages, files = part.get("packages", {}), part.get("files", {})
    lines = [
        f"package {entry['name']} is {entry['found']}, the lock says {entry['wanted']}"
        for entry in packages.get("version", [])
    ]
    lines += [f"package {name} is {kind}" for kind in ("missing", "extra") for name in packages.get(kind, [])]
    lines += [f"file {path} is {kind}" for kind in ("missing", "changed", "extra") for path in files.get(kind, [])]
    return lines or [str(part.get("reason", "it differs from its record"))]


def checked(report: Mapping[str, Any]) -> list[str]:
    """What `pd-env probe` and `probe-router` say, in lines: how many passed, what was skipped, what failed and how."""
    checks = report["checks"]
    passed = [entry for entry in checks if entry["ok"] and not entry["skipped"]]
    lines = [f"passed: {', '.join(entry['name'] for entry in passed)}"] if passed else []
    lines += [f"skipped: {entry['name']}: {entry['reason']}" for entry in checks if entry["skipped"]]
    lines += [f"failed: {entry['name']}: {entry['reason']}" for entry in checks if not entry["ok"]]
    return lines + list(report["output"])


def unknown_arguments(release: Manifest, accepted: frozenset[str], arguments: list[str], setting: str) -> list[str]:
    """A line for each long option that the release's server does not know, with what replaced it or the nearest one."""
    lines = []
    for argument in arguments:
        option = argument.split("=", 1)[0]
        if not option.startswith("--"):
            continue
        if option in release.renamed:
            lines.append(
                f"setting {setting}: {option} is not an argument of SGLang {release.sglang} any more: "
                f"use {release.renamed[option]}"
            )
        elif option in release.removed:
            lines.append(
                f"setting {setting}: SGLang {release.sglang} has no argument {option} any more, nor one in "
                "its place: leave it out"
            )
        elif accepted and option not in accepted:
            lines.append(
                f"setting {setting}: SGLang {release.sglang} knows no argument {option}."
                f"{nearest(option, sorted(accepted))}"
            )
    return lines


def driver_cuda(driver: str) -> str:
    """The newest CUDA that a driver such as '570.172.08' serves, as 'CUDA 12.8', or 'no CUDA 12'."""
    branch = int(driver.split(".", 1)[0])
    served = [cuda for minimum, cuda in CUDA_OF_DRIVER.items() if minimum <= branch]
    return f"CUDA {served[-1]}" if served else "no CUDA 12"
