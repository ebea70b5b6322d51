"""A Python environment that others made, as its own interpreter tells it."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections

# Nothing is imported: what a package is, its metadata says.
_ASK = r"""
import importlib.metadata, importlib.util, json, os, re, sys
sys.path[:0] = sys.argv[1:]
packages = {}
for one in importlib.metadata.distributions():
    name = one.metadata["Name"]
    if name:
        packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), one.version)
def folder(module):
    spec = importlib.util.find_spec(module)
    return os.path.dirname(spec.origin) if spec and spec.origin else None
torch, cuda = folder("torch"), None
if torch:
    found = re.search(r"^cuda\b.*= *'([^']+)'", open(torch + "/version.py").read(), re.M)
    cuda = found and found[1]
sglang = folder("sglang")
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "cuda": cuda, "packages": packages,
                  "site_packages": sglang and os.path.dirname(sglang)}))
"""


class ExistingEnvironment(Sections):
    """Sections for tasks.plan.release.existing.read: servers, router."""

    def command(self, python: str, router_python: str, paths: list[str]) -> str:
        # isolated: neither the current folder nor what the user's environment names is on the path
        lines = [PRELUDE, f'ask() {{ limit 60 "$1" -I -B -c {shlex.quote(_ASK)} {shlex.join(paths)}; }}']
        for part, interpreter in (("servers", python), ("router", router_python)):
            lines.append(f"section {part} ask {shlex.quote(interpreter)}")
        return "\n".join(lines)
