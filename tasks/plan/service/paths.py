"""Every path on a host, computed once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tasks.plan.model.kept import folder_of
from tasks.plan.model.profile import ModelProfile, Stated
from tasks.plan.settings.settings import Settings

RUN = "/run/sglang-pd"
UNITS = "/etc/systemd/system"
SYSCTL = "/etc/sysctl.d/60-sglang-pd.conf"
NEEDRESTART = "/etc/needrestart/conf.d/sglang-pd.conf"
JOURNALD = "/etc/systemd/journald.conf.d/60-sglang-pd.conf"
TARGET = "sglang-pd.target"
LOCK = "/run/sglang-pd-run/lock"  # held while a run of the playbook is on; the pid of what holds it stands in it
RESTORING = "/run/sglang-pd-run/restoring"  # held while a change is taken back, also where the run that asked is gone
RUN_RECORD = "/run/sglang-pd-run/run.json"  # of the run that holds the lock, or held it last
KEPT = "/var/lib/sglang-pd-playbook"  # what outlives a run and a reboot, for root alone
STAMP = f"{KEPT}/stamp.json"  # of the last run that changed something
PASSED = f"{KEPT}/passed.json"  # what the service was started from when it last answered right
STOPPED = f"{KEPT}/stopped.json"  # there from `make stop` until `make start` or the next run: who, and when
ANSWERS = f"{KEPT}/answers.json"  # how the last questions with known answers ended
KV_CACHES = f"{KEPT}/kv-cache.json"  # of each server, as pd-metrics last saw it
MONITORING = "/etc/sglang-pd-monitoring"  # what Prometheus and alertmanager are started from
FIGURES = "/var/lib/sglang-pd-monitoring"  # what node-exporter shows of this host
JIT_UNIT = "sglang-pd-jit.service"  # transient: compiles kernels, beside what comes before servers start
PROBE_UNIT = "sglang-pd-probe.service"  # transient: measures between GPUs, while no server runs
RESUME = "sglang-pd-resume.service"  # transient: brings back what served, where the run that stopped it breaks off
DEVICES = "sglang-pd-devices.service"  # comes before each start of a server on GPUs
BENCH_UNIT = "sglang-pd-bench.service"  # transient: measures the service under load
WATCHDOG = "sglang-pd-watchdog.service"  # asks, and restarts what is at fault
WATCHDOG_RUN = "sglang-pd-watchdog"  # its folder below /run
WATCHDOG_COUNT = f"/run/{WATCHDOG_RUN}/restarts"  # how often it restarted something since it started itself
ROUND_LOCK = f"/run/{WATCHDOG_RUN}/round"  # held by the watchdog while it asks, or by who wants to be alone
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def unit_of(instance: str) -> str:
    return f"sglang-pd-{instance}.service"


def name_of(unit: str) -> str:
    """Of the instance that a unit is for."""
    return unit.removeprefix("sglang-pd-").removesuffix(".service")


def run_of(instance: str) -> str:
    """What a start of a server leaves behind for us to see."""
    return f"{RUN}/{instance}"


@dataclass(frozen=True)
class Paths:
    root: str
    config: str
    state: str
    model: str  # the folder that the servers load
    layout: str

    @classmethod
    def of(cls, settings: Settings, profile: ModelProfile | Stated) -> Paths:
        source = profile.source
        own = settings.model_dir or (source and source.directory)
        revision = settings.model_revision or (source and source.revision)
        fetched = folder_of(profile.name, revision) if revision else profile.name
        bundled = f"{settings.root_dir}/models/{profile.name}" if source and source.bundled else None
        return cls(
            root=settings.root_dir,
            config=settings.config_dir,
            state=settings.state_dir,
            model=own or bundled or f"{settings.state_dir}/models/{fetched}",
            layout=settings.layout,
        )

    @property
    def bin(self) -> str:
        return f"{self.root}/bin"

    @property
    def uv_environment(self) -> str:
        return f"{self.root}/tools/uv"

    @property
    def package_cache(self) -> str:
        return f"{self.root}/cache/uv"

    @property
    def locks(self) -> str:
        return f"{self.root}/locks"

    @property
    def releases(self) -> str:
        return f"{self.root}/releases"

    @property
    def current(self) -> str:
        return f"{self.root}/current"

    @property
    def previous(self) -> str:
        """A link to the release that served before the current one."""
        return f"{self.root}/previous"

    @property
    def pin(self) -> str:
        """There while a rollback holds the host on a release, whatever the settings ask for."""
        return f"{self.config}/pin.json"

    def description(self, release: str) -> str:
        """What a rollback plans with."""
        return f"{self.locks}/{release}.release.json"

    def belongings(self, release: str) -> list[str]:
        """Files beside a release's own folder that only it needs; its cache is the service user's."""
        ends = (".txt", "-router.txt", "-patches.json", ".json", ".release.json")
        return [f"{self.locks}/{release}{end}" for end in ends]

    @property
    def bundled(self) -> str:
        """Models that this checkout carries."""
        return f"{self.root}/models"

    @property
    def models(self) -> str:
        """Those that the service user fetches."""
        return f"{self.state}/models"

    @property
    def cache(self) -> str:
        return f"{self.state}/cache"

    def release_cache(self, release: str) -> str:
        """What the servers of one release compile at run time."""
        return f"{self.cache}/{release}"

    def compiled(self, release: str) -> str:
        """Names what pd-jit compiled ahead for a release."""
        return f"{self.release_cache(release)}/compiled"

    @property
    def verify(self) -> str:
        return f"{self.config}/verify.json"

    @property
    def passed(self) -> str:
        """What pd-passed is told."""
        return f"{self.config}/passed.json"

    @property
    def watchdog(self) -> str:
        """What pd-watchdog is told."""
        return f"{self.config}/watchdog.json"

    @property
    def probe(self) -> str:
        """What pd-probe is told."""
        return f"{self.config}/probe.json"

    @property
    def measured(self) -> str:
        """What pd-probe measured last, kept across reboots, and for each layout: back in it, the proof still holds."""
        return f"{self.state}/probe.json" if self.layout == "pd" else f"{self.state}/probe-{self.layout}.json"

    @property
    def measuring(self) -> str:
        """What it leaves, until that takes the place of what was measured before."""
        return f"{self.measured}.new"

    @property
    def told(self) -> str:
        """Why the proof was stale when a run last said so: the next one says it in the report alone."""
        return f"{self.config}/probe-stale"

    @property
    def bench(self) -> str:
        """What pd-bench is told."""
        return f"{self.config}/bench.json"

    @property
    def benched(self) -> str:
        """What pd-bench measured last."""
        return f"{self.state}/bench.json"

    @property
    def workers(self) -> str:
        """The servers of the service, for a router that finds them in a file."""
        return f"{self.config}/workers.json"

    @property
    def secret(self) -> str:
        """The API key alone; there only when router_api_key_env is set."""
        return f"{self.config}/api-key"

    @property
    def tls(self) -> str:
        """The router's certificate and its key; there only when they come from the machine that runs pyinfra."""
        return f"{self.config}/tls.pem"

    @property
    def executed_tls(self) -> str:
        """The copy that the router was started with, wherever it came from."""
        return f"{self.run('router')}/executed/tls.pem"

    @property
    def earlier_secret(self) -> str:
        """Where the playbook kept the API key until November 2026. Routers of then start from it."""
        return f"{self.config}/api-key.env"

    @property
    def secret_leftovers(self) -> list[str]:
        """Where the API key lies after an interruption, and where an earlier version sent it."""
        drafts = [f"{path}.new" for path in (self.secret, self.earlier_secret)]
        sent = hashlib.sha1(drafts[1].encode(), usedforsecurity=False).hexdigest()
        return [*drafts, f"/tmp/pyinfra-{sent}"]

    def script(self, instance: str) -> str:
        return f"{self.config}/{instance}.sh"

    def environment(self, instance: str) -> str:
        return f"{self.config}/{instance}.env"

    def unit(self, instance: str) -> str:
        return f"{UNITS}/{unit_of(instance)}"

    def files_of(self, unit: str) -> tuple[str, ...]:
        """What one of our units is started from."""
        if unit == WATCHDOG:
            return (f"{UNITS}/{unit}", self.watchdog)
        instance = name_of(unit)
        return (self.unit(instance), self.script(instance), self.environment(instance))

    def run(self, instance: str) -> str:
        return run_of(instance)
