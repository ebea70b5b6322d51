"""The settings of group_data as one typed object, checked before the first command on a host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from tasks.plan.errors import PlanError, nearest

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
Gigabytes = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
GpuList = Annotated[list[Annotated[int, Field(ge=0)]] | None, Field(min_length=1)]
# Paths stand in units and scripts as they are: nothing that systemd or a shell would read in another way.
AbsolutePath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_.+@:,=/-]*[A-Za-z0-9_.+@:,=-]$")]
Arguments = list[str]
# `--data python=3.12` arrives as a float.
Python = Annotated[Literal["auto", "3.11", "3.12"], BeforeValidator(lambda v: str(v) if isinstance(v, float) else v)]

# Keys of the host's data that belong to pyinfra: its connectors' and its global arguments (_sudo, ...).
PYINFRA_KEY = re.compile(r"^(_|ssh_|docker_|dockerssh_|chroot_|vagrant_|terraform_|fake_)")
VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Variable(BaseModel):
    """One environment variable with the reason why it is set and where that is known from."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: str
    reason: str = Field(min_length=1)
    source: str = Field(min_length=1)


class Settings(BaseModel):
    """One attribute per setting; group_data/all.py holds defaults, units and meanings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    release: str
    python: Python
    torch_wheel: Literal["cpu", "ordinary"]
    router: Literal["sglang-router", "smg"]
    package_index: str | None
    package_extra_indexes: list[str]
    package_find_links: list[str]
    package_certificate: AbsolutePath | None
    package_wheelhouse: AbsolutePath | None

    root_dir: AbsolutePath
    config_dir: AbsolutePath
    state_dir: AbsolutePath
    service_user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,30}$")]

    model: str
    model_dir: AbsolutePath | None
    model_hub: Annotated[str, Field(pattern=r"^https?://\S+$")] | None
    model_revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None
    context_length: Annotated[int, Field(ge=128)]

    prefill_instances: Count
    prefill_tensor_parallel: Count
    prefill_gpus: GpuList
    prefill_numa_node: Annotated[int, Field(ge=0)] | None
    prefill_port: Port
    prefill_bootstrap_port: Port
    prefill_dist_init_port: Port
    prefill_mem_fraction: Fraction
    prefill_chunked_prefill: Annotated[int, Field(ge=1)]
    prefill_cuda_graph: bool
    prefill_arguments: Arguments
    prefill_environment: dict[str, str]

    decode_instances: Count
    decode_tensor_parallel: Count
    decode_gpus: GpuList
    decode_numa_node: Annotated[int, Field(ge=0)] | None
    decode_port: Port
    decode_bootstrap_port: Port
    decode_dist_init_port: Port
    decode_mem_fraction: Fraction
    decode_cuda_graph_max_batch: Count
    decode_arguments: Arguments
    decode_environment: dict[str, str]

    speculative: bool
    pcie_ipc_allreduce: bool
    transfer_backend: Literal["nixl", "mooncake"]
    environment: dict[str, Variable]

    router_host: str
    router_port: Port
    router_metrics_host: str
    router_metrics_port: Port
    router_policy: Literal["cache_aware", "round_robin", "random", "power_of_two"]
    router_health_interval: Seconds
    router_health_failures: Count
    router_health_successes: Count
    router_breaker_seconds: Seconds
    router_api_key_env: str | None
    router_arguments: Arguments
    router_environment: dict[str, str]

    worker_ready_limit: Seconds
    router_ready_limit: Seconds
    warm_up_limit: Seconds
    answer_limit: Seconds
    stop_limit: Seconds
    restart_scope: Literal["pair", "changed"]
    start_on_boot: bool

    reserve_ports: bool
    disable_numa_balancing: bool
    gpu_persistence: bool
    limit_memlock: Annotated[str, Field(pattern=r"^(infinity|[0-9]+[KMGT]?)$")]
    limit_nofile: Annotated[int, Field(ge=1024)]

    minimum_free_disk_gb: Gigabytes | None
    minimum_memory_gb_per_gpu: Gigabytes
    minimum_cpus_per_gpu: Annotated[int, Field(ge=0)]
    minimum_shm_gb: Gigabytes
    gpu_load_percent: Annotated[int, Field(ge=1, le=100)]
    gpu_idle_memory_mib: Annotated[int, Field(ge=0)]
    maximum_corrected_sram_errors: Annotated[int, Field(ge=0)]
    maximum_corrected_dram_errors: Annotated[int, Field(ge=0)]
    failing_xids: list[Annotated[int, Field(ge=1)]]
    maximum_clock_skew_s: Seconds
    silenced_checks: dict[str, Annotated[str, Field(min_length=1)]]

    reprove: bool
    probe_limit: Annotated[int, Field(ge=10)]
    peer_minimum_gbps: Annotated[float, Field(ge=0)]
    kv_minimum_gbps: Annotated[float, Field(ge=0)]
    kv_minimum_share: Annotated[float, Field(ge=0, le=1)]
    kv_together_minimum_gbps: Annotated[float, Field(ge=0)]

    report_dir: Annotated[str, Field(min_length=1)] | None

    @field_validator(
        "minimum_free_disk_gb",
        "minimum_memory_gb_per_gpu",
        "minimum_shm_gb",
        "prefill_mem_fraction",
        "decode_mem_fraction",
        "peer_minimum_gbps",
        "kv_minimum_gbps",
        "kv_minimum_share",
        "kv_together_minimum_gbps",
        mode="before",
    )
    @classmethod
    def _whole_numbers_are_numbers(cls, value: object) -> object:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def of_role(self, role: str, name: str) -> Any:
        """The setting `name` of a role: of_role("prefill", "port") is prefill_port."""
        return getattr(self, f"{role}_{name}")


def load(data: Mapping[str, object]) -> Settings:
    """Settings from a host's merged data. Raises PlanError with one line for each fault."""
    known = list(Settings.model_fields)
    given = {key: value for key, value in data.items() if not PYINFRA_KEY.match(key)}
    lines = [
        f"unknown setting {key} = {given[key]!r}: it is not in group_data/all.py.{nearest(key, known)}"
        for key in sorted(given.keys() - set(known))
    ]
    try:
        settings = Settings.model_validate({key: value for key, value in given.items() if key in known})
    except ValidationError as error:
        lines += [_line(dict(fault), given) for fault in error.errors()]
        raise PlanError(*lines) from None
    lines += _contradictions(settings)
    if lines:
        raise PlanError(*lines)
    return settings


def _line(fault: Mapping[str, Any], given: Mapping[str, object]) -> str:
    name = str(fault["loc"][0])
    if fault["type"] == "missing" and len(fault["loc"]) == 1:
        return f"setting {name} is missing: group_data/all.py should hold its default"
    inside = "".join(f"[{part!r}]" for part in fault["loc"][1:] if part in _keys(given.get(name)))
    message = str(fault["msg"])
    message = message[:1].lower() + message[1:]
    return f"setting {name}{inside} = {given.get(name)!r}: {message}"


def _keys(value: object) -> list[object]:
    """What a location inside a setting may name: keys of a dictionary, positions of a list."""
    if isinstance(value, dict):
        return list(value) + [key for inner in value.values() for key in _keys(inner)] + ["value", "reason", "source"]
    return list(range(len(value))) if isinstance(value, list) else []


def _contradictions(settings: Settings) -> list[str]:
    """Faults that lie between settings, or in a value's content."""
    lines = []
    for scope in ("environment", "prefill_environment", "decode_environment", "router_environment"):
        for name, entry in getattr(settings, scope).items():
            value = entry.value if isinstance(entry, Variable) else entry
            written = f"{value}{entry.reason}{entry.source}" if isinstance(entry, Variable) else value
            if not VARIABLE.fullmatch(name):
                lines.append(f"setting {scope}: {name!r} is not a name of an environment variable")
            if "\n" in written or "\r" in written:
                lines.append(f"setting {scope}[{name!r}] holds a line break: one line per variable")
            if settings.transfer_backend == "nixl" and "expandable_segments:true" in value.lower().replace(" ", ""):
                lines.append(
                    f"setting {scope}[{name!r}] = {value!r}: expandable_segments breaks cuda_ipc under NIXL, "
                    "KV would move at 0.4 GB/s; leave it out"
                )
    if settings.package_wheelhouse is not None:
        others = [n for n in ("package_index", "package_extra_indexes", "package_find_links") if getattr(settings, n)]
        if others:
            lines.append(
                f"setting package_wheelhouse = {settings.package_wheelhouse!r} means that folder alone: "
                f"leave out {' and '.join(others)}"
            )
    for role in ("prefill", "decode"):
        gpus, instances, parallel = (settings.of_role(role, n) for n in ("gpus", "instances", "tensor_parallel"))
        if gpus is not None and len(gpus) != instances * parallel:
            lines.append(
                f"setting {role}_gpus names {len(gpus)} GPUs, but {role}_instances {instances} x "
                f"{role}_tensor_parallel {parallel} needs {instances * parallel}"
            )
        if gpus is not None and len(set(gpus)) != len(gpus):
            lines.append(f"setting {role}_gpus = {gpus}: a GPU is named twice")
    both = sorted(set(settings.prefill_gpus or []) & set(settings.decode_gpus or []))
    if both:
        lines.append(
            f"settings prefill_gpus and decode_gpus both name GPU {', '.join(map(str, both))}: give it to one role"
        )
    for name in ("router_host", "router_metrics_host"):
        host = getattr(settings, name)
        if host not in LOOPBACK and settings.router_api_key_env is None:
            lines.append(
                f"setting {name} = {host!r} listens beyond loopback: set router_api_key_env too, "
                "the name of a variable in your environment that holds the key"
            )
    return lines
