"""What the service answers to its golden questions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from pyinfra.api import FactBase

from tasks.plan.host.answers import json_object


class Answers(FactBase[dict[str, Any]]):
    """As `pd-verify --json` prints it; {} where it gave no answer."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, tool: str, config: str, answered: str | None = None, depends: Sequence[str] = ()) -> str:
        """answered: where right answers are remembered, None: everything is asked."""
        command = [tool, "--config", config, "--json", *(["--answered", answered] if answered else [])]
        for path in depends if answered else []:
            command += ["--depends", path]
        return f"{shlex.join(command)}; true"

    def process(self, output: list[str]) -> dict[str, Any]:
        answers = json_object("\n".join(output))
        return {"ok": False, "reason": " ".join(output)} if answers is None else answers
