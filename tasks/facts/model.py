"""A model's folder, compared with its record or with its own index."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra.api import FactBase

from tasks.support.catalogue import tools


class ModelState(FactBase[dict[str, Any] | None]):
    """As `pd-model check --json` prints it; None where Python is missing or the tool gave no answer."""

    def requires_command(self, directory: str) -> str:
        return "python3"

    def command(self, directory: str) -> str:
        checker = tools()["pd-model"].decode()
        return f"python3 - check --directory {shlex.quote(directory)} --json <<'PD_END'\n{checker}\nPD_END\ntrue"

    def process(self, output: list[str]) -> dict[str, Any] | None:
        try:
            return dict(json.loads("\n".join(output)))
        except ValueError:
            return None
