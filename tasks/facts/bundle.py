"""What whoever helps with a host must know of it: units, journals, files, versions. Nothing changes on the host."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tasks.facts.paths import AS_USER
from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.report.bundle import SECRETS
from tasks.plan.service.paths import KEPT, RUN, STAMP, UNITS

# file NAME PATH: a section of a file of root's that is there and small; a link is not followed.
_SCRIPT = r"""
file() { if [ -f "$2" ] && [ ! -L "$2" ] && [ "$(stat -c %u "$2")" = 0 ] && [ "$(stat -c %s "$2")" -le 1048576 ]; then
  section "$1" cat "$2"; fi; }
for unit in "$units"/sglang-pd-* "$units"/sglang-pd.*; do [ -e "$unit" ] || continue; name=${unit##*/}
  file "units/$name" "$unit"
  if [ -d "$unit" ]; then for f in "$unit"/*; do file "units/$name/${f##*/}" "$f"; done; continue; fi
  section "state/$name.txt" limit 10 systemctl status --no-pager -n 0 "$name"
  section "journal/$name.txt" limit 60 journalctl --no-pager -q -o short-iso -n 4000 -u "$name"
done
for f in "$config"/*; do case $f in "$secret"* | "$tls"*) ;; *) file "config/${f##*/}" "$f" ;; esac; done
for f in "$run"/*/*.json; do d=${f%/*}; file "run/${d##*/}-${f##*/}" "$f"; done
file stamp.json "$stamp"
for f in "$root"/releases/*/release.json; do d=${f%/*}; file "releases/${d##*/}.json" "$f"; done
section folders.txt ls -la "$kept" "$root" "$root/releases" "$config"
versions() { uname -a; cat /etc/os-release; systemctl --version | head -n 1; python3 --version; uptime; }
section versions.txt versions
space() { free -m; df -h; }
section space.txt space
cards() { limit 30 nvidia-smi; limit 30 nvidia-smi topo -m; cat /proc/driver/nvidia/version; }
section cards.txt cards
kernel() { limit 20 journalctl -k -b -q -o short-iso --no-pager | grep -E 'NVRM|Out of memory|oom-kill' | tail -n 200; }
section kernel.txt kernel
section listeners.txt limit 10 ss -Hltn
processes() { ps -eo user,pid,ppid,etimes,rss,stat,comm --sort=-rss | head -n 60; }
section processes.txt processes
secrets() { cat "$secret" 2>/dev/null; true; }
section "$secrets_are" secrets
"""


class Bundle(Sections):
    """Sections by the name of a file in the archive, and `secrets`, for tasks.plan.report.bundle.files."""

    def command(self, config: str, root: str, secret: str, tls: str, user: str, theirs: Sequence[str]) -> str:
        """secret, tls: files with the API key and with the certificate's key. theirs: files of the service user,
        which are read as that user."""
        told = {
            "units": UNITS, "config": config, "secret": secret, "tls": tls, "run": RUN, "stamp": STAMP, "kept": KEPT,
            "root": root, "secrets_are": SECRETS,
        }  # fmt: skip
        variables = "; ".join(f"{name}={shlex.quote(value)}" for name, value in told.items())
        of_user = [
            shlex.join(["section", f"proof/{path.rpartition('/')[2]}", "as_user", user, "cat", path]) for path in theirs
        ]
        return "\n".join([PRELUDE, AS_USER, variables, _SCRIPT, *of_user])
