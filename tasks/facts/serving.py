"""What a host serves, whatever is planned for it: from what passed last, and from systemd."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra.api import FactBase

from tasks.plan.service.paths import PASSED, RUN

# Of what is kept only names of units and files are looked at: an API key is in it.
_SCRIPT = r"""
import json, subprocess, sys
from pathlib import Path
def read(path):
    try:
        found = json.loads(Path(path).read_text())
    except PermissionError:
        sys.exit(1)  # only root may look: then nothing is known
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {}
config = read(sys.argv[1]).get("config") or {}
units = [*(config.get("workers") or []), *([config["router"]] if config.get("router") else [])]
active = [unit for unit in units if not subprocess.run(["systemctl", "is-active", "-q", "--", unit]).returncode]
asked = read((config.get("verify") or [""])[-1])
names = [unit.removeprefix("sglang-pd-").removesuffix(".service") for unit in active]
releases = [read(f"{sys.argv[2]}/{name}/fingerprint.json").get("release") for name in names]
routes = bool(config.get("router"))
told = {"servers": names, "routes": routes, "model": asked.get("model"), "url": asked.get("url")}
print(json.dumps({**told, "releases": releases}))
"""


class Serving(FactBase[dict[str, Any]]):
    """{"servers": names of those that are active, "routes": whether the router is here, "model", "url", "releases": of
    each}; {} where nothing tells."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self) -> str:
        asked = f"timeout 20 python3 -I -c {shlex.quote(_SCRIPT)} {PASSED} {RUN} 2>/dev/null || true"
        # a bare host may have no Python: then nothing of ours runs there
        return f"""if command -v python3 >/dev/null; then {asked}; else echo '{{"servers": []}}'; fi"""

    def process(self, output: list[str]) -> dict[str, Any]:
        try:
            found = json.loads("\n".join(output))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
