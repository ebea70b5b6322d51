"""What is asked once the plan is known: what is built, bindings, names in the release's source, fit of patches."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tasks.facts.sections import PRELUDE, Sections, text_in
from tasks.plan.host.answers import NO_FOLDER, NOT_BUILT
from tasks.support.catalogue import tools

_SCRIPT = r"""
present() { for p in "$@"; do [ -f "$p" ] && echo "$p"; done; true; }
bind() { command -v numactl >/dev/null || return 127; limit 10 "$@" true; }
variables() { [ -f "$1" ] || return %d
  limit 60 grep -rhoE --include='*.py' 'SGLANG_[A-Z0-9_]+' "$2"/sglang | sort -u; }
# The release itself, else any built one with the same SGLang.
patches() {
  for site in "$1" "$2"/*/env/lib/python*/site-packages; do
    [ -d "$site/sglang-$3.dist-info" ] && [ -f "${site%%/env/*}/release.json" ] || continue
    printf '%%s' "$PD_PATCHES" | limit 60 python3 -I -c "$PD_PATCH" check --patches - "$site"; return
  done; return %d; }
# Each part that is there, from the top: kind, mode, owner, group, path, a link's target; "filled": it is not empty.
place() { p=; for part in $(printf '%%s' "$1" | tr / ' '); do p=$p/$part
    if [ -L "$p" ]; then k=link; elif [ -d "$p" ]; then k=directory; elif [ -e "$p" ]; then k=other; else return 0; fi
    printf '%%s\t%%s\t%%s\t%%s\n' "$k" "$(stat -L -c '%%a	%%U	%%G' "$p" 2>/dev/null || printf '\t\t')" "$p" \
      "$(readlink -n "$p" | tr '\000-\037\177' ' ')"; done
  [ -d "$1" ] && ls -A "$1" | grep -vxq lost+found && echo filled; true; }
wheels() { [ -d "$1" ] || return %d
  (cd "$1" && limit 30 find . -maxdepth 1 -name '*.whl' -printf '%%f\n'); }
"""


class Planned(Sections):
    """Sections for the checks: files, 'binding COMMAND', variables; patches and wheels where they are asked for.

    The judge of patches travels with the question, so that a host without our tools still answers.
    """

    def command(
        self,
        release_file: str,
        model_file: str,
        site_packages: str,
        bindings: list[str],
        releases: str,
        sglang: str,
        patches: str,
        places: Sequence[str] = (),
        wheelhouse: str | None = None,
    ) -> str:
        """bindings: commands such as 'numactl --cpunodebind=0 --membind=0', as instances have them. patches: what
        pd-patch check is told, "" where there are none. places: folders, see tasks.plan.checks.folders."""
        lines = [f"section files present {shlex.join([release_file, model_file])}"]
        lines += [f"section {shlex.quote(f'binding {command}')} bind {command}" for command in bindings]
        lines.append(f"section variables variables {shlex.join([release_file, site_packages])}")
        if patches:
            lines += [text_in("PD_PATCH", tools()["pd-patch"].decode()), text_in("PD_PATCHES", patches)]
            lines.append(f"section patches patches {shlex.join([site_packages, releases, sglang])}")
        lines += [f"section {shlex.quote(f'place {path}')} place {shlex.quote(path)}" for path in places]
        if wheelhouse:
            lines.append(f"section wheels wheels {shlex.quote(wheelhouse)}")
        return "\n".join([PRELUDE, _SCRIPT % (NOT_BUILT, NOT_BUILT, NO_FOLDER), *lines])
