"""A model's folder, compared with its record or with its own index."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra.api import FactBase

from tasks.facts.paths import AS_USER
from tasks.facts.sections import text_in
from tasks.plan.host.answers import json_object
from tasks.support.catalogue import tools


class ModelState(FactBase[dict[str, Any] | None]):
    """As `pd-model check --json` prints it; None where Python is missing or the tool gave no answer.

    Looked at as the user that will read it: a folder of that user's is nothing that root opens.
    """

    def requires_command(self, directory: str, user: str) -> str:
        return "python3"

    def command(self, directory: str, user: str) -> str:
        checker = tools()["pd-model"].decode()
        asked = ["check", "--directory", directory, "--json"]
        return (
            f"{AS_USER}{text_in('check', checker)}\n"
            f'as_user {shlex.quote(user)} python3 -I -c "$check" {shlex.join(asked)}; true'
        )

    def process(self, output: list[str]) -> dict[str, Any] | None:
        return json_object("\n".join(output))
