"""Names of the overlays that lie in an environment."""

from __future__ import annotations

import shlex

from pyinfra.api import FactBase


class Overlays(FactBase[list[str]]):
    """Entries of site-packages whose name starts with pd_overlay_."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, site_packages: str) -> str:
        return f"cd {shlex.quote(site_packages)} 2>/dev/null && ls -d pd_overlay_* 2>/dev/null; true"

    def process(self, output: list[str]) -> list[str]:
        return output
