"""What settings, release and model must have in common: checked before the first command on a host."""

from __future__ import annotations

from tasks.plan.errors import PlanError, nearest
from tasks.plan.model.profile import ModelProfile
from tasks.plan.release.manifest import SERVED_SINCE, Manifest, unknown_arguments
from tasks.plan.service import network, options, retraction, sandbox
from tasks.plan.service.paths import Paths
from tasks.plan.settings.roles import LOOPBACK, Decode
from tasks.plan.settings.settings import Settings

LONG_CONTEXT = 8192  # tokens, above which an indexer that walks the whole maximum is slow


def check(settings: Settings, manifest: Manifest, accepted: frozenset[str], profile: ModelProfile) -> None:
    """Raises PlanError with one line for each rule that is broken.

    accepted: the long options that the release's server knows.
    """
    lines = []
    most = manifest.chunked_prefill_maximum  # upstream's sparse kernel is unguarded above it
    for role in settings.roles.values():
        parallel = role.tensor_parallel
        if profile.heads % parallel:
            lines.append(
                f"setting {role.name}_tensor_parallel = {parallel} does not divide the {profile.heads} attention "
                f"heads of {profile.name}: use {_shares(profile)}"
            )
        elif not _shares_kv(profile, parallel):
            lines.append(
                f"setting {role.name}_tensor_parallel = {parallel} neither divides the {profile.kv_heads} KV heads of "
                f"{profile.name} nor is a multiple of them: use {_shares(profile)}"
            )
        if most is not None and role.chunked_prefill is not None and role.chunked_prefill > most:
            lines.append(
                f"setting {role.name}_chunked_prefill = {role.chunked_prefill}: SGLang {manifest.sglang} "
                f"crashes above {most} tokens in its sparse kernel; set at most {most}"
            )
        lines += unknown_arguments(manifest, accepted, role.arguments, f"{role.name}_arguments")
        if isinstance(role, Decode):
            lines += _retraction(manifest, accepted, role)
    lines += _not_served(settings, manifest, profile)
    every = (*sandbox.every(settings, Paths.of(settings, profile)), *network.of_server(settings, LOOPBACK))
    lines += options.unknown(settings, every)
    if lines:
        raise PlanError(*lines)


def check_router(settings: Settings, manifest: Manifest, accepted: frozenset[str]) -> None:
    """Raises PlanError with a line for each of router_arguments that this release's router does not know.

    accepted: the long options that it knows; empty where nobody knows them.
    """
    given = [word.partition("=")[0] for word in settings.router_arguments if word.startswith("--")]
    lines = [
        f"setting router_arguments: {settings.router} {manifest.routers[settings.router]} knows no argument {option}."
        f"{nearest(option, sorted(accepted))}"
        for option in given
        if accepted and option not in accepted
    ]
    if lines:
        raise PlanError(*lines)


def _retraction(manifest: Manifest, accepted: frozenset[str], role: Decode) -> list[str]:
    asked = {
        "decode_retraction_backup": role.retraction_backup,
        "decode_retraction_gb": role.retraction_gb,
    }
    named = [f"setting {name} = {value!r}" for name, value in asked.items() if value is not None]
    if named and accepted and retraction.OPTION not in accepted:
        return [f"{named[0]}: SGLang {manifest.sglang} knows no {retraction.OPTION}; leave it out"]
    if role.retraction_gb is not None and role.retraction_backup == "cpu_tensor":
        return [f'{named[1]} is the size of host_pool, decode_retraction_backup = "cpu_tensor" has none; leave one out']
    return []


def cautions(manifest: Manifest, context: int) -> list[str]:
    """What is allowed but deserves a warning, one line each. context: tokens that are served."""
    if manifest.indexer_walks_whole_context and context > LONG_CONTEXT:
        return [
            f"context_length = {context}: the indexer of SGLang {manifest.sglang} walks "
            f"the whole maximum at every token; above {LONG_CONTEXT} that is slow, a later release or a patch mends it"
        ]
    return []


def _not_served(settings: Settings, manifest: Manifest, profile: ModelProfile) -> list[str]:
    """Settings that this release or model cannot serve, with the SGLang that can."""
    lines = []
    for name, since in SERVED_SINCE.items():
        if getattr(settings, name) and manifest.device == "cpu":
            lines.append(
                f"setting {name} = True needs GPUs, and release {manifest.name} is for the CPU: set it to False, or "
                "name a release for GPUs"
            )
        elif getattr(settings, name) and name not in manifest.serves:
            lines.append(
                f"setting {name} = True: SGLang {manifest.sglang} cannot serve it, {since} was the first that can; "
                "set it to False, or release to a later one"
            )
    if settings.speculative and profile.speculative_algorithm is None:
        lines.append(f"setting speculative = True: model {profile.name} carries no draft; set it to False")
    if settings.router not in manifest.routers:
        lines.append(
            f"setting router = {settings.router!r}: release {manifest.name} has no lock for it; name "
            f"{' or '.join(manifest.routers)}"
        )
    return lines


def _shares_kv(profile: ModelProfile, parallel: int) -> bool:
    """Ranks share out the KV heads, or each head goes to as many ranks (SGLang asserts it when it loads the model)."""
    return profile.kv_heads % parallel == 0 or parallel % profile.kv_heads == 0


def _shares(profile: ModelProfile) -> str:
    """What tensor_parallel can be, up to 16."""
    every = range(1, min(profile.heads, 16) + 1)
    return ", ".join(str(n) for n in every if profile.heads % n == 0 and _shares_kv(profile, n))
