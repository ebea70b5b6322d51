"""What a recording holds of a host: the answers of its hardware tools, and what its kernel says of GPUs and nodes."""

from __future__ import annotations

import json
import shlex

from tasks.facts.hardware import QUERIES
from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.host.answers import METRIC_COLUMNS

# Every question that a fact, an operation or SGLang asks of such a tool.
QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", "-L"),
    *(("nvidia-smi", *query) for query in QUERIES.values()),
    ("nvidia-smi", f"--query-gpu={METRIC_COLUMNS}", "--format=csv,noheader,nounits"),
    ("modinfo", "-F", "license", "nvidia"),
    ("lspci", "-vv"),
    ("lscpu",),
    ("lscpu", "-J"),
    ("lscpu", "-p=CPU,Core,Socket,Node"),
    *(("numactl", option) for option in ("-H", "--hardware", "-s", "--show")),
    ("nv-fabricmanager", "--version"),
    ("dmesg",),
)

# Of the kernel's log and of lspci only those lines are taken that the fact Hardware reads: the rest names disks,
# addresses and serial numbers. A driver that hangs is asked once.
_SCRIPT = r"""
hung=
ask() { command -v "$1" >/dev/null || return 127
  [ "$1" != nvidia-smi ] || [ -z "$hung" ] || return 124
  limit 120 "$@"; _s=$?
  case $1:$_s in nvidia-smi:124 | nvidia-smi:137) hung=1; return 124 ;; esac
  return $_s; }
ask_lspci() { command -v lspci >/dev/null || return 127
  _pci=$(limit 30 lspci -vv 2>/dev/null); _s=$?
  printf '%s\n' "$_pci" | grep -E '^[0-9a-f]+:|ACSCtl:'; return $_s; }
ask_dmesg() { _log=$(limit 20 journalctl -k -b -q -o short-monotonic --no-pager 2>/dev/null)
  if [ -n "$_log" ]; then _log=$(printf '%s\n' "$_log" | sed 's/^\(\[[ 0-9.]*\]\) [^ ]* kernel: /\1 /')
  else _log=$(limit 20 dmesg 2>&1); _s=$?; [ $_s = 0 ] || { printf '%s\n' "$_log"; return $_s; }; fi
  printf '%s\n' "$_log" | head -n 1
  printf '%s\n' "$_log" | grep -E 'NVRM: (Xid|.*RmInitAdapter failed|.*fallen off the bus)'; true; }
names() { hostname; hostname -f; hostname -I; } 2>/dev/null
fabricmanager() { command -v systemctl >/dev/null || return 127
  limit 10 systemctl show -p LoadState,ActiveState nvidia-fabricmanager.service; }
file() { [ ! -f "$1" ] || section "file $1" cat "$1"; }
for f in /proc/cmdline /proc/1/status /proc/sys/kernel/numa_balancing /proc/driver/nvidia/version \
  /proc/driver/nvidia/gpus/*/information /sys/devices/system/node/online /sys/devices/system/node/possible \
  /sys/devices/system/node/has_* /sys/devices/system/node/node[0-9]*/cpulist \
  /sys/devices/system/node/node[0-9]*/cpumap /sys/devices/system/node/node[0-9]*/distance \
  /sys/devices/system/node/node[0-9]*/meminfo; do file "$f"; done
for d in /sys/bus/pci/devices/*; do [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue
  for n in class device vendor numa_node local_cpulist iommu_group/type; do file "$d/$n"; done; done
for u in /sys/class/iommu/*; do [ ! -e "$u" ] || section "file $u" true; done
section names names
section fabricmanager fabricmanager
"""


def section_of(question: tuple[str, ...]) -> str:
    return f"answer {json.dumps(question)}"


class Recording(Sections):
    """Sections for tasks.plan.host.recording.read: 'answer [TOOL, WORD...]', 'file PATH', names, fabricmanager, end."""

    def command(self) -> str:
        asked = []
        for question in QUESTIONS:
            how = {"lspci": "ask_lspci", "dmesg": "ask_dmesg"}.get(question[0], f"ask {shlex.join(question)}")
            asked.append(f"section {shlex.quote(section_of(question))} {how}")
        return "\n".join([PRELUDE, _SCRIPT, *asked, "section end true"])
