"""Runs of the playbook: the one that holds the host's lock, and the last that changed something."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.service.paths import LOCK, RESTORING, RESUME, RUN_RECORD, STAMP

# A shared lock, for a moment: two that ask do not see each other.
_SCRIPT = f"""
free() {{ [ ! -e $1 ] || flock -s -n $1 true; }}
holder() {{ free {LOCK} || cat {LOCK}; free {RESTORING} || cat {RESTORING}; true; }}
left() {{ cat "$1" 2>/dev/null; true; }}
resuming() {{ ! systemctl is-active -q {RESUME} 2>/dev/null || echo yes; true; }}
section lock holder
section run left {shlex.quote(RUN_RECORD)}
section stamp left {shlex.quote(STAMP)}
section resuming resuming
"""


class Runs(Sections):
    """Sections for tasks.plan.run.record.read: lock, run, stamp, resuming."""

    def command(self) -> str:
        return PRELUDE + _SCRIPT
