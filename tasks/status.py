"""The panels of the dashboards as a page, from what the host's Prometheus has kept; changes nothing.

make status HOST=NAME     docs/monitoring.md
"""

from __future__ import annotations

from pathlib import Path

from pyinfra import host

from tasks.facts.panels import Panels
from tasks.plan.errors import PlanError
from tasks.plan.phases import monitoring
from tasks.plan.report import status
from tasks.support import catalogue, connection, fleet, place, refusal, render, report, summary

HOURS = "status_hours"
LOOKS = {"healthy": "green", "warning": "yellow", "incomplete": "yellow", "error": "red"}


def write() -> None:
    with refusal.in_one_line():
        wanted, _ = place.here(HOURS)
        watcher = fleet.watcher()
        if watcher is None:
            raise PlanError(
                "nothing has been recorded on this host: set monitoring = True for it and run deploy.py; "
                "docs/monitoring.md"
            )
        if watcher != host.name:
            raise PlanError(f"the Prometheus of {watcher} watches this host: make status HOST={watcher}")
        if wanted.report_dir is None:
            raise PlanError(
                'setting report_dir = None: the page is written into that folder; name one, such as "reports"'
            )
        seconds, step = status.span(host.data.get(HOURS) or status.HOURS)
        dashboards = catalogue.dashboards()
        connection.prepare()
        told = host.get_fact(
            Panels, url=monitoring.prometheus(wanted), queries=status.queries(dashboards), seconds=seconds, step=step
        )
        shown = status.view(host.name, dashboards, status.read(told), seconds, step)
        page = Path(wanted.report_dir) / f"{report.file_stem(host.name)}.status.html"
        report.replace(page, render.status(shown))
        summary.last(
            host, f"{page}: the last {shown['hours']} h, {status.in_words(shown)}", LOOKS[shown["verdict"]["level"]]
        )
