"""What comes before a release is made current: its pin, kernels compiled ahead, checks that it must pass."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from itertools import pairwise

from tasks.plan.files import FoundPaths, WantedFile, as_wanted, to_json
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Instance

# What the servers import. Importing it once as root also writes the bytecode that the service user may not write.
IMPORTS = [
    "torch",
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
]
TRANSFER_IMPORTS = {"nixl": "nixl", "mooncake": "mooncake.engine"}  # of each transfer_backend
GPU_IMPORTS = ["sgl_kernel"]  # its code for the card is chosen, and the driver's library loaded, while it is imported
BFLOAT16 = 2  # bytes
SAMPLING = "flashinfer.jit.sampling:gen_sampling_module"
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pin_file(plan: Plan) -> WantedFile | None:
    """The pin that holds the host on this release; None where nothing does."""
    return WantedFile(plan.paths.pin, to_json(plan.pin.model_dump())) if plan.pin else None


def moves(plan: Plan, found: FoundPaths) -> bool:
    """Whether pin or links are about to change."""
    links = {plan.paths.current: plan.release.id, plan.paths.previous: plan.history.previous_once(plan.release.id)}
    return not as_wanted(pin_file(plan), found[plan.paths.pin]) or any(
        release and found[link].target != f"{plan.paths.releases}/{release}" for link, release in links.items()
    )


@dataclass(frozen=True)
class Told:
    """A command and its standard input: values of variables stand in no command line, which any user reads."""

    words: list[str]
    told: str = ""

    @property
    def command(self) -> str:
        return shlex.join(self.words)


def release_checks(plan: Plan) -> tuple[Told, ...]:
    """Commands that a finished release must pass before it becomes current; one that has served passed them."""
    if plan.release.id in plan.history.served:
        return ()
    checks = [
        *([_probe(plan)] if plan.workers else []),
        *([Told(_router_probe(plan, plan.router))] if plan.router else []),
    ]
    # of an environment that is there already, variables were judged in the preflight: nothing was built since
    if plan.release.existing is None and plan.judged_variables:
        checks.append(Told(["variables", f"{plan.release_directory}/env", *plan.judged_variables]))
    return tuple(Told([f"{plan.paths.bin}/pd-env", *check.words], check.told) for check in checks)


def _probe(plan: Plan) -> Told:
    """What pd-env is told about the servers' environment."""
    manifest, existing = plan.release.manifest, plan.release.existing
    environment = {
        variable.name: variable.value
        for variable in plan.workers[0].environment
        if not variable.value.startswith(plan.paths.cache)  # caches are the servers' own: the probe runs as root
    }
    expected = {
        "imports": [*IMPORTS, TRANSFER_IMPORTS[plan.settings.transfer_backend]],
        **({"gpu_imports": GPU_IMPORTS} if manifest.device == "cuda" else {}),
        "torch": manifest.torch,
        **({} if _ordinary_torch(plan) else {"cuda": manifest.cuda}),  # a CUDA build serves the CPU too
        "nixl_plugins": ["UCX"] if plan.settings.transfer_backend == "nixl" else [],
        "arguments": {worker.name: worker.words for worker in plan.workers},
        "environment": environment,
        "folders": [environment["CUDA_HOME"]] if "CUDA_HOME" in environment else [],
        **({"paths": list(existing.paths)} if existing else {}),
    }
    of_existing = ["--python", plan.python, "--untouched"] if existing else []
    return Told(["probe", f"{plan.release_directory}/env", *of_existing, "--expect", "-"], json.dumps(expected))


def _router_probe(plan: Plan, router: Instance) -> list[str]:
    """pd-env's words for the router's environment."""
    existing, of_existing = plan.release.existing, []
    if existing:
        of_existing = ["--python", f"{plan.release_directory}/{router.interpreter}"]
        of_existing += [word for path in existing.paths for word in ("--path", path)]
    words = ["probe-router", f"{plan.release_directory}/router", "--module", router.module]
    return [*words, "--arguments", json.dumps(router.words), *of_existing]


@dataclass(frozen=True)
class Kernels:
    """What the planned servers want compiled, and what compiles it where they look for it."""

    names: tuple[str, ...]
    asked: Told

    def named_by(self, mark: str | None) -> bool:
        """Whether the text of the file that names what was compiled names all of them."""
        return set(self.names) <= set((mark or "").splitlines())


def jit(plan: Plan) -> Kernels | None:
    """None where there is nothing to compile."""
    wanted = (name for name in plan.release.manifest.jit if name != SAMPLING or _sample_by_kernel(plan))
    names = tuple(dict.fromkeys(full for name in wanted for full in _of_model(plan, name)))
    if not names or not plan.workers:
        return None
    variables = {variable.name: variable.value for variable in plan.workers[0].environment}
    variables["PATH"] = f"{plan.python.rpartition('/')[0]}:{variables.get('PATH', USUAL_PATH)}"
    words = [f"{plan.paths.bin}/pd-jit", "--python", plan.python, "--environment", "-", *names]
    return Kernels(names, Told(words, json.dumps(variables)))


def _of_model(plan: Plan, name: str) -> list[str]:
    """A kernel with the model's numbers, one for each way in which servers share them; none where it has no such."""
    if "{" not in name:
        return [name]
    profile = plan.profile
    buffers = {buffer.name: buffer for buffer in profile.kv_buffers}
    if (
        set(buffers) != {"keys", "values"}
        or profile.dtype != "bfloat16"
        or profile.kv_cache_dtype
        or not profile.page_size
    ):
        return []
    rows = {
        tuple(
            profile.rank_bytes(buffers[kind], role.tensor_parallel) // profile.page_size for kind in ("keys", "values")
        )
        for role in plan.settings.roles.values()
    }
    head = buffers["keys"].page_bytes // profile.page_size // profile.kv_heads // BFLOAT16
    return [name.format(head=head, key_bytes=keys, value_bytes=values) for keys, values in sorted(rows)]


def _sample_by_kernel(plan: Plan) -> bool:
    """Whether any server samples by FlashInfer: not by torch alone, and what verifies drafts always."""
    by_torch = ("--sampling-backend", "pytorch")
    return plan.settings.speculative or not all(
        by_torch in pairwise(worker.words) or "=".join(by_torch) in worker.words for worker in plan.workers
    )


def _ordinary_torch(plan: Plan) -> bool:
    """Whether a CPU release is built with the CUDA build of torch that every package index has."""
    return not plan.on_gpu and "+cpu" not in plan.release.lock
