"""The whole plan for one host: what the phases read, decided before the first operation."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tasks.plan.checks.disk import RELEASE_GB
from tasks.plan.files import WantedDirectory, WantedFile
from tasks.plan.findings import Finding
from tasks.plan.host.answers import Hardware, System
from tasks.plan.host.paths import TARGET, Paths
from tasks.plan.host.topology import number_list, spell_number_list
from tasks.plan.model.profile import ModelProfile
from tasks.plan.release import lock
from tasks.plan.release.history import NOTHING, Description, Kept, Pin
from tasks.plan.release.manifest import Manifest, Release
from tasks.plan.service.instances import Instance, lone_decode
from tasks.plan.service.restarts import Fingerprint
from tasks.plan.settings.settings import Settings

# Counters of the workers' /metrics that grow by one with every answer whose KV cache moved. Decode's own kv_transfer_*
# counters grow with health checks too and prove nothing (measured on SGLang 0.5.20, same in the source of 0.5.23).
TRANSFER_METRICS = {"prefill": "sglang:kv_transfer_latency_ms_count", "decode": "sglang:num_requests_total"}

# What the servers import. Importing it once as root also writes the bytecode that the service user may not write.
IMPORTS = [
    "torch",
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "nixl",
]
GPU_IMPORTS = ["sgl_kernel"]  # its code for the card is chosen, and the driver's library loaded, while it is imported
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KERNEL_SETTINGS = ("net.ipv4.ip_local_reserved_ports", "kernel.numa_balancing")
KERNEL_LIMITS = ("net.ipv4.ip_local_port_range", "fs.nr_open")  # only read


def debian_packages(manifest: Manifest, pythons: Iterable[str]) -> list[str]:
    """Packages for a release with any of these Pythons: headers for Triton, numactl for the binding."""
    of_python = {f"python{version}{end}" for version in pythons for end in ("", "-venv", "-dev")}
    return sorted({"python3", "numactl", *of_python, *manifest.system_packages})


@dataclass(frozen=True)
class KernelSetting:
    """A sysctl: wanted and found in the kernel's own spelling."""

    key: str
    wanted: str
    found: str
    reason: str


@dataclass(frozen=True)
class Plan:
    settings: Settings
    release: Release
    profile: ModelProfile
    paths: Paths
    system: System
    hardware: Hardware
    instances: tuple[Instance, ...]  # the workers of the layout, then the router
    uv_requirement: str  # text of a lock
    api_key: str | None = None  # from the environment of whoever runs the deploy
    findings: tuple[Finding, ...] = ()  # of every check, healthy ones too
    arguments: tuple[str, ...] = ()  # long options that the release's server knows, sorted
    kept: Kept = NOTHING
    pin: Pin | None = None  # that holds the host on this release
    asked: Release | None = None  # that the settings ask for, where a pin holds the host on another

    @property
    def workers(self) -> tuple[Instance, ...]:
        return tuple(instance for instance in self.instances if instance.role != "router")

    @property
    def router(self) -> Instance:
        return next(instance for instance in self.instances if instance.role == "router")

    @property
    def release_directory(self) -> str:
        return f"{self.paths.releases}/{self.release.id}"

    @property
    def units(self) -> dict[str, Any]:
        """What the fact Units is asked."""
        return {
            "units": {instance.unit: self.paths.run(instance.name) for instance in self.instances},
            "target": self.target,
        }

    @property
    def release_file(self) -> str:
        """There when the release is built."""
        return f"{self.release_directory}/release.json"

    @property
    def model_file(self) -> str:
        """There when the model's folder holds a model."""
        return f"{self.paths.model}/config.json"

    @property
    def bindings(self) -> list[str]:
        """The commands that bind the workers, each once."""
        return sorted({" ".join(worker.binding) for worker in self.workers if worker.binding})

    @property
    def judged_variables(self) -> list[str]:
        """Names that the workers' environment sets for SGLang, those left out that a patch reads.

        After a rollback, one of the release that the settings ask for counts too: its switch stays in the settings.
        """
        patches = (*self.release.patches, *(self.asked.patches if self.asked else ()))
        own = {name for patch in patches for name in patch.environment}
        names = {variable.name for worker in self.workers for variable in worker.environment}
        return sorted(name for name in names - own if name.startswith("SGLANG_"))

    @property
    def packages(self) -> tuple[str, ...]:
        """Debian packages: Python with its headers, what JIT compiles with, what binds and watches."""
        return tuple(debian_packages(self.release.manifest, [] if self.release.existing else [self.release.python]))

    @property
    def directories(self) -> tuple[WantedDirectory, ...]:
        user, paths = self.settings.service_user, self.paths
        return (
            WantedDirectory(paths.root),
            WantedDirectory(paths.bin),
            WantedDirectory(paths.locks),
            WantedDirectory(paths.releases),
            WantedDirectory(paths.config, "750", "root", user),
            WantedDirectory(paths.state, "750", user, user),
            WantedDirectory(paths.models, "750", user, user),
            WantedDirectory(paths.cache, "750", user, user),
            WantedDirectory(paths.release_cache(self.release.id), "750", user, user),
        )

    @cached_property
    def kernel_settings(self) -> tuple[KernelSetting, ...]:
        """Those that this kernel has."""
        wanted = []
        reserved = self.system.sysctls.get("net.ipv4.ip_local_reserved_ports")
        if self.settings.reserve_ports and reserved is not None:
            own = {port for instance in self.instances for port, _ in instance.ports}
            wanted.append(
                KernelSetting(
                    "net.ipv4.ip_local_reserved_ports",
                    spell_number_list(number_list(reserved) | own),
                    spell_number_list(number_list(reserved)),
                    "no outgoing connection may take a port that a server listens on after its restart",
                )
            )
        balancing = self.system.sysctls.get("kernel.numa_balancing")
        if self.settings.disable_numa_balancing and balancing is not None:
            wanted.append(
                KernelSetting(
                    "kernel.numa_balancing", "0", balancing, "page migration stalls servers that are bound to a node"
                )
            )
        return tuple(wanted)

    @property
    def lock_files(self) -> tuple[WantedFile, ...]:
        """The locks that this release is built from, kept on the host: repair and checks read them there."""
        return (
            WantedFile(f"{self.paths.locks}/{self.release.id}.txt", self.release.lock.encode()),
            WantedFile(f"{self.paths.locks}/{self.release.id}-router.txt", self.release.router_lock.encode()),
        )

    @property
    def description(self) -> WantedFile:
        """The release as the host keeps it for a rollback."""
        return WantedFile(self.paths.description(self.release.id), Description(self.release, self.arguments).to_json())

    @property
    def pin_file(self) -> WantedFile | None:
        return WantedFile(self.paths.pin, _json(self.pin.model_dump())) if self.pin else None

    @property
    def patches_file(self) -> WantedFile | None:
        """The patches of this release, kept on the host as its locks are; None where it carries none."""
        if not self.release.patches:
            return None
        return WantedFile(f"{self.paths.locks}/{self.release.id}-patches.json", self.release.bundle)

    @property
    def patch_notes(self) -> str | None:
        """Through `current`: what pd-patch noted of the release that serves; None where this one carries no patches."""
        if not self.release.patches:
            return None
        return f"{self.paths.current}/env/lib/python{self.release.python}/site-packages/pd_overlay_hook/placed.json"

    @property
    def uv_lock(self) -> WantedFile:
        return WantedFile(f"{self.paths.locks}/uv.txt", self.uv_requirement.encode())

    @cached_property
    def pins(self) -> tuple[lock.Pin, ...]:
        """Every package that this host installs: of both locks, and uv."""
        return lock.read_all(
            {"lock": self.release.lock, "router's lock": self.release.router_lock, "uv.txt": self.uv_requirement}
        )

    @property
    def uv_metadata(self) -> str:
        """A file that is there when the wanted uv is installed."""
        version = self.uv_requirement.split()[0].partition("==")[2]
        return (
            f"{self.paths.uv_environment}/lib/python{self.release.python}/site-packages/uv-{version}.dist-info/METADATA"
        )

    @property
    def python(self) -> str:
        """The interpreter that the servers run with."""
        return f"{self.release_directory}/{self.release.interpreter('env')}"

    @property
    def site_packages(self) -> str:
        if self.release.existing and self.release.existing.servers.site_packages:
            return self.release.existing.servers.site_packages
        return f"{self.release_directory}/env/lib/python{self.release.python}/site-packages"

    @property
    def brings_model(self) -> bool:
        """Whether the host holds the model already: then it is looked at, never changed."""
        return self.settings.model_dir is not None or self.profile.source.directory is not None

    @property
    def model_revision(self) -> str | None:
        return self.settings.model_revision or self.profile.source.revision

    @property
    def release_checks(self) -> tuple[str, ...]:
        """Commands that a finished release must pass before it becomes current; one that has served passed them."""
        if self.release.id in self.kept.served:
            return ()
        checks = [self._probe, self._router_probe]
        # of an environment that is there already, variables were judged in the preflight: nothing was built since
        if self.release.existing is None and self.judged_variables:
            checks.append(["variables", f"{self.release_directory}/env", *self.judged_variables])
        return tuple(shlex.join([f"{self.paths.bin}/pd-env", *words]) for words in checks)

    @property
    def _probe(self) -> list[str]:
        """pd-env's words for the servers' environment."""
        manifest, existing = self.release.manifest, self.release.existing
        environment = {
            variable.name: variable.value
            for variable in self.workers[0].environment
            if not variable.value.startswith(self.paths.cache)  # caches are the servers' own: the probe runs as root
        }
        expected = {
            "imports": IMPORTS,
            **({"gpu_imports": GPU_IMPORTS} if manifest.device == "cuda" else {}),
            "torch": manifest.torch,
            **({} if self.ordinary_torch else {"cuda": manifest.cuda}),  # a CUDA build serves the CPU too
            "nixl_plugins": ["UCX"],
            "arguments": {worker.name: worker.words for worker in self.workers},
            "environment": environment,
            "folders": [environment["CUDA_HOME"]] if "CUDA_HOME" in environment else [],
            **({"paths": list(existing.paths)} if existing else {}),
        }
        of_existing = ["--python", self.python, "--untouched"] if existing else []
        return ["probe", f"{self.release_directory}/env", *of_existing, "--expect", json.dumps(expected)]

    @property
    def _router_probe(self) -> list[str]:
        """pd-env's words for the router's environment."""
        router, existing, of_existing = self.router, self.release.existing, []
        if existing:
            of_existing = ["--python", f"{self.release_directory}/{router.interpreter}"]
            of_existing += [word for path in existing.paths for word in ("--path", path)]
        words = ["probe-router", f"{self.release_directory}/router", "--module", router.module]
        return [*words, "--arguments", json.dumps(router.words), *of_existing]

    def gpus_freed_before(self, instance: Instance) -> tuple[int, ...]:
        """GPUs whose memory must be free before a server starts, since it sizes its KV cache by what is free then.

        () without GPUs, and for one decode server of several: prefill holds what its predecessor had.
        """
        if self.release.manifest.device != "cuda" or instance.placement is None:
            return ()
        if instance.role == "decode" and not lone_decode(self.instances):
            return ()
        return instance.placement.gpus

    @property
    def jit(self) -> list[str]:
        """The words that compile the servers' kernels ahead, where servers look for them; [] where there are none."""
        if not self.release.manifest.jit:
            return []
        variables = {variable.name: variable.value for variable in self.workers[0].environment}
        variables["PATH"] = f"{self.python.rpartition('/')[0]}:{variables.get('PATH', USUAL_PATH)}"
        return [
            *("env", *(f"{name}={value}" for name, value in variables.items())),
            *(f"{self.paths.bin}/pd-jit", "--python", self.python, *self.release.manifest.jit),
        ]

    @property
    def ordinary_torch(self) -> bool:
        """Whether a CPU release is built with the CUDA build of torch that every package index has."""
        return self.release.manifest.device == "cpu" and "+cpu" not in self.release.lock

    @property
    def build_spec(self) -> WantedFile:
        """What pd-build is told."""
        settings, lock_files = self.settings, self.lock_files
        spec = {
            "id": self.release.id,
            "name": self.release.manifest.name,
            "python": self.release.python,
            "releases": self.paths.releases,
            "uv": f"{self.paths.uv_environment}/bin/uv",
            "cache": self.paths.package_cache,
            "lock": lock_files[0].path,
            "router_lock": lock_files[1].path,
            "uv_lock": self.uv_lock.path,
            "lock_sha256": lock_files[0].sha256,
            "patches": {patch.name: patch.sha256 for patch in self.release.patches},
            "patches_file": self.patches_file.path if self.patches_file else None,
            "wheelhouse": settings.package_wheelhouse,
            "index_url": settings.package_index,
            "extra_index_urls": settings.package_extra_indexes,
            "find_links": settings.package_find_links,
            "certificate": settings.package_certificate,
            "link_mode": None,
            "pd_env": f"{self.paths.bin}/pd-env",
            "pd_patch": f"{self.paths.bin}/pd-patch",
        }
        return WantedFile(f"{self.paths.locks}/{self.release.id}.json", _json(spec))

    @property
    def verify_config(self) -> WantedFile:
        """What pd-verify asks, and of whom."""
        config = {
            "url": self.router.url,
            "api_key_file": self.paths.secret if self.api_key else None,
            "model": self.profile.served_name,
            "limit_s": self.settings.answer_limit,
            "warm_up_limit_s": self.settings.warm_up_limit,
            "golden": [golden.model_dump() for golden in self.profile.golden],
            "metrics": {
                role: [f"{worker.url}/metrics" for worker in self.workers if worker.role == role]
                for role in self.settings.roles
            },
            "transfer_metrics": TRANSFER_METRICS if self.settings.layout == "pd" else {},
        }
        return WantedFile(self.paths.verify, _json(config), "640", "root", self.settings.service_user)

    @property
    def disk_needs(self) -> dict[str, float]:
        """GB that a first install writes, by folder."""
        needs = {self.paths.root: RELEASE_GB[self.release.manifest.device] if self.release.existing is None else 0.0}
        if self.profile.source.hub and not self.brings_model:
            needs[self.paths.state] = self.profile.size_gb * 1.02
        return needs

    @property
    def target(self) -> str:
        return TARGET

    def fingerprint(
        self, script: WantedFile, environment: WantedFile, unit: WantedFile, secret: WantedFile | None
    ) -> Fingerprint:
        """What a server that runs these files leaves behind."""
        return Fingerprint(
            script.sha256, environment.sha256, unit.sha256, secret.sha256 if secret else None, self.release.id
        )


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
