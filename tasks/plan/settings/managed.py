"""What the playbook itself tells servers and router: arguments and variables that a user may not give past a setting.

A second --host would win over ours in silence, and the gates, the router and the proof would go on with the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Table = dict[tuple[str, ...], str]  # names of an option -> what to do instead

# The key itself, in any spelling: argparse takes beginnings of options too.
_KEY = re.compile(r"--([a-z-]+-)?api-k")
_OF_MODEL = "the model's profile says it"
_CACHES = "caches lie below state_dir, one folder for each release"

# Of SGLang's server; {role}: prefill, decode or server.
_SERVER: Table = {
    ("--model-path", "--model"): "use the settings model and model_dir",
    ("--served-model-name", "--page-size", "--kv-cache-dtype"): _OF_MODEL,
    ("--tp-size", "--tensor-parallel-size", "--tp"): "use {role}_tensor_parallel",
    ("--base-gpu-id",): "use {role}_gpus",
    ("--numa-node",): "use {role}_numa_node",
    ("--host",): "servers listen where the plan puts them, clients ask the router: use router_host",
    ("--port",): "use {role}_port",
    ("--dist-init-addr", "--nccl-init-addr"): "use {role}_dist_init_port",
    ("--mem-fraction-static",): "use {role}_mem_fraction",
    ("--context-length",): "use context_length",
    ("--disaggregation-mode",): "use layout",
    ("--disaggregation-transfer-backend",): "use transfer_backend",
    ("--enable-metrics",): "it is always given",
    ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-keyfile-password"): (
        "the router asks servers by http; for clients use router_tls_certificate"
    ),
    ("--config",): "a file could say again what the settings say: name its options here",
}
_CHUNKED: Table = {("--chunked-prefill-size",): "use {role}_chunked_prefill"}
_DECODE: Table = {
    ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"): "use {role}_cuda_graph_max_batch",
}
_OF_ROLE: dict[str, Table] = {
    "prefill": {
        **_SERVER,
        **_CHUNKED,
        ("--cuda-graph-backend-prefill",): "use prefill_cuda_graph",
        ("--disaggregation-bootstrap-port",): "use {role}_bootstrap_port",
    },
    "decode": {
        **_SERVER,
        **_DECODE,
        ("--disaggregation-bootstrap-port",): "use {role}_bootstrap_port",
        ("--disaggregation-decode-retraction-backup",): "use decode_retraction_backup",
        ("--hicache-size",): "use decode_retraction_gb",
    },
    "server": {
        **_SERVER,
        **_CHUNKED,
        **_DECODE,
        ("--cuda-graph-backend-prefill",): "use server_prefill_cuda_graph",
    },
    "router": {
        ("--host",): "use router_host",
        ("--port",): "use router_port",
        ("--prometheus-host",): "use router_metrics_host",
        ("--prometheus-port",): "use router_metrics_port",
        ("--policy",): "use router_policy",
        ("--pd-disaggregation", "--worker-urls", "--prefill", "--decode"): "use layout",
        ("--health-check-interval-secs",): "use router_health_interval",
        ("--health-failure-threshold",): "use router_health_failures",
        ("--health-success-threshold",): "use router_health_successes",
        ("--cb-timeout-duration-secs",): "use router_breaker_seconds",
        ("--worker-startup-timeout-secs",): "use worker_ready_limit",
        ("--max-concurrent-requests",): "use router_max_requests",
        ("--queue-size",): "use router_queue",
        ("--queue-timeout-secs",): "use router_queue_limit",
        ("--rate-limit-tokens-per-second",): "use router_rate",
        ("--request-timeout-secs",): "use router_request_limit",
        ("--max-payload-size",): "use router_body_limit_mib",
        ("--tls-cert-path",): "use router_tls_certificate",
        ("--tls-key-path",): "use router_tls_key",
        ("--mini-lb",): "that router asks nobody for a key: leave it out",
    },
}

# Variable of a server -> what to do instead.
_VARIABLES = {
    "CUDA_DEVICE_ORDER": "it is always PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES": "use {role}_gpus",
    "SGLANG_HOST_IP": "it is where the plan puts the server",
    "HF_HOME": _CACHES,
    "HOME": _CACHES,
    "XDG_CACHE_HOME": _CACHES,
    "TORCHINDUCTOR_CACHE_DIR": _CACHES,
    "TRITON_CACHE_DIR": _CACHES,
    "TVM_FFI_CACHE_DIR": _CACHES,
    "FLASHINFER_WORKSPACE_BASE": _CACHES,
    "SGLANG_MAX_NEW_TOKENS_LIMIT": "use max_answer_tokens",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "use pcie_ipc_allreduce",
}
# Of every process: they would lead the launch script elsewhere.
_OF_LAUNCH = dict.fromkeys(("PD_RELEASE", "PD_ENVIRONMENT", "PD_SECRET"), "the launch script reads it")


def arguments(setting: str, role: str, words: Iterable[str]) -> list[str]:
    """A line for each word of a setting *_arguments that the playbook gives itself. Values are never shown."""
    table = {name: instead for names, instead in _OF_ROLE[role].items() for name in names}
    lines = []
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        if _KEY.match(option):
            lines.append(
                f"setting {setting} holds {option}: any user of the host reads arguments; the key that clients must "
                "send comes by router_api_key_env"
            )
        elif option in table:
            lines.append(f"setting {setting} holds {option}: {table[option].format(role=role)}")
    return lines


def variables(setting: str, role: str | None, names: Iterable[str]) -> list[str]:
    """A line for each variable in a setting *_environment that the playbook sets itself. role None: of every server."""
    table = _OF_LAUNCH if role == "router" else {**_OF_LAUNCH, **_VARIABLES}
    return [
        f"setting {setting} holds {name}: {table[name].format(role=role or 'prefill')}"
        for name in names
        if name in table
    ]
