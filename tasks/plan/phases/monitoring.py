"""What watches hosts: Prometheus, node-exporter and alertmanager of the distribution, all on loopback."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tasks.plan.errors import PlanError
from tasks.plan.files import FoundPaths, WantedDirectory, WantedFile, to_json
from tasks.plan.host.answers import METRIC_COLUMNS, ROW_COLUMNS, Answer
from tasks.plan.phases import passed
from tasks.plan.plan import Plan
from tasks.plan.service.paths import (
    ANSWERS,
    FIGURES,
    KV_CACHES,
    LOCK,
    MONITORING,
    RESTORING,
    STAMP,
    STOPPED,
    UNITS,
    WATCHDOG_COUNT,
)
from tasks.plan.service.repository import DCGM, GRAFANA, KEYRINGS
from tasks.plan.service.watching import Watched
from tasks.plan.settings.roles import at, is_loopback
from tasks.plan.settings.settings import Settings

PACKAGES = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")
PROMETHEUS, ALERTMANAGER, NODE_EXPORTER = (f"{package}.service" for package in PACKAGES)
GRAFANA_UNIT, DCGM_UNIT = "grafana-server.service", "nvidia-dcgm-exporter.service"  # of their makers' packages
PACKAGE_OF = {GRAFANA_UNIT: "grafana", DCGM_UNIT: "datacenter-gpu-manager-exporter"}
PACKAGE_OF |= {f"{package}.service": package for package in PACKAGES}
DAEMONS = (PROMETHEUS, ALERTMANAGER, NODE_EXPORTER, GRAFANA_UNIT, DCGM_UNIT)
GRAFANA_FOLDER = f"{MONITORING}/grafana"
COLLECTOR, TIMER = "sglang-pd-metrics.service", "sglang-pd-metrics.timer"
CONFIG, RULES = f"{MONITORING}/prometheus.yml", f"{MONITORING}/alerts.yml"
ALERTS = f"{MONITORING}/alertmanager.yml"
TARGETS = f"{MONITORING}/targets.json"
FIGURES_CONFIG = f"{MONITORING}/metrics.json"
FORWARDER, FORWARDS = "sglang-pd-figures.service", f"{MONITORING}/figures.json"  # for the Prometheus of another host
REPOSITORIES = {GRAFANA_UNIT: GRAFANA, DCGM_UNIT: DCGM}
UNITS_OF_OURS = (*DAEMONS, TIMER, FORWARDER)
EVERY_S = 15  # between two looks at a target, and at the rules
LOOPBACK = "127.0.0.1"
NOBODY = b"route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"  # alerts are shown, and sent to nobody


@dataclass(frozen=True)
class Daemon:
    """A unit of the distribution's, or of a maker's package, started in our way."""

    unit: str
    command: tuple[str, ...]  # a line each; () = as the package starts it
    files: tuple[str, ...]  # that it reads at its start alone
    allowed: tuple[str, ...]  # addresses that it may exchange packets with; () = any
    asks: tuple[str, ...] = ()  # other hosts, besides; a change of them restarts nothing
    environment: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()  # NAME:PATH, of files that root alone may read


def drop_in(unit: str) -> str:
    """Laid over the distribution's unit, and there before it: what the package would start listens nowhere else."""
    return f"{UNITS}/{unit}.d/sglang-pd.conf"


def filter_of(unit: str) -> str:
    """More of its filter: systemd takes that up without a restart."""
    return f"{UNITS}/{unit}.d/sglang-pd-hosts.conf"


def daemons(plan: Plan) -> tuple[Daemon, ...]:
    """Those that this host runs."""
    settings = plan.settings
    node_exporter = Daemon(
        NODE_EXPORTER,
        (
            "/usr/bin/prometheus-node-exporter",
            f"--web.listen-address={LOOPBACK}:{settings.node_exporter_port}",
            f"--collector.textfile.directory={FIGURES}",
        ),
        (),
        ("localhost",),
    )
    dcgm = Daemon(
        DCGM_UNIT,
        (
            "/usr/bin/dcgm-exporter",
            "-f /etc/dcgm-exporter/default-counters.csv",
            f"-a {LOOPBACK}:{settings.dcgm_port}",
        ),
        (),
        ("localhost",),
    )
    of_host = (node_exporter, *([dcgm] if settings.dcgm_repository and settings.serves else []))
    if plan.watching is None or not plan.watching.watched:
        return of_host
    return (
        Daemon(
            PROMETHEUS,
            (
                "/usr/bin/prometheus",
                f"--config.file={CONFIG}",
                "--storage.tsdb.path=/var/lib/prometheus/metrics2",
                f"--storage.tsdb.retention.time={settings.prometheus_retention_days}d",
                f"--storage.tsdb.retention.size={settings.prometheus_retention_gb}GB",
                f"--web.listen-address={LOOPBACK}:{settings.prometheus_port}",
            ),
            (CONFIG, RULES),
            ("localhost", *dict.fromkeys(one for one in plan.watching.watched[0].addresses if not is_loopback(one))),
            plan.watching.beyond,
        ),
        Daemon(
            ALERTMANAGER,
            (
                "/usr/bin/prometheus-alertmanager",
                "--config.file=%d/alertmanager.yml",
                "--storage.path=/var/lib/prometheus/alertmanager",
                f"--web.listen-address={LOOPBACK}:{settings.alertmanager_port}",
                "--cluster.listen-address=",
            ),
            (ALERTS,),
            ("localhost",) if plan.alerts is None else (),
            credentials=(f"alertmanager.yml:{ALERTS}",),
        ),
        *of_host,
        *([_grafana(settings)] if settings.grafana_repository else []),
    )


def _grafana(settings: Settings) -> Daemon:
    """Whoever reaches its port looks; nobody is its administrator, and it asks nobody but Prometheus."""
    options = {
        "SERVER_HTTP_ADDR": LOOPBACK, "SERVER_HTTP_PORT": str(settings.grafana_port),
        "PATHS_PROVISIONING": GRAFANA_FOLDER, "AUTH_ANONYMOUS_ENABLED": "true", "AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true", "ANALYTICS_REPORTING_ENABLED": "false",
        "ANALYTICS_CHECK_FOR_UPDATES": "false", "ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    }  # fmt: skip
    return Daemon(
        GRAFANA_UNIT,
        (),
        tuple(file.path for file in grafana(settings)),
        ("localhost",),
        environment=tuple(f"GF_{name}={value}" for name, value in options.items()),
    )


def grafana(settings: Settings, dashboards: Mapping[str, bytes] = MappingProxyType({})) -> tuple[WantedFile, ...]:
    """Its data source and where its dashboards lie. dashboards: by file name, as they are imported elsewhere."""
    source = {"name": "Prometheus", "uid": "sglang-pd", "type": "prometheus", "access": "proxy", "isDefault": True}
    provider = {"name": "sglang-pd", "type": "file", "options": {"path": f"{GRAFANA_FOLDER}/boards"}}
    return (
        WantedFile(
            f"{GRAFANA_FOLDER}/datasources/sglang-pd.yaml",
            to_json({"apiVersion": 1, "datasources": [{**source, "url": prometheus(settings)}]}),
        ),
        WantedFile(f"{GRAFANA_FOLDER}/dashboards/sglang-pd.yaml", to_json({"apiVersion": 1, "providers": [provider]})),
        *(
            WantedFile(f"{GRAFANA_FOLDER}/boards/{name}", _provisioned(content), gist="a dashboard")
            for name, content in dashboards.items()
        ),
    )


def _provisioned(dashboard: bytes) -> bytes:
    """Grafana asks for a data source where somebody imports a dashboard, not where it finds one in a folder."""
    found = json.loads(dashboard)
    (source,) = found.pop("__inputs")
    return json.dumps(found, indent=1).replace(f"${{{source['name']}}}", "sglang-pd").encode() + b"\n"


def repositories(plan: Plan) -> tuple[WantedFile, ...]:
    """Sources and keys of the makers' packages that this host gets. apt takes no repository twice under two keys:
    NVIDIA's, which may be there for the driver, has DCGM too."""
    units = {daemon.unit for daemon in daemons(plan)}
    of_driver = plan.settings.driver_repository if plan.settings.manage_driver else None
    found: list[WantedFile] = []
    for unit, repository in REPOSITORIES.items():
        uri, key = getattr(plan.settings, f"{repository.name}_repository"), plan.keyrings.get(repository.name)
        if unit in units and uri and key and uri != of_driver:
            found += [key, repository.source(uri, key.path)]
    return tuple(found)


def keeps(plan: Plan) -> bool:
    """Whether this host has a Prometheus."""
    return bool(plan.watching and plan.watching.watched)


def packages(plan: Plan) -> list[str]:
    return packages_of(daemon.unit for daemon in daemons(plan))


def packages_of(units: Iterable[str] = DAEMONS) -> list[str]:
    return [PACKAGE_OF[unit] for unit in units if unit in PACKAGE_OF]


def directories(plan: Plan) -> tuple[WantedDirectory, ...]:
    return (
        WantedDirectory(MONITORING),
        WantedDirectory(FIGURES),
        *(
            WantedDirectory(f"{GRAFANA_FOLDER}{below}")
            for below in ("", "/datasources", "/dashboards", "/boards")
            if GRAFANA_UNIT in {daemon.unit for daemon in daemons(plan)}
        ),
        *([WantedDirectory(KEYRINGS)] if repositories(plan) else []),
        *(WantedDirectory(drop_in(daemon.unit).rpartition("/")[0]) for daemon in daemons(plan)),
    )


def belongings(units: Sequence[str] = UNITS_OF_OURS) -> list[str]:
    """Every file and folder of ours, or those of some units; what else lies beside the drop-ins is somebody's."""
    of_unit = {
        PROMETHEUS: [filter_of(PROMETHEUS), CONFIG, RULES, TARGETS],
        ALERTMANAGER: [ALERTS],
        GRAFANA_UNIT: [GRAFANA_FOLDER],
        TIMER: [f"{UNITS}/{COLLECTOR}", f"{UNITS}/{TIMER}", FIGURES, MONITORING],
        FORWARDER: [f"{UNITS}/{FORWARDER}", FORWARDS],
    }
    of_maker = {unit: [one.path, *one.keyrings] for unit, one in REPOSITORIES.items()}
    return [
        path
        for unit in units
        for path in (*of_unit.get(unit, []), *of_maker.get(unit, []), *([drop_in(unit)] if unit in DAEMONS else []))
    ]


def there(found: FoundPaths, units: Sequence[str] = UNITS_OF_OURS) -> tuple[str, ...]:
    """Those units of which something of ours is on the host: a Grafana of somebody else's is not. found: belongings."""
    return tuple(unit for unit in units if any(found[path].kind != "absent" for path in belongings([unit])))


def not_here(plan: Plan) -> tuple[str, ...]:
    """Units that a host with another part in the watching may still have."""
    wanted = {daemon.unit for daemon in daemons(plan)} | {TIMER} | ({FORWARDER} if not keeps(plan) else set())
    return tuple(unit for unit in UNITS_OF_OURS if unit not in wanted)


def targets(plan: Plan) -> WantedFile:
    """Whom Prometheus asks; it reads this again by itself when it changes."""
    found = [
        {
            "targets": [at(watched.address, watched.settings.figures_port) if watched.address else source.address],
            "labels": {
                "job": source.job, "instance": source.name, **({"role": source.role} if source.role else {}),
                "host": watched.host, "service": watched.service,
                **({"__metrics_path__": f"/{source.name}"} if watched.address else {}),
            },
        }
        for watched in (plan.watching.watched if plan.watching else ())
        for source in watched.sources
    ]  # fmt: skip
    return WantedFile(TARGETS, to_json(found))


def forwards(plan: Plan) -> WantedFile:
    """What pd-metrics serves to the Prometheus of another host: figures, and nothing else of a server."""
    assert plan.watching
    own = Watched(plan.watching.address, plan.settings)
    config = {
        "address": plan.watching.address,
        "port": plan.settings.figures_port,
        "sources": {f"/{source.name}": f"http://{source.address}/metrics" for source in own.sources},
    }
    return WantedFile(FORWARDS, to_json(config), gist="figures for the Prometheus of another host")


def alertmanager(plan: Plan) -> WantedFile:
    """For root alone: it may hold passwords. systemd hands it to the daemon."""
    salt = secrets.token_hex(16)
    return WantedFile(ALERTS, NOBODY if plan.alerts is None else plan.alerts, "600", salt=salt)


def figures(plan: Plan) -> WantedFile:
    """What pd-metrics is told."""
    smi, form = "nvidia-smi", "--format=csv,noheader,nounits"
    has_gpus = bool(plan.hardware.gpus)
    config = {
        "folder": FIGURES,
        "stamp": STAMP,
        "current": plan.paths.current,
        "proof": plan.paths.measured,
        "bench": plan.paths.benched,
        "user": plan.settings.service_user,
        "kept": KV_CACHES,
        "stopped": STOPPED,
        "locks": [LOCK, RESTORING],
        "answers": ANSWERS if plan.router else None,
        "watchdog": WATCHDOG_COUNT if plan.settings.watchdog else None,
        "certificate": plan.paths.executed_tls if plan.router and plan.router.scheme == "https" else None,
        "servers": {
            instance.name: {
                "url": instance.url if instance.is_worker else "",
                "unit": instance.unit,
                "run": plan.paths.run(instance.name),
                "script": plan.paths.script(instance.name),
                "environment": plan.paths.environment(instance.name),
                "file": plan.paths.unit(instance.name),
            }
            for instance in plan.instances
        },
        "passed": passed.words(plan.paths, "check"),
        "gpus": [smi, f"--query-gpu={METRIC_COLUMNS}", form] if has_gpus else None,
        "rows": [smi, f"--query-remapped-rows={ROW_COLUMNS}", form] if has_gpus else None,
        "report": [smi, "-q"] if has_gpus else None,
    }
    return WantedFile(FIGURES_CONFIG, to_json(config), gist="names what is measured of this host")


def check_words(plan: Plan) -> list[str]:
    """pd-metrics' command line: does Prometheus see everything of this host?"""
    assert plan.watching
    name = plan.watching.watched[0].host
    return [f"{plan.paths.bin}/pd-metrics", "check", "--prometheus", prometheus(plan.settings), "--host", name]


def prometheus(settings: Settings) -> str:
    """Its address on its host."""
    return f"http://{LOOPBACK}:{settings.prometheus_port}"


@dataclass(frozen=True)
class Found:
    """A unit as systemd has it."""

    active: bool
    enabled: bool
    stale: bool  # its files have changed since systemd read them
    since: int  # seconds since 1970; 0 where it does not run
    newest: int  # of the files that it reads at its start, 0 where there are none


def why_restart(found: Found, written: bool) -> str:
    """Why a daemon must be (re)started; "" where it runs what is wanted. written: this run writes one of its files."""
    if not found.active:
        return "starts"
    return "restarts, its files were changed" if written or found.stale or found.newest > found.since else ""


def read(sections: Mapping[str, Answer], units: Iterable[str]) -> dict[str, Found]:
    """From the fact Monitoring, by unit. Raises PlanError for a cut answer."""
    found = {}
    for unit in units:
        if unit not in sections:
            raise PlanError(f"systemd's answer is cut short: it holds no {unit!r}; run again")
        said = dict(line.partition("=")[::2] for line in sections[unit].text.splitlines())
        since, newest = (said.get(name, "0").lstrip("@") for name in ("ActiveEnterTimestamp", "newest"))
        found[unit] = Found(
            said.get("ActiveState") == "active",
            said.get("UnitFileState") == "enabled",
            said.get("NeedDaemonReload") == "yes",
            int(since) if since.isdecimal() else 0,
            int(newest) if newest.isdecimal() else 0,
        )
    return found


def then(path: str) -> str | None:
    """The command that follows on a file's being written; None where none does."""
    if path.startswith(f"{UNITS}/"):
        return "systemctl daemon-reload"
    if path in {one.path for one in REPOSITORIES.values()}:  # of a repository that is known under another key
        return f"apt-get indextargets >/dev/null || {{ rm -f {path}; exit 1; }}"
    return None


def timer_path() -> str:
    return f"{UNITS}/{TIMER}"
