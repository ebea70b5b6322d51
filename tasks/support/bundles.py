"""Archives for whoever helps, on the machine that runs pyinfra, and what goes into them from there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyinfra import __version__

from tasks.plan.report import bundle
from tasks.support import checkout, report

FOLDER = Path("bundles")  # relative to where pyinfra or make runs, as report_dir is


def from_here(host_name: str, data: Mapping[str, Any], report_dir: object) -> dict[str, str]:
    """Reports and settings of a host, and the versions of what runs here, by file name."""
    found = {
        "playbook.txt": f"sglang-pd-playbook {checkout.here().shown}\npyinfra {__version__}\n",
        "settings.json": json.dumps(dict(data), indent=2, default=str, sort_keys=True),
    }
    if isinstance(report_dir, str) and report_dir:
        stem = report.file_stem(host_name)
        for end in ("html", "json", "dry.html", "dry.json", "status.html"):
            path = Path(report_dir) / f"{stem}.{end}"
            if path.is_file():
                found[f"reports/{path.name}"] = path.read_text(errors="replace")
    return found


def known_secrets(data: Mapping[str, Any]) -> list[str]:
    """What this machine knows: of settings and inventory, and the keys in variables that settings name."""
    named = [value for name, value in data.items() if name.endswith("_env") and isinstance(value, str)]
    return [*bundle.secrets_in(data), *(os.environ.get(name, "") for name in named)]


def write(host_name: str, found: Mapping[str, str]) -> Path:
    """One archive. Returns its path."""
    now = int(time.time())
    name = f"{report.file_stem(host_name)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    path = FOLDER / f"{name}.tar.gz"
    report.replace(path, bundle.archive(name, found, now), 0o600)
    return path
