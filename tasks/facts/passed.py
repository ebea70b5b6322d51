"""What is kept of a service that answered right."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra.api import FactBase

from tasks.plan.host.answers import json_object


class Passed(FactBase[dict[str, Any]]):
    """As `pd-passed check` prints it; {} where it gave no answer."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, words: list[str]) -> str:
        return f"{shlex.join(words)}; true"

    def process(self, output: list[str]) -> dict[str, Any]:
        return json_object("\n".join(output)) or {}
