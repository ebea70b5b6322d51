"""What is asked once the plan is known: files that tell what is built, bindings, names in the release's source."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.checks.environment import NOT_BUILT
from tasks.plan.checks.wheelhouse import NO_FOLDER

_SCRIPT = r"""
present() { for p in "$@"; do [ -f "$p" ] && echo "$p"; done; true; }
bind() { command -v numactl >/dev/null || return 127; limit 10 "$@" true; }
variables() { [ -f "$1" ] || return %d
  limit 60 grep -rhoE --include='*.py' 'SGLANG_[A-Z0-9_]+' "$2"/sglang | sort -u; }
wheels() { [ -d "$1" ] || return %d
  (cd "$1" && limit 30 find . -maxdepth 1 -name '*.whl' -printf '%%f\n'); }
"""


class Planned(Sections):
    """Sections for the checks: files, 'binding COMMAND', variables, and wheels where there is a wheel folder."""

    def command(
        self, release_file: str, model_file: str, site_packages: str, bindings: list[str], wheelhouse: str | None = None
    ) -> str:
        """bindings: commands such as 'numactl --cpunodebind=0 --membind=0', as instances have them."""
        lines = [f"section files present {shlex.join([release_file, model_file])}"]
        lines += [f"section {shlex.quote(f'binding {command}')} bind {command}" for command in bindings]
        lines.append(f"section variables variables {shlex.join([release_file, site_packages])}")
        if wheelhouse:
            lines.append(f"section wheels wheels {shlex.quote(wheelhouse)}")
        return "\n".join([PRELUDE, _SCRIPT % (NOT_BUILT, NO_FOLDER), *lines])
