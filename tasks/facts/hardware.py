"""GPUs, NUMA nodes, and the driver's matrices."""

from __future__ import annotations

from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.host import GPU_COLUMNS

_SCRIPT = rf"""
nodes() {{ for n in /sys/devices/system/node/node[0-9]*; do [ -e "$n/cpulist" ] || continue
  echo "${{n##*/node}} $(cat "$n/cpulist")"; done; }}
pci() {{ for d in /sys/bus/pci/devices/*; do [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue
  echo "${{d##*/}} $(cat "$d/numa_node" 2>/dev/null || echo -1)"; done; }}
smi() {{ command -v nvidia-smi >/dev/null || return 127; timeout 30 nvidia-smi "$@"; }}
driver() {{ cat /proc/driver/nvidia/version 2>/dev/null; true; }}
section driver driver
section nodes nodes
section pci pci
section gpus smi --query-gpu={GPU_COLUMNS} --format=csv,noheader,nounits
section topo smi topo -m
section p2p smi topo -p2p rw
"""


class Hardware(Sections):
    """Sections for tasks.plan.host.read_hardware."""

    def command(self) -> str:
        return PRELUDE + _SCRIPT
