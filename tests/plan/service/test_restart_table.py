"""The table of docs/restarts.md: each setting restarts what its row says, and a setting without a row nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache

import pytest

from tasks.plan.plan import Plan
from tasks.plan.service.restarts import ABSENT, Running, restarts
from tasks.plan.settings.settings import NAMES
from tasks.support import render
from tests.plan.builders import API_KEY, REPOSITORY, TWO_SOCKETS, catalogue_plan, defaults, hardware

PAGE = "docs/restarts.md"
# What a setting is changed to. Numbers and switches that do not stand here are changed too.
CHANGED: dict[str, object] = {
    "model": "deepseek-v4-flash-mxfp4",
    "model_dir": "/data/models/some",
    "served_name": "mine",
    "questions": [{"name": "mine", "prompt": "1+1?", "expect": "2"}],
    "chat_template_kwargs": {"enable_thinking": False},
    "model_hub": "https://mirror.example.com",
    "model_revision": "1" * 40,
    "layout": "single",
    **{f"{role}_{name}": value for role in ("prefill", "decode", "server") for name, value in {
        "arguments": ["--log-level", "debug"], "environment": {"NCCL_DEBUG": "INFO"}, "mem_fraction": 0.5,
    }.items()},
    "prefill_gpus": [6, 7],
    "decode_gpus": [6, 7],
    "server_gpus": [4, 5, 6, 7],
    **dict.fromkeys(("prefill_numa_node", "server_numa_node"), 1),
    "decode_numa_node": 0,
    **dict.fromkeys(("prefill_tensor_parallel", "decode_tensor_parallel", "server_tensor_parallel"), 2),
    "server_instances": 3,
    "prefill_port": 31000,
    "decode_retraction_backup": "cpu_tensor",
    "decode_retraction_gb": 4,
    "transfer_backend": "mooncake",
    "worker_environment": {"NCCL_DEBUG": {"value": "INFO", "reason": "to see", "source": "NCCL's manual"}},
    "router_host": "127.0.0.2",
    "router_metrics_host": "127.0.0.2",
    "router_policy": "random",
    "router_clients": ["10.0.0.0/8"],
    "router_rate": 5,
    "max_answer_tokens": 100,
    "peer_networks": ["10.1.0.0/24"],
    "journal_gb": 16,
    "router_arguments": ["--log-level", "debug"],
    "router_environment": {"RUST_LOG": "debug"},
    "router_api_key_env": "KEY",
    "release": "sglang-0.5.17-cu130",
    "python": "3.12",
    "router": "smg",
    "torch_wheel": "ordinary",
    "patches": ["disagg-stop"],
    "more_patches": ["disagg-stop"],
    "package_index": "https://mirror.example.com/simple",
    "package_extra_indexes": ["https://mirror.example.com/simple"],
    "package_find_links": ["/srv/wheels"],
    "package_certificate": "/etc/ssl/mirror.pem",
    "package_wheelhouse": "/srv/wheels",
    "root_dir": "/srv/sglang-pd",
    "config_dir": "/srv/sglang-pd-etc",
    "state_dir": "/srv/sglang-pd-state",
    "service_user": "other",
    "restart_scope": "changed",
    "unit_options": {"UMask": {"value": "0027", "reason": "the group reads"}},
    "limit_memlock": "64G",
    "limit_nofile": 4096,
    "driver_version": "580.95.05",
    "driver_packages": ["nvidia-open-580"],
    "silenced_checks": {"pcie/acs/off": "accepted"},
    "minimum_free_disk_gb": 10.0,
    "failing_xids": [79],
    "kv_minimum_share": 0.5,
    "report_dir": "elsewhere",
    "bench_loads": ["64/8"],
    "bench_concurrency": [1],
    "bench_rates": [1.0],
    "bench_limits": "500/50",
    "alertmanager_config": "alerts.yml",
}  # fmt: skip
# What stands beside it, before as after.
BESIDE: dict[str, dict[str, object]] = {
    **{name: {"layout": "data_parallel"} for name in NAMES if name.startswith("server_")},
    **{name: {"layout": "single"} for name in ("server_gpus", "server_numa_node", "server_tensor_parallel")},
    "server_instances": {"layout": "data_parallel", "server_tensor_parallel": 2},
    "prefill_gpus": {"prefill_tensor_parallel": 2, "prefill_gpus": [4, 5], "decode_gpus": [0, 1, 2, 3]},
    "decode_gpus": {"decode_tensor_parallel": 2, "decode_gpus": [4, 5], "prefill_gpus": [0, 1, 2, 3]},
    "manage_driver": {"driver_version": "580.95.05"},
    "torch_wheel": {"release": "sglang-0.5.20-cpu", "model": "rehearsal-qwen2", "context_length": 1024,
                    "prefill_tensor_parallel": 1, "decode_tensor_parallel": 1},
    **{f"{role}_instances": {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2} for role in ("prefill", "decode")},
    **{f"{role}_numa_node": {"prefill_tensor_parallel": 2, "decode_tensor_parallel": 2} for role in ("prefill", "decode")},
    "decode_retraction_gb": {"decode_retraction_backup": "host_pool"},
    **{name: {"router": "smg"} for name in ("router_queue", "router_rate")},
    "router_queue_limit": {"router": "smg", "router_queue": 5},
}  # fmt: skip
# What a plan alone does not show: of one run, or about an environment that lies on the host.
ELSEWHERE = {
    "rollback", "rollback_reason", "unpin", "reprove",  # test_history.py, test_restarts.py
    "environment", "existing_python", "existing_router_python", "existing_paths",  # test_existing.py
    "patch_dir", "model_profiles",  # test_patches.py, test_derive.py
    "driver_repository", "driver_keyring",  # only together, see test_steps.py
    "grafana_repository", "grafana_keyring", "dcgm_repository", "dcgm_keyring",  # likewise, test_monitoring.py
    # only together, see test_render.py
    "router_tls_certificate", "router_tls_key", "router_tls_on_host", "router_api_key_before_env",
    # of hosts that serve together, see tests/plan/fleet
    "roles", "service", "service_address", "minimum_prefill", "minimum_decode",
    "minimum_server",
}  # fmt: skip
WORDS = {
    frozenset[str](): "nothing",
    frozenset({"router"}): "the router",
    frozenset({"prefill", "decode"}): "prefill and decode",
    frozenset({"server"}): "the whole servers",
    frozenset({"prefill", "decode", "router"}): "all",
    frozenset({"server", "router"}): "all",
}


def table() -> dict[str, str]:
    """Setting -> what restarts, as the page says."""
    rows = re.findall(r"^\| (`.*) \| ([a-z ]+) \|", (REPOSITORY / PAGE).read_text(), re.MULTILINE)
    said = [(name, what) for names, what in rows for name in re.findall(r"`([a-z_]+)`", names) if name in NAMES]
    assert len(said) == len(dict(said)), f"{PAGE} names a setting twice"
    return dict(said)


def other(name: str) -> object:
    """Another value of a setting than its default."""
    default = defaults()[name]
    if name in CHANGED:
        return CHANGED[name]
    if isinstance(default, bool):
        return not default
    assert isinstance(default, int | float), f"CHANGED in {__file__} needs another value of the setting {name}"
    return default / 2 if isinstance(default, float) else default + 1


@cache
def running(beside: str) -> dict[str, Running]:
    """The servers of a host that runs with these settings, given as repr makes them."""
    plan = catalogue_plan(ast.literal_eval(beside), hardware(TWO_SOCKETS))
    return {
        one.name: Running("active", "running", True, False, render.instance_files(plan, one).fingerprint)
        for one in plan.instances
    }


def restarted(running: Mapping[str, Running], after: Plan) -> str:
    """What a plan restarts of them."""
    wanted = {one.name: render.instance_files(after, one).fingerprint for one in after.instances}
    found = {name: running.get(name, ABSENT) for name in wanted}
    reasons = restarts(after.instances, wanted, found, after.settings)
    return WORDS[frozenset(one.role for one in after.instances if one.name in reasons)]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
def test_a_setting_restarts_what_the_table_says(name: str) -> None:
    beside = BESIDE.get(name, {})
    key = API_KEY if name == "router_api_key_env" else None
    after = catalogue_plan({**beside, name: other(name)}, hardware(TWO_SOCKETS), key)
    assert restarted(running(repr(beside)), after) == table().get(name, "nothing"), (
        f"the table of {PAGE} says of {name}"
    )
