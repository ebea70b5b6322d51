"""The settings of the simulated host: SGLang on the CPU, one recorded GPU a role.

Defaults come from group_data/all.py. Nothing else comes from the group_data of this checkout, which is the user's,
unless a rehearsal is asked to play it (SETTINGS).
"""

from __future__ import annotations

import os
import runpy
from inspect import ismodule
from pathlib import Path

from tests.node.package_sources import wheel_is_at_hand
from tests.node.process import NodeError

DEFAULTS = Path(__file__).resolve().parents[2] / "group_data" / "all.py"
RELEASE = "sglang-0.5.20-cpu"
TORCH_WHEEL = "cpu" if "TORCH_INDEX" in os.environ or wheel_is_at_hand("torch-*+cpu-*.whl") else "ordinary"
REHEARSAL: dict[str, object] = {
    "release": RELEASE,
    "torch_wheel": TORCH_WHEEL,
    "package_extra_indexes": [os.environ["TORCH_INDEX"]] if "TORCH_INDEX" in os.environ else [],  # one with CPU wheels
    "model": "rehearsal-qwen2",
    "context_length": 1024,
    "prefill_tensor_parallel": 1,
    "decode_tensor_parallel": 1,
    "server_tensor_parallel": 1,
    "server_chunked_prefill": 1024,
    "prefill_chunked_prefill": 1024,
    "worker_ready_limit": 600,  # seconds; two cores start both servers at once
    "stop_limit": 45,
}


def variables(path: Path) -> dict[str, object]:
    """The variables of a group_data file; like pyinfra, without what it imports."""
    found = runpy.run_path(str(path))
    return {name: v for name, v in found.items() if not name.startswith("__") and not (callable(v) or ismodule(v))}


# Settings of the user that a service on the CPU plays; the plan for the recorded host is made from all but ELSEWHERE.
PLAYED = {
    "layout", "router_policy", "router_health_interval", "router_health_failures", "router_health_successes",
    "router_breaker_seconds", "router_port", "router_metrics_port", "restart_scope", "start_on_boot", "reserve_ports",
    "disable_numa_balancing", "limit_memlock", "limit_nofile", "worker_environment", "silenced_checks", "failing_xids",
    *(f"{role}_{name}" for role in ("prefill", "decode", "server") for name in ("instances", "port", "dist_init_port")),
    "prefill_numa_node", "decode_numa_node", "server_numa_node", "prefill_bootstrap_port", "decode_bootstrap_port",
}  # fmt: skip
MOST_INSTANCES = 2  # servers of a role: each is a process of SGLang on this machine's CPUs
# What asks for files, addresses or packages that the real host has, and thresholds that this machine's memory and disk
# would be judged by. Of a plan alone nothing of it is looked at.
ELSEWHERE: dict[str, object] = {
    "model_dir": None, "model_hub": None, "environment": "release", "existing_python": None,
    "existing_router_python": None, "existing_paths": [], "package_index": None, "package_extra_indexes": [],
    "package_find_links": [], "package_certificate": None, "package_wheelhouse": None, "manage_driver": False,
    "driver_version": None, "driver_repository": None, "driver_keyring": None, "allow_reboot": False,
    "gpu_persistence": False, "router_host": "127.0.0.1", "router_metrics_host": "127.0.0.1",
    "router_api_key_env": None, "router_tls_certificate": None, "router_tls_key": None,
    "router_tls_on_host": False, "router_clients": [], "peer_networks": [], "minimum_free_disk_gb": 0.1,
    "minimum_memory_gb_per_gpu": 0.1, "decode_retraction_backup": "cpu_tensor", "report_dir": None,
    "monitoring": False, "alertmanager_config": None, "grafana_repository": None, "grafana_keyring": None,
    "dcgm_repository": None, "dcgm_keyring": None,
}  # fmt: skip


def own(name: str) -> dict[str, object]:
    """The user's settings for one of their hosts: of group_data/NAME.py, or of a file. Raises NodeError for neither."""
    path = next((path for path in (Path("group_data") / f"{name}.py", Path(name)) if path.is_file()), None)
    if path is None:
        raise NodeError(f"no settings {name}: there is no group_data/{name}.py, and no file of this name")
    return variables(path)


def planned(mine: dict[str, object]) -> dict[str, object]:
    """The settings that the recorded host is planned with."""
    return {**mine, **ELSEWHERE}


def played(mine: dict[str, object]) -> dict[str, object]:
    """Those of a user's settings that are served with, as far as the CPU can."""
    few = {
        name: MOST_INSTANCES
        for name, value in mine.items()
        if name.endswith("_instances") and isinstance(value, int) and value > MOST_INSTANCES
    }
    return {**{name: value for name, value in mine.items() if name in PLAYED}, **few}


def left_out(mine: dict[str, object]) -> tuple[list[str], list[str]]:
    """Of a user's settings: those that were planned with, but not served with; those that were not looked at."""
    looked_at, served = planned(mine), played(mine)
    ignored = [name for name, value in mine.items() if looked_at[name] != value]
    return [name for name, value in mine.items() if name not in ignored and served.get(name) != value], ignored


def of_node() -> dict[str, object]:
    """Every setting: pyinfra lets a host's own win over all group_data.

    In the environment: SETTINGS, the name of a host whose settings are the user's; PLAN_ONLY=1, for a dry run of them;
    MONITORING=1, for Prometheus; HARDWARE, where a recording of the user's own is played.
    """
    defaults, name = variables(DEFAULTS), os.environ.get("SETTINGS")
    mine = own(name) if name else {}
    if os.environ.get("PLAN_ONLY"):
        return {**defaults, **planned(mine)}
    recorded = {"gpu_persistence": False} if name or os.environ.get("HARDWARE") else {}  # nvidia-smi only replays
    return {**defaults, **played(mine), **REHEARSAL, **recorded, "monitoring": watched()}


def watched() -> bool:
    """Whether the rehearsal is one with Prometheus."""
    return os.environ.get("MONITORING", "0") not in {"", "0"}
