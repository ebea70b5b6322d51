"""What the servers' processes are really bound to."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections

# One line a process of the unit: pid, CPUs allowed, memory policy of its first bound mapping.
_SCRIPT = r"""
bindings() { cg=$(systemctl show -p ControlGroup --value "$1")
  for f in "/sys/fs/cgroup$cg/cgroup.procs" "/sys/fs/cgroup/systemd$cg/cgroup.procs"; do [ -r "$f" ] || continue
    for p in $(cat "$f"); do
      cpus=$(awk '/^Cpus_allowed_list/ {print $2}' "/proc/$p/status" 2>/dev/null)
      policy=$(grep -m1 -o 'bind:[0-9,-]*' "/proc/$p/numa_maps" 2>/dev/null)
      echo "$p ${cpus:--} ${policy:--}"; done; break; done; }
"""


class Bindings(Sections):
    """Sections for tasks.plan.service.bindings.judge: one for each unit, and 'gpus' (pid, GPU uuid) from the driver."""

    def command(self, units: list[str]) -> str:
        query = "nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv,noheader,nounits"
        names = map(shlex.quote, units)
        lines = [PRELUDE, _SCRIPT, *(f"section {name} bindings {name}" for name in names), f"section gpus {query}"]
        return "\n".join(lines)
