"""The settings of group_data as one typed object, checked before the first command on a host."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tasks.plan.errors import PlanError, nearest, without_passwords
from tasks.plan.settings import managed
from tasks.plan.settings.place import ALONE, ROUTER, Place
from tasks.plan.settings.questions import MATCH, Golden
from tasks.plan.settings.roles import (
    KINDS,
    PAIR,
    ROLES,
    WHOLE,
    Count,
    Decode,
    Port,
    Prefill,
    Role,
    Server,
    is_loopback,
)  # fmt: skip

Seconds = Annotated[int, Field(ge=1)]
Gigabytes = Annotated[float, Field(ge=0)]
# Paths stand in units and scripts as they are: nothing that systemd or a shell would read in another way.
PATH = r"^/[A-Za-z0-9_.+@:,=/-]*[A-Za-z0-9_.+@:,=-]$"
INTERPRETER = r"^/([A-Za-z0-9_.+@=-]+/)+bin/python[0-9.]*$|^/bin/python[0-9.]*$"
ONE_LINE = r"^[ -~]*$"
USER = r"^[a-z_][a-z0-9_-]{0,30}$"
SERVICE = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
SERVED_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"
URL = r"^https?://\S+$"
COMMIT = r"^[0-9a-f]{40}$"
BYTES = r"^(infinity|[0-9]+[KMGT]?)$"
DRIVER = r"^[0-9]{3}(\.[0-9]+){1,2}$"
PACKAGE = r"^[a-z0-9][a-z0-9+.-]+$"
LIMITS = r"^[1-9][0-9]*/[1-9][0-9]*$"
# What a user is told to write where a value does not match.
WORDS = {
    PATH: "write the whole path, from / on, with letters, digits and any of / _ . + @ : , = - and no / at its end",
    INTERPRETER: "write the path of its python, such as '/opt/conda/envs/sglang/bin/python3'",
    ONE_LINE: "write one line of plain ASCII",
    SERVICE: "write a name of letters, digits, dots, _ and -",
    USER: "write a name of a Linux user: lower case letters, digits, _ and -, 31 at most, no digit first",
    SERVED_NAME: "write letters, digits and any of . _ / : - behind the first one",
    URL: "write a URL, such as 'https://hub.example.com'",
    COMMIT: "write the whole hash of the commit, 40 digits 0-9 and a-f",
    BYTES: "write bytes, such as '64G', or 'infinity'",
    DRIVER: "write all of it, such as '580.95.05'",
    PACKAGE: "write the name of a Debian package alone",
    LIMITS: "write ms to the first token / ms between tokens, such as '450/40'",
    MATCH: "write 'contains', 'equals', 'regex' or 'words:3'",
}
AbsolutePath = Annotated[str, Field(pattern=PATH)]
Interpreter = Annotated[str, Field(pattern=INTERPRETER)]
Network = Annotated[str, AfterValidator(lambda text: str(ipaddress.ip_network(text)))]


def _loads(value: object) -> object:
    """`--data NAME=64/8,512/64` arrives as text, `--data NAME=64` as a number. Raises ValueError for half a load."""
    loads = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    for load in loads if isinstance(loads, list) else []:
        if not re.fullmatch(r"[1-9][0-9]*/[1-9][0-9]*", str(load)):
            raise ValueError(f"{load} is no load: write tokens in / tokens out of a request, such as 64/8")
    return loads


Loads = Annotated[list[str], Field(min_length=1), BeforeValidator(_loads)]
# `--data NAME=1,16` arrives as text, `--data NAME=1` as a number.
Counts = Annotated[
    list[Count],
    BeforeValidator(
        lambda v: [int(n) if n.isdecimal() else n for n in v.split(",") if v] if isinstance(v, str)
        else [v] if isinstance(v, int) else v
    ),
]  # fmt: skip
Rates = Annotated[
    list[Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)]],
    BeforeValidator(
        lambda v: [float(n) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", n) else n for n in v.split(",") if v]
        if isinstance(v, str) else [v] if isinstance(v, int | float) else v
    ),
]  # fmt: skip
# `--data python=3.12` arrives as a float.
Python = Annotated[
    Literal["auto", "3.11", "3.12", "3.13"], BeforeValidator(lambda v: str(v) if isinstance(v, float) else v)
]

# Keys of the host's data that belong to pyinfra: its connectors' and its global arguments (_sudo, ...).
PYINFRA_KEY = re.compile(r"^(_|ssh_|docker_|dockerssh_|chroot_|vagrant_|terraform_|fake_)")
VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class Variable(BaseModel):
    """One environment variable with the reason why it is set and where that is known from."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: str
    reason: str = Field(min_length=1)
    source: str = Field(min_length=1)


class UnitOption(BaseModel):
    """What a unit says in the place of ours, with the reason for it. value None: nothing, so systemd's default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Annotated[str, Field(pattern=ONE_LINE)] | None
    reason: str = Field(min_length=1)


class Settings(BaseModel):
    """One attribute per setting, those of a role in its own; group_data/all.py holds defaults, units and meanings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    release: str
    environment: Literal["release", "existing"]
    existing_python: Interpreter | None
    existing_router_python: Interpreter | None
    existing_paths: list[AbsolutePath]
    python: Python
    torch_wheel: Literal["cpu", "ordinary"]
    router: Literal["sglang-router", "smg"]
    rollback: bool
    rollback_reason: str
    unpin: bool
    wait: bool
    allow_older: bool
    patches: list[str] | None
    more_patches: list[str]
    patch_dir: Annotated[str, Field(min_length=1)] | None
    package_index: str | None
    package_extra_indexes: list[str]
    package_find_links: list[str]
    package_certificate: AbsolutePath | None
    package_wheelhouse: AbsolutePath | None

    root_dir: AbsolutePath
    config_dir: AbsolutePath
    state_dir: AbsolutePath
    service_user: Annotated[str, Field(pattern=USER)]

    model: str
    model_dir: AbsolutePath | None
    model_profiles: Annotated[str, Field(min_length=1)] | None
    served_name: Annotated[str, Field(pattern=SERVED_NAME)] | None
    model_hub: Annotated[str, Field(pattern=URL)] | None
    model_revision: Annotated[str, Field(pattern=COMMIT)] | None
    context_length: Annotated[int, Field(ge=128)]
    questions: Annotated[list[Golden], Field(min_length=1)] | None
    chat_template_kwargs: dict[str, Any] | None

    layout: Literal["pd", "single", "data_parallel"]

    asked_roles: Annotated[list[Literal["prefill", "decode", "server", "router"]], Field(min_length=1)] | None = Field(
        alias="roles"
    )
    service: Annotated[str, Field(pattern=SERVICE)]
    service_address: Annotated[str, Field(min_length=1)] | None
    minimum_prefill: Count | None
    minimum_decode: Count | None
    minimum_server: Count | None
    place: Place = Field(default=ALONE, exclude=True)  # derived from the whole inventory: no setting

    prefill: Prefill
    decode: Decode
    server: Server

    speculative: bool
    pcie_ipc_allreduce: bool
    kv_checksum: bool
    transfer_backend: Literal["nixl", "mooncake"]
    peer_networks: list[Network]
    worker_environment: dict[str, Variable]

    router_host: str
    router_port: Port
    router_tls_certificate: Annotated[str, Field(min_length=1)] | None
    router_tls_key: Annotated[str, Field(min_length=1)] | None
    router_tls_on_host: bool
    router_metrics_host: str
    router_metrics_port: Port
    router_clients: list[Network]
    router_policy: Literal["cache_aware", "round_robin", "random", "power_of_two"]
    router_health_interval: Seconds
    router_health_failures: Count
    router_health_successes: Count
    router_breaker_seconds: Seconds
    router_max_requests: Count
    router_queue: Annotated[int, Field(ge=0)]
    router_queue_limit: Seconds
    router_rate: Count | None
    router_request_limit: Seconds
    router_body_limit_mib: Count
    max_answer_tokens: Count | None
    router_api_key_env: str | None
    router_api_key_before_env: str | None
    router_arguments: list[str]
    router_environment: dict[str, str]

    worker_ready_limit: Seconds
    router_ready_limit: Seconds
    warm_up_limit: Seconds
    answer_limit: Seconds
    stop_limit: Seconds
    restart_scope: Literal["pair", "changed"]
    end_strays: bool
    start_on_boot: bool
    watchdog: bool
    watchdog_interval: Annotated[int, Field(ge=1, le=60)]
    watchdog_limit: Annotated[int, Field(ge=30)]
    watchdog_restarts: Annotated[int, Field(ge=1, le=4)]

    unit_options: dict[str, UnitOption]

    reserve_ports: bool
    journal_gb: Count | None
    disable_numa_balancing: bool
    gpu_persistence: bool
    limit_memlock: Annotated[str, Field(pattern=BYTES)]
    limit_nofile: Annotated[int, Field(ge=1024)]

    manage_driver: bool
    driver_version: Annotated[str, Field(pattern=DRIVER)] | None
    driver_packages: Annotated[list[Annotated[str, Field(pattern=PACKAGE)]], Field(min_length=1)]
    driver_repository: str | None
    driver_keyring: Annotated[str, Field(min_length=1)] | None
    allow_reboot: bool
    reboot_limit: Seconds

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
    kv_usual_share: Annotated[float, Field(ge=0, le=1)]
    kv_together_minimum_gbps: Annotated[float, Field(ge=0)]

    monitoring: bool
    prometheus_port: Port
    prometheus_retention_days: Count
    prometheus_retention_gb: Count
    alertmanager_port: Port
    alertmanager_config: Annotated[str, Field(min_length=1)] | None
    grafana_repository: str | None
    grafana_keyring: Annotated[str, Field(min_length=1)] | None
    grafana_port: Port
    dcgm_repository: str | None
    dcgm_keyring: Annotated[str, Field(min_length=1)] | None
    dcgm_port: Port
    node_exporter_port: Port
    figures_port: Port

    report_dir: Annotated[str, Field(min_length=1)] | None
    full_diff: bool

    bench_loads: Loads
    bench_concurrency: Counts
    bench_rates: Rates
    bench_rate_seconds: Seconds
    bench_limits: Annotated[str, Field(pattern=LIMITS)]
    bench_requests: Count
    bench_repeats: Count
    bench_limit: Seconds

    @property
    def roles(self) -> dict[str, Role]:
        """Those of the layout that this host plays, by name, in the order of the plan."""
        of_layout: dict[str, tuple[Role, ...]] = {
            "pd": (self.prefill, self.decode),
            "single": (self.server.model_copy(update={"instances": 1}),),
            "data_parallel": (self.server,),
        }
        return {role.name: role for role in of_layout[self.layout] if self.place.plays(role.name)}

    @property
    def serves(self) -> bool:
        """Whether this host has a server, and not the router alone."""
        return bool(self.roles)

    @property
    def routes(self) -> bool:
        """Whether this host has a router."""
        return self.place.plays(ROUTER)

    def minimum(self, role: str) -> int:
        """How many servers of a role, of all hosts together, the router of several hosts waits for."""
        return self.minimums[role] or 1

    @property
    def minimums(self) -> dict[str, int | None]:
        """Role -> its minimum, as group_data says it."""
        return {"prefill": self.minimum_prefill, "decode": self.minimum_decode, WHOLE: self.minimum_server}

    @property
    def router_ports(self) -> dict[str, int]:
        """Setting -> TCP port; none where the router is another host's."""
        return (
            {}
            if not self.routes
            else {"router_port": self.router_port, "router_metrics_port": self.router_metrics_port}
        )

    @property
    def monitoring_ports(self) -> dict[str, int]:
        """Setting -> TCP port of what watches the service; {} where nothing does."""
        every = ("prometheus_port", "alertmanager_port", "node_exporter_port", "figures_port")
        more = [f"{name}_port" for name in ("grafana", "dcgm") if getattr(self, f"{name}_repository") is not None]
        names = (*every, *more) if self.monitoring else ()
        return {name: getattr(self, name) for name in names}


SINGLE = [str(f.alias or name) for name, f in Settings.model_fields.items() if name not in (*ROLES, "place")]
ROUTERS = ("sglang-router", "smg")  # of one host, of several: the second takes servers that come and go
NAMES = [*SINGLE, *(name for kind in KINDS for name in kind.settings())]  # as group_data has them


def load(data: Mapping[str, object], place: Place = ALONE) -> Settings:
    """Settings from a host's merged data, for its place among others. Raises PlanError with one line for each fault."""
    return _loaded(data, place, _contradictions)


def load_alone(data: Mapping[str, object]) -> Settings:
    """For a part that plans nothing, whoever the host serves with. Nobody asks where it stands among them, so nothing
    is said of servers that it may not have: prefill and decode of two hosts may name the same GPUs and ports."""
    return _loaded(data, ALONE, _path_faults)


def _loaded(data: Mapping[str, object], place: Place, judge: Callable[[Settings], list[str]]) -> Settings:
    given = {key: value for key, value in data.items() if not PYINFRA_KEY.match(key)}
    lines = [
        f"unknown setting {key} = {given[key]!r}: it is not in group_data/all.py.{nearest(key, NAMES)}"
        for key in sorted(given.keys() - set(NAMES))
    ]
    roles = {
        kind.name: {name: given[name] for name in kind.settings() if name in given}
        | {f"{kind.name}_address": place.address}
        for kind in KINDS
    }
    single = {name: given[name] for name in SINGLE if name in given}
    if "router" in given and given["router"] is None:
        single["router"] = ROUTERS[not place.alone]
    try:
        settings = Settings.model_validate({**single, **roles, "place": place})
    except ValidationError as error:
        lines += [_line(dict(fault), given) for fault in error.errors()]
        raise PlanError(*lines) from None
    lines += judge(settings)
    if lines:
        raise PlanError(*lines)
    return settings


def _line(fault: Mapping[str, Any], given: Mapping[str, object]) -> str:
    name, *inner = fault["loc"][1:] if fault["loc"][0] in ROLES else fault["loc"]
    if fault["type"] == "missing" and not inner:
        return f"setting {name} is missing: group_data/all.py should hold its default"
    inside = "".join(f"[{part!r}]" for part in inner if part in _keys(given.get(name)))
    pattern = fault.get("ctx", {}).get("pattern")
    message = WORDS[pattern] if pattern else str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return without_passwords(f"setting {name}{inside} = {given.get(name)!r}: {message}")


def _keys(value: object) -> list[object]:
    """What a location inside a setting may name: keys of a dictionary, positions of a list."""
    if isinstance(value, dict):
        return list(value) + [key for inner in value.values() for key in _keys(inner)] + ["value", "reason", "source"]
    return list(range(len(value))) if isinstance(value, list) else []


# Folders that no setting may take for itself, nor what lies below them.
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev", "/run", "/tmp", "/boot", "/root", "/bin", "/sbin", "/lib", "/lib64")
# Those whose own subfolders are the system's too.
SHARED_FOLDERS = ("/etc", "/home", "/usr", "/usr/local", "/var", "/var/lib", "/var/log", "/var/cache", "/var/spool")


def _path_faults(settings: Settings) -> list[str]:
    """Folders that are another one's, or that would put what root runs into a folder of the service user."""
    lines = []
    for name in ("root_dir", "config_dir", "state_dir"):
        path = getattr(settings, name)
        parts = path.split("/")[1:]
        below = next((folder for folder in SYSTEM_FOLDERS if _within(path, folder)), None)
        if not all(parts) or not {".", ".."}.isdisjoint(parts):
            lines.append(f"setting {name} = {path!r}: write it without '.', '..' and double slashes")
        elif below:
            lines.append(f"setting {name} = {path!r} lies in {below}, which is the system's own: name another folder")
        elif len(parts) == 1 or path in SHARED_FOLDERS:
            lines.append(
                f"setting {name} = {path!r} is a folder that others use too, and would be given away: "
                f"name one for this service alone, such as {path}/sglang-pd"
            )
    for name in ("root_dir", "config_dir"):
        if not lines and _within(getattr(settings, name), settings.state_dir):
            lines.append(
                f"setting {name} = {getattr(settings, name)!r} lies in state_dir = {settings.state_dir!r}, which the "
                "service user may change: what root runs must lie elsewhere"
            )
    if settings.root_dir == settings.config_dir:
        lines.append(f"settings root_dir and config_dir are both {settings.root_dir!r}: give each its own folder")
    if settings.service_user == "root":
        lines.append("setting service_user = 'root': what strangers send is parsed by it; name another user")
    return lines


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _contradictions(settings: Settings) -> list[str]:
    """Faults that lie between settings, or in a value's content."""
    lines = _path_faults(settings)
    if settings.rollback and settings.unpin:
        lines.append(
            "settings rollback and unpin are both True: one goes back, the other undoes that; give one of them"
        )
    if settings.environment == "existing" and settings.existing_python is None:
        lines.append('setting environment = "existing": set existing_python too, its interpreter on the host')
    for name in ("patches", "more_patches"):
        if settings.environment == "existing" and getattr(settings, name):
            lines.append(
                f'setting {name} = {getattr(settings, name)!r}: nothing is placed into environment = "existing"; '
                "leave it out"
            )
    for name in ("existing_python", "existing_router_python", "existing_paths"):
        if settings.environment == "release" and getattr(settings, name):
            lines.append(f'setting {name} is read with environment = "existing" only: set that, or leave {name} out')
    every_role = (settings.prefill, settings.decode, settings.server)
    environments: dict[str, Mapping[str, str | Variable]] = {
        "worker_environment": settings.worker_environment,
        **{f"{role.name}_environment": role.environment for role in every_role},
        "router_environment": settings.router_environment,
    }
    for scope, environment in environments.items():
        for name, entry in environment.items():
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
    if settings.layout == "data_parallel" and settings.server.instances < 2:
        lines.append(
            'setting layout = "data_parallel" with server_instances = 1: one server is layout "single", '
            "else set server_instances to 2 or more"
        )
    if not settings.bench_concurrency and not settings.bench_rates:
        lines.append("settings bench_concurrency and bench_rates are both empty: name requests in flight, or a rate")
    lines += _fleet_faults(settings)
    roles = tuple(settings.roles.values())
    for role in roles:
        wanted, gpus = role.instances * role.tensor_parallel, role.gpus
        asked = "layout single has" if settings.layout == "single" else f"{role.name}_instances"
        if gpus is not None and len(gpus) != wanted:
            lines.append(
                f"setting {role.name}_gpus names {len(gpus)} GPUs, but {asked} {role.instances} x "
                f"{role.name}_tensor_parallel {role.tensor_parallel} needs {wanted}: name as many"
            )
        if gpus is not None and len(set(gpus)) != len(gpus):
            lines.append(f"setting {role.name}_gpus = {gpus}: a GPU is named twice, name each once")
    for one, other in combinations(roles, 2):
        if both := sorted(set(one.gpus or []) & set(other.gpus or [])):
            lines.append(
                f"settings {one.name}_gpus and {other.name}_gpus both name GPU {', '.join(map(str, both))}: "
                "give it to one role"
            )
    lines += managed.variables("worker_environment", None, settings.worker_environment)
    for role in roles:
        lines += managed.arguments(f"{role.name}_arguments", role.name, role.arguments)
        lines += managed.variables(f"{role.name}_environment", role.name, role.environment)
    lines += managed.arguments("router_arguments", "router", settings.router_arguments)
    lines += managed.variables("router_environment", "router", settings.router_environment)
    if settings.model_hub is not None and "@" in settings.model_hub:  # not shown: it may be a password
        lines.append("setting model_hub holds credentials, and any user of the host would see them: name one without")
    for name, given in (("router_queue", settings.router_queue), ("router_rate", settings.router_rate)):
        if given and settings.router != "smg":
            lines.append(
                f"setting {name} = {given}: {settings.router} cannot do that (docs/limits.md says what it does); leave "
                'it out, or set router = "smg"'
            )
    if settings.router_api_key_before_env is not None and settings.router_api_key_env is None:
        lines.append("setting router_api_key_before_env needs router_api_key_env, the key that comes after it")
    elif settings.router_api_key_before_env is not None and settings.router != "smg":
        lines.append(
            f"setting router_api_key_before_env: {settings.router} takes one key; leave it out and change the key in "
            'one step, or set router = "smg"'
        )
    lines += _tls_faults(settings)
    lines += _port_clashes(settings)
    lines += _driver_contradictions(settings) + _repository_faults(settings)
    for name in ("router_host", "router_metrics_host"):
        host = getattr(settings, name)
        if not is_loopback(host) and settings.router_api_key_env is None:
            lines.append(
                f"setting {name} = {host!r} listens beyond loopback: set router_api_key_env too, "
                "the name of a variable in your environment that holds the key"
            )
    return lines


def _fleet_faults(settings: Settings) -> list[str]:
    """What one host alone has no use for, and what several cannot do."""
    lines = []
    played = settings.place.roles or ()
    if settings.layout == "pd" and WHOLE in played:
        lines.append(
            'setting layout = "pd", but this host plays server: set layout = "single" (or "data_parallel", several on '
            "each host) for every host of its service"
        )
    if settings.layout != "pd" and (split := [role for role in PAIR if role in played]):
        lines.append(
            f"setting layout = {settings.layout!r}, but this host plays {' and '.join(split)}: put it into the group "
            'server instead, or set layout = "pd"'
        )
    if settings.place.alone:
        return lines + [
            f"setting minimum_{role} = {value}: this host serves alone, and its router waits for every server; leave "
            "it out"
            for role, value in settings.minimums.items()
            if value is not None
        ]
    if settings.router != ROUTERS[True]:
        lines.append(
            f'setting router = {settings.router!r}: it takes no servers that come and go; set router = "smg" for hosts '
            "that serve together, or leave it out"
        )
    return lines


def _tls_faults(settings: Settings) -> list[str]:
    files = {name: getattr(settings, name) for name in ("router_tls_certificate", "router_tls_key")}
    lines = [
        f"setting {name} is missing: TLS needs certificate and key, set both or neither"
        for name, file in files.items()
        if file is None and any(files.values())
    ]
    if settings.router_tls_on_host and not any(files.values()):
        lines.append("setting router_tls_on_host = True names no file: set router_tls_certificate and router_tls_key")
    if settings.router_tls_on_host:
        lines += [
            f"setting {name} = {file!r}: with router_tls_on_host it is a path on the host, from / on, in plain letters"
            for name, file in files.items()
            if file is not None and not re.fullmatch(PATH, file)
        ]
    return lines


def _port_clashes(settings: Settings) -> list[str]:
    """Ports of one host that two servers would take, or that do not exist."""
    wanted = [
        (role.server(number), setting, port)
        for role in settings.roles.values()
        for number in range(role.instances)
        for setting, port in role.ports(number).items()
    ]
    wanted += [("router", setting, port) for setting, port in settings.router_ports.items()]
    wanted += [("monitoring", setting, port) for setting, port in settings.monitoring_ports.items()]
    taken: dict[int, tuple[str, str]] = {}
    lines = []
    for name, setting, port in wanted:
        if port > 65535:
            lines.append(f"{name} would take port {port} ({setting}): ports end at 65535, set a lower one")
        elif port in taken:
            other, named = taken[port]
            lines.append(
                f"port {port} is asked for twice: by {other} ({named}) and by {name} ({setting}); give one of them "
                "another"
            )
        else:
            taken[port] = (name, setting)
    return lines


def _driver_contradictions(settings: Settings) -> list[str]:
    needs = 'setting manage_driver = True needs driver_version, such as "580.95.05": name the one to pin'
    return [needs] if settings.manage_driver and settings.driver_version is None else []


def _repository_faults(settings: Settings) -> list[str]:
    unsigned = {"driver": "no kernel module comes from an unsigned source"}
    lines = []
    for name in ("driver", "grafana", "dcgm"):
        repository, keyring = getattr(settings, f"{name}_repository"), getattr(settings, f"{name}_keyring")
        if repository is not None and keyring is None:
            why = unsigned.get(name, "nothing comes from an unsigned source")
            lines.append(f"setting {name}_repository needs {name}_keyring: {why}")
        if repository is None and keyring is not None:
            lines.append(f"setting {name}_keyring is for {name}_repository, which is not set: leave it out")
        if repository is None:
            continue
        words = repository.split()
        flat = [word.endswith("/") for word in words[1:2]] == [True]
        if "@" in repository:  # not shown: what stands before it may be a password
            lines.append(f"setting {name}_repository holds credentials: write them to /etc/apt/auth.conf.d on the host")
        elif not re.match(r"[a-z+]+:/", repository) or (len(words) != 2 if flat else len(words) < 3):
            lines.append(
                f"setting {name}_repository = {repository!r}: "
                'write "URI SUITE COMPONENT...", or "URI PATH/" for a flat one'
            )
    return lines
