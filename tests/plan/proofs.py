"""Proofs as pd-probe leaves them: of a healthy host, and ways to spoil them."""

from collections.abc import Sequence
from typing import Any

PAGE = 149760  # bytes: 4 pages of the largest buffers of the default model, merged
SMALL = (1728, 6912, 8448, 33792, 37440)  # bytes: its other pages, apart and merged
MIB = 1 << 20
DONE = {"status": "done", "exit": 0, "seconds": 3.1, "reason": ""}


def row(size: int, us: float, **changes: object) -> dict[str, Any]:
    """One size of descriptor: what it costs, and the GB/s that follow."""
    return {
        "descriptor_bytes": size,
        "descriptors": 8192,
        "gbps": size / us / 1000,
        "us_per_descriptor": us,
        "same_bytes": True,
        **changes,
    }


def rows(slower: float = 1.0) -> list[dict[str, Any]]:
    return [
        *(row(size, 2.7 * slower) for size in SMALL),
        row(PAGE, 14.0 * slower),
        row(MIB, 22.0 * slower),
        row(256 * MIB, 5200.0 * slower),
    ]


def pair(source: int, target: int, **changes: object) -> dict[str, Any]:
    return {
        "prefill": "prefill",
        "decode": "decode",
        "from": source,
        "to": target,
        "lane": "intra-node cfg#2 rma_am(tcp/lo) am(tcp/lo cma/memory cuda_ipc/cuda)",
        "cuda_ipc": True,
        "plain_gbps": 53.0,
        "alone": rows(),
        "together": rows(1.25),
        **changes,
    }


def proof(
    pairs: Sequence[dict[str, Any]] = tuple(pair(i, i + 4) for i in range(4)), gpus: int = 8, **parts: object
) -> dict[str, Any]:
    """parts: replace one, or leave it out with None."""
    copies = [
        {"from": a, "to": b, "bytes": 256 * MIB, "gbps": 53.2 if a // 4 == b // 4 else 37.5, "same_bytes": True, "peer_access": True}
        for a in range(gpus)
        for b in range(gpus)
        if a != b
    ]  # fmt: skip
    groups = [
        {"instance": name, "gpus": list(members), "outcome": "right", "bytes": 256 * MIB, "bus_gbps": 22.1,
         "us_small": 31.0, "control": None, "reason": ""}
        for name, members in (("prefill", range(4)), ("decode", range(4, 8)))
    ]  # fmt: skip
    every: dict[str, Any] = {
        "peer": {**DONE, "pairs": copies},
        "all_reduce": {**DONE, "groups": groups},
        "kv_path": {
            **DONE,
            "backend": "UCX",
            "parameters": {"prefill": {"num_threads": "8"}, "decode": {"num_threads": "0"}},
            "pairs": list(pairs),
        },
        **parts,
    }
    return {
        "format": 1,
        "started": "2026-11-30T05:00:00Z",
        "seconds": 41.2,
        "device": "cuda",
        "depends": {"driver": "580.95.05", "release": "abc123", "gpus": ["GPU-1"], "boot": "0f3c9e2a-77aa", "settings": "5e"},
        "parts": {name: part for name, part in every.items() if part is not None},
    }  # fmt: skip
