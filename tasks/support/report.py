"""The report of a host, a page and its data, written on the machine that runs pyinfra."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pyinfra import host

from tasks.plan.findings import Finding
from tasks.plan.fleet.members import Member
from tasks.plan.plan import Plan
from tasks.plan.report import data as report
from tasks.plan.report import service
from tasks.support import render
from tasks.support.dry import is_dry


def write(
    host_name: str, plan: Plan | None, findings: Iterable[Finding], proof: Mapping[str, Any] | None, state: str
) -> Path | None:
    """HOST.html and HOST.json in the folder of the setting report_dir. Returns the page, None where none is wanted.

    Of a dry run HOST.dry.html and HOST.dry.json: those of the last run that was one stay.

    plan: None where the host was refused before there was one. proof, state: as for tasks.plan.report.data.build.
    """
    folder = plan.settings.report_dir if plan else host.data.get("report_dir")
    data = report.build(host_name, plan, findings, proof, state, datetime.now(UTC))
    page = None
    if isinstance(folder, str) and folder:  # settings that were refused may hold anything
        page = Path(folder) / f"{file_stem(host_name)}{'.dry' if is_dry() else ''}.html"
        _write(page, data)
    _written[host_name] = Written(data, page)
    return page


@dataclass(frozen=True)
class Written:
    """The last report of this run on a host. page: None where none is wanted."""

    data: dict[str, Any]
    page: Path | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """A line each; what to do about them stands on the page."""
        return report.warnings(self.data)


def written(host_name: str) -> Written | None:
    return _written.get(host_name)


def ended(host_name: str, run: Mapping[str, Any]) -> None:
    """Add how the run went. run: of tasks.plan.report.summary.HostRun.as_data."""
    last = _written.get(host_name)
    if last:
        data = {**last.data, "run": dict(run)}
        _written[host_name] = Written(data, last.page)
        if last.page:
            _write(last.page, data)


def of_service(name: str, hosts: Sequence[Member], runs: Mapping[str, Mapping[str, Any]]) -> Path | None:
    """SERVICE.service.html and .json beside the pages of its hosts; None where this run wrote none of those.

    runs: by host of this run, as for ended(). Of a host that this run did not write about, its last report is shown.
    """
    pages = [last.page for host in hosts if (last := _written.get(host.host)) and last.page]
    if not pages:
        return None
    reports = {host.host: _report(host.host, pages[0].parent) for host in hosts}
    data = service.build(name, hosts, reports, runs, datetime.now(UTC))
    page = pages[0].parent / f"{file_stem(name)}.service{'.dry' if is_dry() else ''}.html"
    replace(page.with_suffix(".json"), _json(data))
    replace(page, render.service(data, reports))
    return page


def _report(host_name: str, folder: Path) -> service.Report | None:
    """A host's report of this run, else its last one, else None."""
    if (last := _written.get(host_name)) and last.page:
        return service.Report(last.data, last.page.name)
    page = folder / f"{file_stem(host_name)}.html"
    try:
        data = json.loads(page.with_suffix(".json").read_text())
    except (OSError, ValueError):
        return None
    return service.Report(data, page.name) if report.is_ours(data) else None


def _write(page: Path, data: Mapping[str, Any]) -> None:
    replace(page.with_suffix(".json"), _json(data))
    replace(page, render.report(data))


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def file_stem(host_name: str) -> str:
    """A host's name as that of a file, whatever it holds."""
    return re.sub(r"[^A-Za-z0-9._-]|^\.", "_", host_name)


def replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Written whole or not at all: a reader never sees half a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content)
    temporary = Path(file.name)
    temporary.chmod(mode)
    os.replace(temporary, path)  # noqa: PTH105


_written: dict[str, Written] = {}  # by name of host
