"""Faults of a service that runs on a node: which command makes each. What they name is read from systemd and /proc."""

from __future__ import annotations

import shlex

# process UNIT WORD: the process of a unit whose title holds the word; ours are sglang::scheduler, sglang::detokenizer.
_SHELL = r"""
main() { systemctl show -p MainPID --value sglang-pd-$1.service; }
process() { for pid in $(cat /sys/fs/cgroup$(systemctl show -p ControlGroup --value sglang-pd-$1.service)/cgroup.procs)
  do ! tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q "^sglang::$2" || echo "$pid"; done; }
"""
# Prefill registers with its bootstrap server once, when it starts. Another entry in its place leads nowhere, and decode
# asks again once that server has missed its heartbeats.
_LOST = r"""
import json, urllib.request
entry = dict.fromkeys(("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "system_dp_rank"), 0)
entry |= dict.fromkeys(("attn_tp_size", "attn_cp_size", "attn_dp_size", "pp_size", "system_dp_size", "page_size"), 1)
entry |= {"rank_ip": "127.0.0.1", "rank_port": 9, "kv_cache_dtype": "auto"}
urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8998/route", json.dumps(entry).encode(),
                       {"Content-Type": "application/json"}, method="PUT"), timeout=10)
"""
MISSED_S = 20  # three heartbeats of decode, which come every 5 s


def script(body: str) -> str:
    """A shell command with the functions of above."""
    return f"bash -c {shlex.quote(_SHELL + body)}"


def frozen(unit: str, process: str = "") -> str:
    """process: scheduler or detokenizer; "" for the main process."""
    return script(f"kill -STOP $({f'process {unit} {process}' if process else f'main {unit}'})")


def killed(unit: str, process: str = "") -> str:
    return script(f"kill -KILL $({f'process {unit} {process}' if process else f'main {unit}'})")


def registration_lost() -> str:
    return script(
        f"python3 -c {shlex.quote(_LOST)} && kill -STOP $(main prefill) && sleep {MISSED_S} && kill -CONT $(main prefill)"
    )
