"""GPUs and their health, NUMA nodes, the driver and its matrices, what stands between the cards."""

from __future__ import annotations

from tasks.facts.owners import OWNER
from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.host.answers import FABRIC_COLUMNS, GPU_COLUMNS, HEALTH_COLUMNS, ROW_COLUMNS

# smi: asks nvidia-smi; _said and _s are its answer. A driver that hangs is asked once: every further question to it
# counts as timed out too. Without persistence each card is started anew for a question, 3 to 4 s a card (cvmimage#363).
# What it says of single cards beside an answer (a corrupted infoROM, exit status 14; a card that is lost) goes to the
# section warned. Where a lost card takes the whole answer along, the others are asked one by one.
# asked NAME QUESTION...: smi's answer as a section.
_SCRIPT = r"""
gpus_on_bus() { cards class 0 | awk '$2 ~ /^0x03/ {print $1}'; }
of_cards='^(WARNING: infoROM is corrupted|Unable to determine the device handle) .*'
hung='' warned=''
smi() {
  if [ -n "$hung" ]; then _said=$hung _s=124; return; fi
  if ! command -v nvidia-smi >/dev/null; then _said='' _s=127; return; fi
  _limit=$((30 + 10 * $(gpus_on_bus | grep -c .)))
  _said=$(limit "$_limit" nvidia-smi "$@" 2>&1); _s=$?
  case $_s in 124 | 137) hung="no answer within $_limit s" _said=$hung; return ;; esac
  _of_cards=$(printf '%s\n' "$_said" | grep -E "$of_cards")
  if [ $_s = 0 ] || [ -z "$_of_cards" ]; then return; fi
  _good=$(printf '%s\n' "$_said" | grep -Ev "$of_cards")
  [ -n "$_good" ] || _good=$(for b in $(gpus_on_bus); do
    _one=$(limit "$_limit" nvidia-smi -i "$b" "$@" 2>&1) && printf '%s\n' "$_one"; done)
  if [ -n "$_good" ]; then
    warned=$(printf '%s\n%s\n' "$warned" "$_of_cards" | grep . | sort -u) _said=$_good _s=0
  fi
}
told() { printf '%s\n' "$_said"; return "$_s"; }
asked() { _of=$1; shift; smi "$@"; section "$_of" told; }
fabricmanager() { command -v systemctl >/dev/null || return 127
  limit 10 systemctl show -p LoadState,ActiveState nvidia-fabricmanager.service
  command -v nv-fabricmanager >/dev/null && limit 20 nv-fabricmanager --version; true; }
nodes() { for n in /sys/devices/system/node/node[0-9]*; do [ -e "$n/cpulist" ] || continue
  echo "${n##*/node} $(cat "$n/cpulist")"; done; }
distances() { for n in /sys/devices/system/node/node[0-9]*; do [ -e "$n/distance" ] || continue
  echo "${n##*/node} $(cat "$n/distance")"; done; }
nodememory() { cat /sys/devices/system/node/node[0-9]*/meminfo | grep -E ' (MemTotal|MemFree|FilePages):'; }
cards() { for d in /sys/bus/pci/devices/*; do [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue
  echo "${d##*/} $(cat "$d/$1" 2>/dev/null || echo "$2")"; done; }
driver() { cat /proc/driver/nvidia/version 2>/dev/null; true; }
licence() { command -v modinfo >/dev/null || return 127; limit 20 modinfo -F license nvidia; }
holders() { printf '%s\n' "$_said" | cut -d, -f1 | grep -x '[0-9][0-9]*' | sort -un |
  while read -r p; do owner "$p"; done; }
kernel() { _log=$(limit 20 journalctl -k -b -q -o short-monotonic --no-pager 2>/dev/null)
  if [ -z "$_log" ]; then
    _log=$(limit 20 dmesg 2>&1); _s=$?
    [ $_s = 0 ] || { printf '%s\n' "$_log"; return $_s; }
  fi
  printf '%s lines, the first: %s\n' "$(printf '%s' "$_log" | grep -c '')" "$(printf '%s\n' "$_log" | head -n 1)"
  printf '%s\n' "$_log" | grep -E 'NVRM: (Xid|.*RmInitAdapter failed|.*fallen off the bus)'; true; }
acs() { command -v lspci >/dev/null || return 127
  _pci=$(limit 30 lspci -vv 2>/dev/null); _s=$?
  printf '%s\n' "$_pci" | grep -E '^[0-9a-f]+:|ACSCtl:'; return $_s; }
iommu() { echo "cmdline $(cat /proc/cmdline)"
  for u in /sys/class/iommu/*; do [ -e "$u" ] && echo "unit ${u##*/}"; done
  for d in /sys/bus/pci/devices/*; do [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] && [ -e "$d/iommu_group/type" ] &&
    echo "group ${d##*/} $(cat "$d/iommu_group/type")"; done; true; }
section driver driver
section nodes nodes
section distances distances
section nodememory nodememory
section pci cards numa_node -1
section controllers cards class unknown
section licence licence
section iommu iommu
section acs acs
section kernel kernel
section shm df -Pk /dev/shm
section pid1 grep -E '^(CapEff|Cpus_allowed_list|Mems_allowed_list):' /proc/1/status
section limits grep -E '^Max (locked memory|open files)' /proc/1/limits
section memory grep -E '^Mem(Total|Available):' /proc/meminfo
"""

_CSV = "--format=csv,noheader,nounits"
# Section -> what nvidia-smi is asked.
QUERIES = {
    "gpus": (f"--query-gpu={GPU_COLUMNS}", _CSV),
    "health": (f"--query-gpu={HEALTH_COLUMNS}", _CSV),
    "rows": (f"--query-remapped-rows={ROW_COLUMNS}", _CSV),
    "fabric": (f"--query-gpu={FABRIC_COLUMNS}", _CSV),
    "topo": ("topo", "-m"),
    "p2p": ("topo", "-p2p", "rw"),
    "apps": ("--query-compute-apps=pid,gpu_uuid,used_memory", _CSV),
}
# holders reads the answer to the last of them
_REST = r"""
section holders holders
section fabricmanager fabricmanager
section warned echo "$warned"
"""


class Hardware(Sections):
    """Sections for tasks.plan.host.answers.read_hardware and for the checks."""

    def command(self) -> str:
        queries = [f"asked {name} {' '.join(words)}" for name, words in QUERIES.items()]
        return "\n".join([PRELUDE, OWNER, _SCRIPT, *queries, _REST])
