"""The servers of a host: role, GPUs, ports, arguments, environment. Everything else reads them from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.plan.model.profile import ModelProfile
from tasks.plan.release.manifest import Release
from tasks.plan.service import limits, network, retraction
from tasks.plan.service.paths import Paths, unit_of
from tasks.plan.service.placement import Placement
from tasks.plan.settings.place import ROUTER
from tasks.plan.settings.roles import LOOPBACK, PAIR, PORT_STEP, Decode, Role, at
from tasks.plan.settings.settings import Settings

# What `python -m` runs; the second is what `smg launch` runs. smg 1.13.0 took every option that the plan passes.
ROUTER_MODULES = {"sglang-router": "sglang_router.launch_router", "smg": "smg.launch_router"}


# The router asks each server every two seconds, the watchdog through /generate: without this, most of the journal of a
# quiet service are such lines.
# What fails is told all the same: by pd-gate while a server starts, by the router later.
QUIET = ("--uvicorn-access-log-exclude-prefixes", "/health", "/metrics", "/generate")


@dataclass(frozen=True)
class Variable:
    """A line of an environment file with the reason for it, "" where the name says it."""

    name: str
    value: str
    reason: str = ""


@dataclass(frozen=True)
class Instance:
    """One process of the service, as systemd runs it."""

    name: str  # prefill, decode, server, router; prefill-0, prefill-1 where there are several
    role: str
    title: str  # for people: "SGLang prefill (GPU 0-3, NUMA node 0)"
    address: str  # where it is reached
    port: int
    ports: tuple[tuple[int, str], ...]  # every port it takes, with the setting that says so
    bootstrap_port: int | None  # None: it runs no bootstrap server
    module: str  # what `python -m` runs
    interpreter: str  # below the release: "env/bin/python" or "router/bin/python"
    arguments: tuple[tuple[str, ...], ...]  # one line of the launch script each
    environment: tuple[Variable, ...]
    placement: Placement | None  # None for the router
    scheme: str = "http"

    @property
    def unit(self) -> str:
        return unit_of(self.name)

    @property
    def part(self) -> str:
        """The environment of the release that it runs in: "env" or "router"."""
        return self.interpreter.partition("/")[0]

    @property
    def package(self) -> str:
        """What `import` finds its module in."""
        return self.module.partition(".")[0]

    @property
    def url(self) -> str:
        return f"{self.scheme}://{at(self.address, self.port)}"

    @property
    def bootstrap_url(self) -> str | None:
        return f"http://{self.bootstrap_address}" if self.bootstrap_address else None

    @property
    def bootstrap_address(self) -> str | None:
        return at(self.address, self.bootstrap_port) if self.bootstrap_port else None

    @property
    def gpus(self) -> tuple[int, ...]:
        return self.placement.gpus if self.placement else ()

    @property
    def is_worker(self) -> bool:
        return self.placement is not None

    @property
    def words(self) -> list[str]:
        """The arguments as the process gets them, the API key aside."""
        return [word for line in self.arguments for word in line]

    @property
    def binding(self) -> tuple[str, ...]:
        """The command that binds CPUs and memory, in front of the server; () where nothing is bound."""
        if self.placement is None or not self.placement.numa_nodes:
            return ()
        nodes = self.placement.nodes
        return ("numactl", f"--cpunodebind={nodes}", f"--membind={nodes}")


@dataclass(frozen=True)
class Remote:
    """A server of another host, as the router reaches it."""

    name: str  # "decode@gpu-2"
    host: str
    role: str
    address: str
    port: int
    bootstrap_port: int | None

    @property
    def url(self) -> str:
        return f"http://{at(self.address, self.port)}"


Served = Instance | Remote


def workers(
    settings: Settings, release: Release, profile: ModelProfile, placements: tuple[Placement, ...], paths: Paths
) -> tuple[Instance, ...]:
    """The servers of the layout, prefill first."""
    return tuple(_worker(placement, settings, release, profile, paths) for placement in placements)


def kv_pairs(instances: Iterable[Instance]) -> list[tuple[Instance, Instance]]:
    """(prefill, decode): every two servers between which KV moves; none between whole servers."""
    every = tuple(instances)
    return [(source, target) for source in every for target in every if (source.role, target.role) == PAIR]


def goes_with(instances: Iterable[Instance]) -> dict[str, Instance]:
    """Prefill server by name -> the decode server that it starts and ends with: where every prefill server writes to
    one and the same.

    A prefill server maps the KV cache of decode (cuda_ipc), and as long as it lives the mapping keeps that memory, also
    after decode has ended: a decode server that came back alone found 55 GB of its GPU taken and sized its KV cache to
    half (SGLang 0.5.16, NIXL 1.5.1, UCX 1.23 on H200).
    """
    pairs = kv_pairs(instances)
    lone = len({target.name for _, target in pairs}) == 1
    return {source.name: target for source, target in pairs} if lone else {}


def router(settings: Settings, release: Release, served: tuple[Served, ...], paths: Paths) -> Instance:
    """The router in front of every worker."""
    tls = paths.executed_tls
    arguments = [
        *(_to_workers(served) if settings.place.alone else _to_file(settings, paths)),
        ("--policy", settings.router_policy),
        *_policy_of_decode(settings),
        ("--host", settings.router_host),
        ("--port", str(settings.router_port)),
        ("--prometheus-host", settings.router_metrics_host),
        ("--prometheus-port", str(settings.router_metrics_port)),
        ("--health-check-interval-secs", str(settings.router_health_interval)),
        ("--health-failure-threshold", str(settings.router_health_failures)),
        ("--health-success-threshold", str(settings.router_health_successes)),
        ("--cb-timeout-duration-secs", str(settings.router_breaker_seconds)),
        ("--worker-startup-timeout-secs", str(settings.worker_ready_limit)),
        *limits.arguments(settings, release.router),
        *([("--tls-cert-path", tls), ("--tls-key-path", tls)] if settings.router_tls_certificate else []),
        *_lines(settings.router_arguments),
    ]
    return Instance(
        name=ROUTER,
        role=ROUTER,
        title=f"SGLang router (port {settings.router_port})",
        address=LOOPBACK if settings.router_host in ("0.0.0.0", "::") else settings.router_host,
        port=settings.router_port,
        ports=tuple((port, setting) for setting, port in settings.router_ports.items()),
        bootstrap_port=None,
        module=ROUTER_MODULES[release.router],
        interpreter=release.interpreter("router"),
        arguments=tuple(arguments),
        environment=(
            *_of_existing(release, paths),
            *(Variable(name, value) for name, value in sorted(settings.router_environment.items())),
        ),
        placement=None,
        scheme="https" if settings.router_tls_certificate else "http",
    )


def _policy_of_decode(settings: Settings) -> list[tuple[str, ...]]:
    """Decode keeps no prefix cache, so a router that looks for one sends the same prompt to the same server again.

    Tried with smg 1.13.0 and two of decode: 24 different questions, one after the other, all went to one of them; when
    its host lost power a request was retried there five times and failed, beside a decode server that was ready.
    """
    return (
        [("--decode-policy", "round_robin")]
        if (settings.layout, settings.router_policy) == ("pd", "cache_aware")
        else []
    )


def _to_file(settings: Settings, paths: Paths) -> list[tuple[str, ...]]:
    """The router's list of workers, in a file that it looks at again and again."""
    return [
        *([("--pd-disaggregation",)] if settings.layout == "pd" else []),
        ("--discovery-provider", "file"),
        ("--discovery-file", paths.workers),
        ("--discovery-check-interval-secs", "2"),
    ]


def _to_workers(served: tuple[Served, ...]) -> list[tuple[str, ...]]:
    """The router's list of workers, fixed as long as it runs."""
    if not {worker.role for worker in served} >= set(PAIR):
        return [("--worker-urls", *(worker.url for worker in served))]
    return [
        ("--pd-disaggregation",),
        *(
            ("--prefill", worker.url, str(worker.bootstrap_port)) if worker.bootstrap_port else ("--decode", worker.url)
            for worker in served
        ),
    ]


def _worker(
    placement: Placement, settings: Settings, release: Release, profile: ModelProfile, paths: Paths
) -> Instance:
    role = settings.roles[placement.role]
    step = placement.number * PORT_STEP
    ports = role.ports(placement.number)
    on_gpu = release.manifest.device == "cuda"
    arguments: list[tuple[str, ...]] = [
        ("--model-path", paths.model),
        ("--served-model-name", profile.served_name),
        ("--tp", str(len(placement.gpus))),
    ]
    if on_gpu:
        arguments.append(("--base-gpu-id", str(placement.gpus[0] if placement.contiguous else 0)))
    for option, value in (
        ("--quantization", profile.quantization),
        ("--dtype", profile.dtype),
        ("--page-size", profile.page_size),
        ("--kv-cache-dtype", profile.kv_cache_dtype),
        ("--attention-backend", profile.attention_backend),
        ("--moe-runner-backend", profile.moe_backend(release.manifest)),
        ("--reasoning-parser", profile.reasoning_parser),
        ("--tool-call-parser", profile.tool_call_parser),
    ):
        if value is not None:
            arguments.append((option, str(value)))
    arguments += [
        ("--host", role.address),
        ("--port", str(role.port + step)),
        ("--mem-fraction-static", _fraction(role.mem_fraction)),
        ("--context-length", str(profile.context(settings.context_length))),
    ]
    if role.chunked_prefill is not None:
        arguments.append(("--chunked-prefill-size", str(role.chunked_prefill)))
    if role.prefill_cuda_graph is False and on_gpu:
        arguments += _lines(release.manifest.spelling.prefill_graph_off)
    if role.cuda_graph_max_batch is not None and on_gpu:
        batch = str(role.cuda_graph_max_batch)
        arguments += _lines(
            [word.replace("{value}", batch) for word in release.manifest.spelling.decode_graph_max_batch]
        )
    arguments += [
        # how many steps, the server chooses by the model; both roles hold the draft, since its KV moves too
        *([("--speculative-algorithm", str(profile.speculative_algorithm))] if settings.speculative else []),
        *(
            [
                ("--disaggregation-mode", role.name),
                ("--disaggregation-transfer-backend", settings.transfer_backend),
                # decode's too, where nothing listens: SGLang takes it for requests that name no port
                ("--disaggregation-bootstrap-port", str(role.bootstrap_port + step)),
                *([("--disaggregation-enable-kv-checksum",)] if settings.kv_checksum else []),
            ]
            if role.bootstrap_port is not None
            else []
        ),
        ("--dist-init-addr", at(role.address, role.dist_init_port + step)),
        ("--enable-metrics",),
        QUIET,
        *_lines([*release.manifest.arguments, *profile.arguments]),
        *(_lines([*release.manifest.decode_arguments, *profile.decode_arguments]) if isinstance(role, Decode) else []),
        *(retraction.arguments(role) if isinstance(role, Decode) else []),
        *_lines(role.arguments),
    ]
    return Instance(
        name=placement.name,
        role=role.name,
        title=f"SGLang {role.name} ({placement.where})",
        address=role.address,
        port=role.port + step,
        ports=tuple((port, setting) for setting, port in ports.items()),
        bootstrap_port=ports.get(f"{role.name}_bootstrap_port"),
        module="sglang.launch_server",
        interpreter=release.interpreter("env"),
        arguments=tuple(arguments),
        environment=_environment(placement, role, settings, release, profile, paths),
        placement=placement,
    )


def _of_existing(release: Release, paths: Paths) -> list[Variable]:
    """What Python needs to run an environment that is there already without writing into it."""
    if not release.existing:
        return []
    reason = "byte code that images often lack, kept outside them: without it each start compiles SGLang and torch"
    found = [Variable("PYTHONPYCACHEPREFIX", f"{paths.release_cache(release.id)}/bytecode", reason)]
    if release.existing.paths:
        found.append(Variable("PYTHONPATH", ":".join(release.existing.paths), "setting existing_paths"))
    return found


def _toolkit(release: Release, paths: Paths) -> list[Variable]:
    """The compiler that a release for GPUs brings."""
    if release.manifest.device != "cuda" or release.existing:
        return []
    reason = "nvcc of the release: what a newer one compiles, the driver may refuse"
    return [Variable("CUDA_HOME", f"{paths.releases}/{release.id}/env/cuda", reason)]


def _environment(
    placement: Placement, role: Role, settings: Settings, release: Release, profile: ModelProfile, paths: Paths
) -> tuple[Variable, ...]:
    """Later ones win: ours, the release's, the settings', the model's, the role's."""
    cache = paths.release_cache(release.id)
    found = {
        variable.name: variable
        for variable in (
            Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPU indices mean the same card as in nvidia-smi"),
            Variable("SGLANG_HOST_IP", role.address, "ranks would register whatever address is found first"),
            *(Variable(pin.name, pin.value, pin.reason) for pin in network.pins(settings.place.interface)),
            Variable("HF_HUB_OFFLINE", "1", "the model is on disk: no look-ups while serving"),
            Variable("HF_HOME", f"{paths.cache}/huggingface", ""),
            Variable("XDG_CACHE_HOME", cache, "JIT caches survive a restart, but serve no other release or patch"),
            Variable("HOME", cache, "what is kept below ~/.cache (SGLang, DeepGEMM) likewise"),
            Variable(
                "TORCHINDUCTOR_CACHE_DIR", f"{cache}/inductor", "its default lies in /tmp, made by whoever is first"
            ),
            Variable("TRITON_CACHE_DIR", f"{cache}/triton", ""),
            Variable("TVM_FFI_CACHE_DIR", f"{cache}/tvm-ffi", ""),
            Variable("FLASHINFER_WORKSPACE_BASE", cache, ""),
            *_toolkit(release, paths),
            *_of_existing(release, paths),
        )
    }
    for name, value, reason in limits.variables(settings):
        found[name] = Variable(name, value, reason)
    if settings.pcie_ipc_allreduce:
        name = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
        found[name] = Variable(name, "1", "setting pcie_ipc_allreduce: 12 KiB in 5.3 us, NCCL took 205 (upstream)")
    for name, value in release.manifest.environment.items():
        found[name] = Variable(name, value, f"release {release.manifest.name}")
    for name, entry in settings.worker_environment.items():
        found[name] = Variable(name, entry.value, f"{entry.reason} ({entry.source})")
    for name, value in profile.environment.items():
        found[name] = Variable(name, value, f"model {profile.name}")
    for name, value in role.environment.items():
        found[name] = Variable(name, value, f"{role.name}_environment")
    if not placement.contiguous:
        gpus = ",".join(map(str, placement.gpus))
        found["CUDA_VISIBLE_DEVICES"] = Variable("CUDA_VISIBLE_DEVICES", gpus, "GPUs that do not lie side by side")
    return tuple(found[name] for name in sorted(found))


def _lines(words: list[str]) -> list[tuple[str, ...]]:
    """Options with their values, one option a line."""
    lines: list[tuple[str, ...]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append((word,))
        else:
            lines[-1] = (*lines[-1], word)
    return lines


def _fraction(value: float) -> str:
    """0.7 as 0.70; more digits where there are more."""
    short = f"{value:.2f}"
    return short if float(short) == value else repr(value)
