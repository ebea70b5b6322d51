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
# as_servers USER COMMAND...: a command as the user that the servers run as. One that this run is still to make has the
# rights of others, and of a group of its name that is there.
as_servers() { _user=$1; shift
  if id -u "$_user" >/dev/null 2>&1; then limit 60 runuser -u "$_user" -- "$@"; return; fi
  _group=$(getent group "$_user" | cut -d: -f3)
  limit 60 setpriv --reuid 65534 --regid "${_group:-65534}" --clear-groups -- "$@"; }
# confined USER COMMAND...: the same, and it sees of the host what a server sees: PD_VIEW hides the rest from it.
confined() {
  if [ -z "$PD_VIEW" ]; then as_servers "$@"; return; fi
  _who=$1; shift
  if id -u "$_who" >/dev/null 2>&1; then set -- "$_who" "" "$@"
  else set -- 65534 "$(getent group "$_who" | cut -d: -f3)" "$@"; fi
  _uid=$1 _gid=$2; shift 2
  limit 60 systemd-run --quiet --collect --wait --pipe --property=RuntimeMaxSec=60 --property=User="$_uid" \
    ${_gid:+--property=Group="$_gid"} $PD_VIEW -- "$@"; }
# reads USER PATH...: what keeps the user from what lies there, a line each: what it cannot do, path, mode and owner.
reads() { _user=$1; shift; confined "$_user" sh -c "$PD_READS" sh "$@" 2>/dev/null || printf 'run\tsh\n'; }
# imports USER PYTHON MODULE,... FOLDER...: the same of an interpreter and of modules that it must find.
imports() { _user=$1; shift
  confined "$_user" "$1" -I -B -c "$PD_IMPORTS" "$@" 2>/dev/null || printf 'run\t%%s\n' "$1"; }
kept() { [ -d "$2" ] || { echo '{}'; return; }
  as_servers "$1" python3 -I -c "$PD_MODEL" kept --directory "$2" --name "$3"; }
wheels() { [ -d "$1" ] || return %d
  (cd "$1" && limit 30 find . -maxdepth 1 -name '*.whl' -printf '%%f\n'); }
"""


# No braces around a name: systemd would put a variable of its own there.
_READS = r"""
said() { printf '%s\t%s\t%s\n' "$1" "$2" \
  "$(stat -L -c '%a %U:%G' "$2" 2>/dev/null || printf 'a link to %s' "$(readlink "$2")")"; }
for path in "$@"; do p= IFS=/ blocked=
  for part in $path; do [ -n "$part" ] || continue; p=$p/$part
    if [ -d "$p" ] && [ ! -x "$p" ]; then said enter "$p"; blocked=1; break; fi
    if [ -L "$p" ] && [ ! -e "$p" ]; then said follow "$p"; blocked=1; break; fi
  done
  [ -z "$blocked" ] || continue
  if [ -e "$path" ] && [ ! -r "$path" ]; then said read "$path"; continue; fi
  [ ! -d "$path" ] || find -L "$path" -maxdepth 1 ! -name '.*' ! -type d ! -readable | tr '\000-\011\013-\037' ' ' |
    head -n 3 | while IFS= read -r file; do said read "$file"; done
done
true
"""
_IMPORTS = r"""
import importlib.util, sys
sys.path[:0] = sys.argv[3:]
for module in sys.argv[2].split(","):
    try:
        open(importlib.util.find_spec(module).origin).close()
    except Exception as error:
        print("import", module, sys.argv[1], sep="\t")
"""


class Planned(Sections):
    """Sections for the checks: files, 'binding COMMAND', variables; patches, wheels, reads and imports where they are
    asked for.

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
        user: str = "",
        view: Sequence[str] = (),
        reads: Sequence[str] = (),
        imports: Sequence[Sequence[str]] = (),
        kept: Sequence[str] = (),
    ) -> str:
        """bindings: commands such as 'numactl --cpunodebind=0 --membind=0', as instances have them. patches: what
        pd-patch check is told, "" where there are none. places: folders, see tasks.plan.checks.folders. reads, imports:
        what the user must be able to read, and for each interpreter the modules and folders on its path. view: lines of
        a unit that sees what a server sees: there they are asked for. kept: folder of models and the name of one whose
        revisions are looked for."""
        lines = [f"section files present {shlex.join([release_file, model_file])}"]
        lines += [f"section {shlex.quote(f'binding {command}')} bind {command}" for command in bindings]
        lines.append(f"section variables variables {shlex.join([release_file, site_packages])}")
        if patches:
            lines += [text_in("PD_PATCH", tools()["pd-patch"].decode()), text_in("PD_PATCHES", patches)]
            lines.append(f"section patches patches {shlex.join([site_packages, releases, sglang])}")
        lines += [f"section {shlex.quote(f'place {path}')} place {shlex.quote(path)}" for path in places]
        if wheelhouse:
            lines.append(f"section wheels wheels {shlex.quote(wheelhouse)}")
        if reads or imports:
            hidden = " ".join(f"--property={line}" for line in view)
            lines += [text_in("PD_READS", _READS), text_in("PD_IMPORTS", _IMPORTS), text_in("PD_VIEW", hidden)]
            asked = [shlex.join(["reads", user, *reads]), *(shlex.join(["imports", user, *each]) for each in imports)]
            lines += [f"readable() {{ {'; '.join(asked)}; true; }}", "section readable readable"]
        if kept:
            lines += [
                text_in("PD_MODEL", tools()["pd-model"].decode()),
                f"section kept {shlex.join(['kept', user, *kept])}",
            ]
        return "\n".join([PRELUDE, _SCRIPT % (NOT_BUILT, NOT_BUILT, NO_FOLDER), *lines])
