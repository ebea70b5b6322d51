"""What pd-probe measures on a host: which GPUs, which pairs, which sizes."""

from __future__ import annotations

from typing import Any

from tasks.plan.model.profile import KvBuffer, ModelProfile
from tasks.plan.plan import Plan
from tasks.plan.service.instances import Instance, kv_pairs
from tasks.plan.service.placement import by_rank

PROMPT = 1000  # tokens of the prompt whose transfer the report speaks of
MIB = 1 << 20
PEER_BYTES = {"cuda": 256 * MIB, "cpu": 64 * MIB}
KV_BYTES = {"cuda": 512 * MIB, "cpu": 256 * MIB}  # memory of one measuring process
DESCRIPTORS = 4096  # small descriptors in one transfer, where they fit


def configuration(plan: Plan) -> dict[str, Any]:
    """What pd-probe is told, as its --help describes it."""
    device = plan.release.manifest.device
    uuids = {gpu.index: gpu.uuid for gpu in plan.hardware.gpus}
    used = sorted({gpu for worker in plan.workers for gpu in worker.gpus})
    return {
        "python": plan.python,
        "device": device,
        "driver": plan.hardware.driver,
        "release": plan.release.id,
        "limit_s": plan.settings.probe_limit,
        "transfer_backend": plan.settings.transfer_backend,
        "instances": [
            {
                "name": worker.name,
                "role": worker.role,
                "gpus": list(worker.gpus),
                "uuids": [uuids[gpu] for gpu in worker.gpus],
                "devices": _devices(worker),
                "binding": list(worker.binding),
                "environment": {variable.name: variable.value for variable in worker.environment},
            }
            for worker in plan.workers
        ],
        "peer": {"gpus": used, "uuids": [uuids[gpu] for gpu in used], "bytes": PEER_BYTES[device]},
        "pairs": pairs(plan.workers),
        "shapes": shapes(plan.profile, plan.settings.prefill.tensor_parallel, device) if kv_pairs(plan.workers) else [],
    }


def pairs(workers: tuple[Instance, ...]) -> list[dict[str, Any]]:
    """Every prefill GPU with the decode GPUs that hold its share of the KV heads, for every two servers."""
    return [
        {"prefill": source.name, "decode": target.name, "from": sent, "to": received}
        for source, target in kv_pairs(workers)
        for sent, received in by_rank(source.gpus, target.gpus)
    ]


def page_bytes(buffer: KvBuffer, profile: ModelProfile, parallel: int) -> int:
    """Bytes of one page of one buffer in one rank: KV heads are split over the ranks as far as they go."""
    return -(-profile.rank_bytes(buffer, parallel) // 4) * 4  # the probe compares words of 4 bytes


def pages(profile: ModelProfile) -> int:
    """Pages of a prompt of PROMPT tokens."""
    return -(-PROMPT // (profile.page_size or 1))


def shapes(profile: ModelProfile, parallel: int, device: str) -> list[dict[str, Any]]:
    """Sizes to measure: each buffer's page, the pages of a prompt merged as SGLang merges them, 1 MiB, 256 MiB."""
    room = KV_BYTES[device]
    sizes: dict[int, str] = {}
    for buffer in profile.kv_buffers:
        size = page_bytes(buffer, profile, parallel)
        sizes.setdefault(size, f"page of {buffer.name}")
        sizes.setdefault(size * pages(profile), f"{pages(profile)} pages of {buffer.name}")
    sizes.setdefault(MIB, "1 MiB")
    sizes.setdefault(256 * MIB, "256 MiB")
    return [
        {"name": name, "bytes": size, "count": max(1, min(DESCRIPTORS, room // (size * (2 if size <= MIB else 1))))}
        for size, name in sizes.items()
    ]


def _devices(worker: Instance) -> list[int]:
    """The number by which each rank opens its GPU: CUDA_VISIBLE_DEVICES counts from 0 where it is set."""
    contiguous = worker.placement is None or worker.placement.contiguous
    return list(worker.gpus) if contiguous else list(range(len(worker.gpus)))
