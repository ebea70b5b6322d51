"""Templates of templates/ filled from the plan."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.plan.bench import figures as bench
from tasks.plan.bench import page as bench_page
from tasks.plan.bench.goodput import Limits
from tasks.plan.files import WantedFile
from tasks.plan.phases import confinement
from tasks.plan.phases import monitoring as planned
from tasks.plan.phases.system import kernel_settings
from tasks.plan.phases.watchdog import watchdog_config
from tasks.plan.plan import Plan
from tasks.plan.report import page
from tasks.plan.report import service as service_page
from tasks.plan.report.service import Report
from tasks.plan.service.api_key import written
from tasks.plan.service.instances import Instance, goes_with
from tasks.plan.service.paths import SYSCTL, UNITS, WATCHDOG, WATCHDOG_RUN
from tasks.plan.service.restarts import SYSTEMDS_OWN, Fingerprint
from tasks.plan.service.units import mark
from tasks.support.catalogue import ROOT, alert_rules, dashboard_files

_templates = Environment(
    loader=FileSystemLoader(ROOT / "templates"),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    autoescape=lambda name: bool(name and name.endswith(".html.j2")),
)
_templates.filters["shell"] = shlex.quote


@dataclass(frozen=True)
class InstanceFiles:
    """The files that one instance is started from."""

    script: WantedFile
    environment: WantedFile
    unit: WantedFile
    fingerprint: Fingerprint

    @property
    def all(self) -> tuple[WantedFile, ...]:
        return (self.script, self.environment, self.unit)


def instance_files(plan: Plan, instance: Instance) -> InstanceFiles:
    paths, user, group = plan.paths, plan.settings.service_user, plan.group
    secret, certificate = (None, None) if instance.is_worker else (api_key(plan), tls(plan))
    secrets_of_start = b"".join(file.content for file in (secret, certificate) if file) or None
    values = {
        "instance": instance,
        "paths": paths,
        "settings": plan.settings,
        "user": user,
        "group": group,
        "workers": plan.workers,
        "enough": plan.enough,
        "target": plan.target,
        "script": paths.script(instance.name),
        "environment": paths.environment(instance.name),
        "unit": paths.unit(instance.name),
        "mark": mark(instance.unit),
        "systemds_own": SYSTEMDS_OWN,
        "log_filter": plan.log_filter,
        "run": paths.run(instance.name),
        "secret": secret.path if secret else None,
        "tls": certificate.path if certificate else None,
        "patches": plan.patch_notes,
        "open_files": plan.open_files,
        "decode": goes_with(plan.instances).get(instance.name),
        "gpus": plan.gpus_freed_before(instance),
        "confinement": confinement.of_instance(plan, instance),
        "service": confinement.of_service(plan),
        "devices": plan.devices,
    }
    script = WantedFile(paths.script(instance.name), _render("launch.sh.j2", values), "755", "root", group)
    environment = WantedFile(paths.environment(instance.name), _render("instance.env.j2", values), "640", "root", group)
    kind = "worker" if instance.is_worker else "router"
    unit = WantedFile(paths.unit(instance.name), _render(f"{kind}.service.j2", values))
    fingerprint = plan.fingerprint(script, environment, unit, secrets_of_start, instance.part)
    return InstanceFiles(script, environment, unit, fingerprint)


def api_key(plan: Plan) -> WantedFile | None:
    """The file that holds the key clients must send, where a router asks for one."""
    if plan.api_key is None or plan.router is None:
        return None
    salt = secrets.token_hex(16)
    return WantedFile(
        plan.paths.secret, written(plan.api_key, plan.api_key_before), "640", "root", plan.group, salt=salt
    )


def tls(plan: Plan) -> WantedFile | None:
    """The router's certificate and key, where they come from this machine."""
    if plan.tls is None or plan.router is None:
        return None
    return WantedFile(plan.paths.tls, plan.tls, "640", "root", plan.group, salt=secrets.token_hex(16))


def target(plan: Plan) -> WantedFile:
    return WantedFile(f"{UNITS}/{plan.target}", _render("target.j2", {"instances": plan.instances}))


def devices(plan: Plan) -> list[WantedFile]:
    """The unit that makes the device files which servers open; [] without GPUs."""
    if plan.devices is None:
        return []
    values = {"mark": mark(plan.devices), "paths": plan.paths}
    return [WantedFile(f"{UNITS}/{plan.devices}", _render("devices.service.j2", values))]


def watchdog(plan: Plan) -> list[WantedFile]:
    """The unit that asks the service and restarts what is at fault, and what it is told; [] where none is wanted."""
    if not plan.settings.watchdog:
        return []
    values = {
        "mark": mark(WATCHDOG),
        "paths": plan.paths,
        "folder": WATCHDOG_RUN,
        "target": plan.target,
        "router": plan.router.unit if plan.router else None,
        "confinement": confinement.of_watchdog(plan),
    }
    unit = WantedFile(
        f"{UNITS}/{WATCHDOG}", _render("watchdog.service.j2", values), gist="asks the service, restarts what hangs"
    )
    return [unit, watchdog_config(plan)]


def monitoring(plan: Plan) -> list[WantedFile]:
    """Files of what watches hosts, alertmanager's own left out, which may hold passwords."""
    of_figures = {
        "paths": plan.paths, "config": planned.FIGURES_CONFIG, "confinement": confinement.of_figures(plan),
    }  # fmt: skip
    return [
        *planned.repositories(plan),
        *(_of_prometheus(plan) if planned.keeps(plan) else _for_prometheus(plan)),
        planned.figures(plan),
        WantedFile(f"{UNITS}/{planned.COLLECTOR}", _render("metrics.service.j2", of_figures)),
        WantedFile(planned.timer_path(), _render("metrics.timer.j2", {})),
        *(
            WantedFile(path(daemon.unit), _render(template, {"daemon": daemon}))
            for daemon in planned.daemons(plan)
            for path, template in (
                (planned.drop_in, "monitoring.conf.j2"),
                *([(planned.filter_of, "hosts.conf.j2")] if daemon.asks else []),
            )
        ),
    ]


def _of_prometheus(plan: Plan) -> list[WantedFile]:
    assert plan.watching
    values = {
        "settings": plan.settings, "every": planned.EVERY_S, "loopback": planned.LOOPBACK, "rules": planned.RULES,
        "targets": planned.TARGETS, "host": plan.watching.watched[0].host,
    }  # fmt: skip
    return [
        WantedFile(planned.CONFIG, _render("prometheus.yml.j2", values)),
        WantedFile(planned.RULES, alert_rules(), gist="alert rules"),
        planned.targets(plan),
        *(planned.grafana(plan.settings, dashboard_files()) if plan.settings.grafana_repository else ()),
    ]


def _for_prometheus(plan: Plan) -> list[WantedFile]:
    """Of a host whose Prometheus is another's."""
    values = {"paths": plan.paths, "config": planned.FORWARDS, "confinement": confinement.of_forwarder(plan)}
    return [
        planned.forwards(plan),
        WantedFile(f"{UNITS}/{planned.FORWARDER}", _render("figures.service.j2", values)),
    ]


def sysctl(plan: Plan) -> WantedFile:
    return WantedFile(SYSCTL, _render("sysctl.conf.j2", {"kernel_settings": kernel_settings(plan)}))


def report(data: Mapping[str, Any]) -> bytes:
    """The page of a host, of tasks.plan.report.data.build's data."""
    return _render("report.html.j2", page.view(dict(data)))


def service(data: Mapping[str, Any], reports: Mapping[str, Report | None]) -> bytes:
    """The page of a service, of tasks.plan.report.service.build's data and the reports of its hosts."""
    return _render("service.html.j2", service_page.view(dict(data), reports))


def serving(comparison: bench.Comparison, limits: Limits) -> bytes:
    """The page of a host's benchmark."""
    return _render("serving.html.j2", bench_page.view(comparison, limits))


def status(shown: Mapping[str, Any]) -> bytes:
    """The page of what a host's Prometheus has kept, of tasks.plan.report.status.view's data."""
    return _render("status.html.j2", dict(shown))


def _render(name: str, values: dict[str, object]) -> bytes:
    return _templates.get_template(name).render(values).encode()
