"""Who a process belongs to. What it says of itself is anyone's text: a name, a path, a line break."""

from __future__ import annotations

# owner PID: pid, unit of systemd and command, by tabs, on one line of ASCII. Whoever may make groups of control groups
# may name one like a unit of ours: a unit counts where systemd itself puts it, below slices alone.
OWNER = r"""unit_of() { awk -F: '$2 != "" && $2 != "name=systemd" {next}
  {path = $0; sub(/^[^:]*:[^:]*:/, "", path)}
  FILENAME == "/proc/1/cgroup" {sub(/\/init\.scope$/, "", path); root[$1] = path == "/" ? "" : path; next}
  index(path, root[$1] "/") == 1 {count = split(substr(path, length(root[$1]) + 2), part, "/")
    for (i = 1; i <= count && part[i] ~ /\.slice$/; i++) ;
    if (part[i] ~ /^[A-Za-z0-9:_.@\\-]+\.service$/) unit = part[i]}
  END {print unit}' /proc/1/cgroup "/proc/$1/cgroup" 2>/dev/null; }
owner() { printf '%s\t%s\t%s\n' "$1" "$(unit_of "$1")" \
  "$({ tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | LC_ALL=C tr -c ' -~' '?' | cut -c1-160)"; }
"""
