"""A built release, compared with its lock and with what was recorded when it was built."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra.api import FactBase

from tasks.facts.sections import text_in
from tasks.plan.host.answers import json_object
from tasks.support.catalogue import tools

_PARTS = {f'{{"part":"{part}': part for part in ("env", "router")}  # how the line of a part begins


class ReleaseState(FactBase[dict[str, Any] | None]):
    """{"env": ..., "router": ...} as pd-env check prints them; None where the release is not built. A part whose answer
    cannot be read is None: the release is then repaired, as one whose check gave no answer.

    The checker travels with the question, so that a host whose tools were removed still answers.
    """

    @staticmethod
    def default() -> dict[str, Any] | None:
        return None

    def command(self, directory: str, lock: str, router_lock: str) -> str:
        checker = tools()["pd-env"].decode()
        return (
            f"[ -e {shlex.quote(directory)}/release.json ] && command -v python3 >/dev/null || exit 0\n"
            f"{text_in('check', checker)}\n"
            f"for pair in {shlex.quote(f'env {lock}')} {shlex.quote(f'router {router_lock}')}; do set -- $pair\n"
            f'  answer=$(python3 -I -c "$check" check {shlex.quote(directory)}/"$1" --lock "$2" --json); '
            'printf \'{"part":"%s","answer":%s}\\n\' "$1" "${answer:-null}"\n'
            "done"
        )

    def process(self, output: list[str]) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        for line in output:
            head, _, answer = line.partition('","answer":')
            if head in _PARTS:
                found[_PARTS[head]] = json_object(answer.removesuffix("}"))
        return found or None
