"""The whole plan for one host: what the phases read, decided before the first operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tasks.plan.files import WantedFile
from tasks.plan.findings import Finding
from tasks.plan.host.answers import Hardware, System
from tasks.plan.model import kept, memory
from tasks.plan.model.derive import is_brought
from tasks.plan.model.memory import Fit
from tasks.plan.model.profile import ModelProfile
from tasks.plan.release.history import NOTHING, History, Pin
from tasks.plan.release.manifest import Release
from tasks.plan.service.instances import Instance, Remote, Served, kv_pairs
from tasks.plan.service.paths import DEVICES, TARGET, WATCHDOG, Paths
from tasks.plan.service.restarts import REPAIRED, Fingerprint, seen
from tasks.plan.service.strays import Stray
from tasks.plan.service.watching import Watching
from tasks.plan.settings.place import PARTS
from tasks.plan.settings.settings import Settings

# SGLang logs each batch. A health check is one token that no cache holds; a prompt of a client has more.
IDLE_BATCH = "~Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0,"


@dataclass(frozen=True)
class Plan:
    """Settings, release, model, host and the servers derived from them."""

    settings: Settings
    release: Release
    profile: ModelProfile
    paths: Paths
    system: System
    hardware: Hardware
    instances: tuple[Instance, ...]  # the workers that this host has of the layout, then the router, where it has one
    uv_requirement: str  # text of a lock
    api_key: str | None = None  # from the environment of whoever runs the deploy
    api_key_before: str | None = None  # that clients may still send
    tls: bytes | None = None  # certificate and key, where they come from the machine that runs pyinfra
    keyrings: Mapping[str, WantedFile] = field(default_factory=dict)  # of makers' repositories, by the settings' name
    alerts: bytes | None = None  # alertmanager's configuration, where it is the user's
    findings: tuple[Finding, ...] = ()  # of every check, healthy ones too
    arguments: tuple[str, ...] = ()  # long options that the release's server knows, sorted
    history: History = NOTHING
    pin: Pin | None = None  # that holds the host on this release
    asked: Release | None = None  # that the settings ask for, where a pin holds the host on another
    kept: kept.Kept = kept.NOTHING  # revisions of a model that is fetched
    strays: tuple[Stray, ...] = ()  # that this run ends
    built: Mapping[str, Any] | None = None  # the release as the fact ReleaseState found it, None where it is not there
    derived: tuple[str, ...] = ()  # fields of the profile that were read from the model's folder
    others: tuple[Remote, ...] = ()  # servers of the service's other hosts
    watching: Watching | None = None  # None without monitoring
    model_told: str = ""  # what was read there, in one line; "" where there was nothing to read

    @property
    def workers(self) -> tuple[Instance, ...]:
        return tuple(instance for instance in self.instances if instance.is_worker)

    @property
    def router(self) -> Instance | None:
        """None where another host of the service has it."""
        return next((instance for instance in self.instances if not instance.is_worker), None)

    @property
    def served(self) -> tuple[Served, ...]:
        """Every worker of the service, wherever it runs, prefill first."""
        every: tuple[Served, ...] = (*self.workers, *self.others)
        return tuple(sorted(every, key=lambda one: PARTS.index(one.role))) if self.others else every

    @property
    def enough(self) -> dict[str, tuple[int, tuple[Served, ...]]]:
        """By role: how many of its servers the router waits for, and which there are; {} where it waits for all."""
        if self.settings.place.alone:
            return {}
        roles = dict.fromkeys(one.role for one in self.served)
        found = {role: tuple(one for one in self.served if one.role == role) for role in roles}
        return {role: (self.settings.minimum(role), servers) for role, servers in found.items()}

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
    def open_files(self) -> int:
        """What units may open: as the setting says, or as many as this host can give."""
        most = self.system.sysctls.get("fs.nr_open") or ""
        return int(
            min(self.settings.limit_nofile, self.hardware.open_files, float(most if most.isdecimal() else "inf"))
        )

    @property
    def log_filter(self) -> str | None:
        """What systemd keeps out of the journal of a server; None before systemd 253, which cannot."""
        return IDLE_BATCH if self.system.systemd_version >= 253 else None

    @property
    def group(self) -> str:
        """Of the service user; one that is made gets a group of its own name."""
        return self.system.group or self.settings.service_user

    @property
    def on_gpu(self) -> bool:
        """Whether the servers run on GPUs; a release for the CPU rehearses."""
        return self.release.manifest.device == "cuda" and self.settings.serves

    @property
    def devices(self) -> str | None:
        """The unit that makes the device files which servers open; None without GPUs."""
        return DEVICES if self.on_gpu else None

    @property
    def beside(self) -> tuple[str, ...]:
        """Units of ours that run neither a server nor the router."""
        return (*([self.devices] if self.devices else []), *([WATCHDOG] if self.settings.watchdog else []))

    @property
    def patch_notes(self) -> str | None:
        """Through `current`: what pd-patch noted of the release that serves; None where this one carries no patches."""
        if not self.release.patches:
            return None
        return f"{self.paths.current}/env/lib/python{self.release.python}/site-packages/pd_overlay_hook/placed.json"

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
        return is_brought(self.profile.source, self.settings)

    @property
    def brought(self) -> list[str]:
        """Folders that the host holds already, and that servers read."""
        model = [self.paths.model] if self.brings_model and self.settings.serves else []
        return [*model, *self.settings.existing_paths]

    @property
    def brought_pythons(self) -> list[list[str]]:
        """Interpreters that the host holds already, each with the modules that it must find and folders of its path."""
        if self.release.existing is None:
            return []
        parts = [(self.release.existing.servers, "sglang,torch")]
        if self.router:
            parts.append((self.release.existing.router, self.router.package))
        return [[part.python, modules, *self.release.existing.paths] for part, modules in parts]

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together."""
        return self.profile.context(self.settings.context_length)

    @property
    def fits(self) -> dict[str, Fit]:
        """What each server does with the smallest of its cards, by name."""
        size = {gpu.index: gpu.memory_mib for gpu in self.hardware.gpus}
        settings = self.settings
        return {
            worker.name: memory.fit(
                self.profile,
                settings.roles[worker.role],
                min((size.get(gpu, 0) for gpu in worker.gpus), default=0),
                settings.speculative,
            )
            for worker in self.workers
        }

    @property
    def model_revision(self) -> str | None:
        return self.settings.model_revision or self.profile.source.revision

    @property
    def fetches(self) -> list[str]:
        """Folder and name of a model that comes from the hub; [] where none does."""
        wanted = self.settings.serves and self.profile.source.hub and not self.brings_model and self.model_revision
        return [self.paths.models, self.profile.name] if wanted else []

    def gpus_freed_before(self, instance: Instance) -> tuple[int, ...]:
        """GPUs whose memory must be free before a server starts, since it sizes its KV cache by what is free then.

        () without GPUs, and for one decode server of several: prefill holds what its predecessor had.
        """
        if not self.on_gpu:
            return ()
        decodes = {decode.name for _, decode in kv_pairs(self.instances)}
        if len(decodes) > 1 and instance.name in decodes:
            return ()
        return instance.gpus

    @property
    def target(self) -> str:
        return TARGET

    def packages(self, part: str) -> str | None:
        """Hash of the record of an environment, "env" or "router"; None where others made it."""
        if self.release.existing:
            return None
        found = (self.built or {}).get(part)
        return str(found.get("record")) if found and found.get("whole") else REPAIRED

    def fingerprint(
        self, script: WantedFile, environment: WantedFile, unit: WantedFile, secret: bytes | None, part: str
    ) -> Fingerprint:
        """What a server that runs these files leaves behind. part: "env" or "router"."""

        def hashed(file: WantedFile) -> str:
            return sha256(seen(file.content)).hexdigest()

        return Fingerprint(
            hashed(script), hashed(environment), hashed(unit), secret, self.release.id, self.packages(part)
        )
