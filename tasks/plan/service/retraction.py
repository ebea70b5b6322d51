"""Requests that decode takes back when its KV cache is full: where their KV cache goes, and what that pins.

Read in SGLang 0.5.23 (kv_cache_builder.resolve_decode_retraction_backup), measured on two H200: 17.84 GB pinned, 36 s.
"""

from __future__ import annotations

from tasks.plan.model import memory
from tasks.plan.model.profile import ModelProfile
from tasks.plan.settings.roles import Decode

OPTION = "--disaggregation-decode-retraction-backup"
SIZE = "--hicache-size"  # GB of each rank's host pool
SHARE = 0.2  # of the KV cache, where nobody names a size


def arguments(role: Decode) -> list[tuple[str, ...]]:
    """What the settings ask for, as the server's arguments; [] where SGLang chooses."""
    lines: list[tuple[str, ...]] = []
    if role.retraction_backup is not None:
        lines.append((OPTION, role.retraction_backup))
    if role.retraction_gb is not None:
        lines.append((SIZE, str(role.retraction_gb)))
    return lines


def pinned_gb(role: Decode, profile: ModelProfile, memory_mib: int, known: tuple[str, ...]) -> float:
    """GB of host memory that one GPU's rank pins, at most.

    memory_mib: of the GPU. known: long options that the release's server knows; one without OPTION has no such pool.
    """
    pooled = role.retraction_backup == "host_pool" or (role.retraction_backup is None and _plain(profile))
    if OPTION not in known or not pooled:
        return 0.0
    if role.retraction_gb is not None:
        return float(role.retraction_gb)
    return SHARE * memory.fit(profile, role, memory_mib).kv


def _plain(profile: ModelProfile) -> bool:
    """Whether K and V are kept apart: for other caches (MLA, DeepSeek's) SGLang chooses cpu_tensor."""
    return {"keys", "values"} <= {buffer.name for buffer in profile.kv_buffers}
