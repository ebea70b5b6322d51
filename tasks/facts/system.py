"""Operating system, capacity, users, installed packages."""

from __future__ import annotations

import shlex

from tasks.facts.sections import PRELUDE, Sections

_SCRIPT = r"""
pythons() { for v in 3 3.11 3.12 3.13; do command -v python$v >/dev/null && limit 20 python$v -I -c \
  'import sys; print(sys.argv[1], sys.version.split()[0], sys.version_info.releaselevel)' $v; done; true; }
disk() { for p in "$@"; do d=$p; while [ ! -e "$d" ]; do d=${d%/*}; d=${d:-/}; done
  echo "$p $(df -Pk "$d" | awk 'NR == 2 {print $4}')"; done; }
sysctls() { for k in "$@"; do f=/proc/sys/$(echo "$k" | tr . /)
  if [ -e "$f" ]; then echo "$k=$(cat "$f")"; else echo "$k"; fi; done; }
packages() { dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
  awk '$1 == "installed" {print $2}'; }
own() { for f in /sys/fs/cgroup/*/sglang-pd-*.service/memory.numa_stat; do [ -e "$f" ] || continue
  u=${f%/*}; echo "${u##*/} $(grep '^anon ' "$f")"; done; }
clock() { date +%s; command -v timedatectl >/dev/null || return 127
  limit 10 timedatectl show -p NTPSynchronized --value; }
upgrades() { command -v apt-config >/dev/null || return 127
  limit 10 apt-config dump APT::Periodic::Unattended-Upgrade || return
  limit 10 apt-config dump Unattended-Upgrade::Package-Blacklist || return
  dpkg-query -W -f 'package ${db:Status-Abbrev} ${Package}\n' apt unattended-upgrades '*nvidia*' 'cuda-drivers*' \
    2>/dev/null; true; }
monitoring() { for f in /etc/sglang-pd-monitoring /etc/systemd/system/prometheus*.service.d/sglang-pd.conf; do
  [ ! -e "$f" ] || echo "$f"; done; }
quiet() { "$@" 2>/dev/null; true; }
identity() { getent passwd "$1" 2>/dev/null && id -gn "$1" 2>/dev/null; true; }
section uid id -u
section os cat /etc/os-release
section machine uname -m
section glibc getconf GNU_LIBC_VERSION
section init cat /proc/1/comm
section systemd limit 10 systemctl --version
section pythons pythons
section cpus cat /sys/devices/system/cpu/online
section own own
section clock clock
section monitoring monitoring
section upgrades upgrades
"""


class System(Sections):
    """Sections for tasks.plan.host.answers.read_system."""

    def command(self, user: str, paths: list[str], sysctls: list[str], packages: list[str]) -> str:
        def words(values: list[str]) -> str:
            return " ".join(map(shlex.quote, values))

        return (
            f"{PRELUDE}{_SCRIPT}"
            f"section disk disk {words(paths)}\n"
            f"section sysctl sysctls {words(sysctls)}\n"
            f"section packages packages {words(packages)}\n"
            f"section user identity {shlex.quote(user)}\n"
        )
