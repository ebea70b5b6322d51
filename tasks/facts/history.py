"""The releases that a host keeps, and the description of one of them."""

from __future__ import annotations

import shlex

from pyinfra.api import FactBase

from tasks.facts.sections import PRELUDE, Sections

_SCRIPT = """
left() { cat "$1" 2>/dev/null; true; }
link() { readlink "$1"; true; }
having() { cd "$1" 2>/dev/null && ls -d */"$2" 2>/dev/null | cut -d/ -f1; true; }
hidden() { cd "$1" 2>/dev/null && ls -A | grep '^[.]'; true; }
"""


class ReleaseHistory(Sections):
    """Sections for tasks.plan.release.history.read."""

    def command(self, releases: str, current: str, previous: str, pin: str) -> str:
        folder = shlex.quote(releases)
        return "\n".join(
            [
                PRELUDE,
                _SCRIPT,
                f"section current link {shlex.quote(current)}",
                f"section previous link {shlex.quote(previous)}",
                f"section built having {folder} release.json",
                f"section served having {folder} served",
                f"section hidden hidden {folder}",
                f"section pin left {shlex.quote(pin)}",
            ]
        )


class Lying(FactBase[list[str]]):
    """What lies in some folders, by path. A folder that is a link is not looked into."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, folders: list[str]) -> str:
        return f"find {shlex.join(folders)} -mindepth 1 -maxdepth 1 2>/dev/null; true"

    def process(self, output: list[str]) -> list[str]:
        return output


class Text(FactBase[str]):
    """A file's text, "" where there is none."""

    @staticmethod
    def default() -> str:
        return ""

    def command(self, path: str) -> str:
        return f"cat {shlex.quote(path)} 2>/dev/null; true"

    def process(self, output: list[str]) -> str:
        return "\n".join(output)


class InUse(FactBase[list[str]]):
    """Those of some folders from which a running process has mapped a file."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, folders: list[str]) -> str:
        names = " ".join(map(shlex.quote, folders))
        return f'for f in {names}; do grep -qsF "$f/" /proc/[0-9]*/maps && echo "$f"; done; true'

    def process(self, output: list[str]) -> list[str]:
        return output
