"""The settings of the simulated host: SGLang on the CPU, one recorded GPU a role.

Defaults come from group_data/all.py. Nothing else comes from the group_data of this checkout, which is the user's.
"""

from __future__ import annotations

import os
import runpy
from inspect import ismodule
from pathlib import Path

from tests.node.package_sources import wheel_is_at_hand

DEFAULTS = Path(__file__).resolve().parents[2] / "group_data" / "all.py"
RELEASE = "sglang-0.5.20-cpu"
TORCH_WHEEL = "cpu" if "TORCH_INDEX" in os.environ or wheel_is_at_hand("torch-*+cpu-*.whl") else "ordinary"
REHEARSAL: dict[str, object] = {
    "release": RELEASE,
    "torch_wheel": TORCH_WHEEL,
    "package_extra_indexes": [os.environ["TORCH_INDEX"]] if "TORCH_INDEX" in os.environ else [],  # one with CPU wheels
    "model": "rehearsal-qwen2",
    "context_length": 1024,
    "prefill_tensor_parallel": 1,
    "decode_tensor_parallel": 1,
    "server_tensor_parallel": 1,
    "server_chunked_prefill": 1024,
    "prefill_chunked_prefill": 1024,
    "worker_ready_limit": 600,  # seconds; two cores start both servers at once
    "stop_limit": 45,
}


def variables(path: Path) -> dict[str, object]:
    """The variables of a group_data file; like pyinfra, without what it imports."""
    found = runpy.run_path(str(path))
    return {name: v for name, v in found.items() if not name.startswith("__") and not (callable(v) or ismodule(v))}


def of_node() -> dict[str, object]:
    """Every setting: pyinfra lets a host's own win over all group_data."""
    return {**variables(DEFAULTS), **REHEARSAL}
