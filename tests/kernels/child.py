"""Do the hooks hold in a process of the server on a GPU, where they import TileLang before anything uses the GPU?

    PYTHONPATH=files/kernels/hook:files/kernels/sm120-decode:files/kernels/sm120-hc-pre:SITE python -m tests.kernels.child

SITE is the site-packages of an installed SGLang that has every target, as 0.5.16. A process is started as the server
starts its schedulers; it imports the scheduler's module, so that the hook imports what is to be bound. Then it computes
there: a product by torch, our kernels, a captured graph. One JSON; exit code 0 if all of it holds.
"""

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VARIABLES = ("SGLANG_SM120_MMA_FLASHMLA", "SGLANG_SM120_TRITON_INDEXER", "SGLANG_SM120_MMA_HC_PRE")
OVERLAYS = ("pd_overlay_hook", "pd_overlay_sm120_decode", "pd_overlay_sm120_hc_pre")  # what .pth files import


def bound() -> dict[str, Any]:
    """What stands in the place of SGLang's functions once the scheduler is imported."""
    began = time.monotonic()
    importlib.import_module("sglang.srt.managers.scheduler")
    found: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1), "tilelang": "tilelang" in sys.modules}
    import torch

    found["cuda_before"] = torch.cuda.is_initialized()
    mla = sys.modules["sglang.kernels.ops.attention.flash_mla_sm120_triton"].flash_mla_sparse_decode_triton
    indexers = (
        sys.modules["sglang.srt.layers.attention.dsv4.indexer"].fp8_paged_mqa_logits_torch_sm120,
        sys.modules["sglang.kernels.ops.attention.dsa.tilelang_kernel"].tilelang_fp8_paged_mqa_logits,
    )
    layer = sys.modules["sglang.srt.models.deepseek_v4"].DeepseekV4DecoderLayer
    found["bound"] = sorted({function.__module__ for function in (mla, *indexers, layer.hc_pre)})
    found["ours"] = all(name.startswith("pd_overlay_") for name in found["bound"])
    return found


def computed() -> dict[str, bool]:
    """Whether the GPU computes rightly in this process: by torch, by TileLang, by our kernels, in a captured graph."""
    import torch

    from tests.kernels import bench_mixing, reference

    a = torch.randn((512, 512), device="cuda", dtype=torch.float64)
    product = bool(torch.allclose((a @ a).cpu(), a.cpu() @ a.cpu()))
    given = reference.mixing_input(64, 4096, torch.Generator(device="cuda").manual_seed(1))
    wanted = reference.mixing(given)[0]
    _, whose = bench_mixing.upstream_sinkhorn()
    graph = torch.cuda.CUDAGraph()
    eager = bench_mixing.ours_hc_pre(given)[0]
    with torch.cuda.graph(graph):
        y, *_ = bench_mixing.ours_hc_pre(given)
    y.fill_(float("nan"))
    graph.replay()
    return {
        "torch": product,
        "tilelang": whose == bench_mixing.SINKHORN_OF_SGLANG,
        "ours": reference.relative_error(eager, wanted) < 2e-3,
        "graph": bool(torch.equal(y, eager)),
    }


def libraries() -> list[str]:
    """The CUDA libraries mapped into this process: a stub of TileLang's among them must not stand for the driver's."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return sorted(path for path in paths if any(n in Path(path).name for n in ("libcuda", "libnvrtc", "_stub")))


def serve(path: str) -> None:
    found = bound()
    found["computed"] = computed()
    found["libraries"] = libraries()
    Path(path).write_text(json.dumps(found))


def main() -> None:
    os.environ |= dict.fromkeys(VARIABLES, "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        child = multiprocessing.get_context("spawn").Process(target=serve, args=(str(path),))
        child.start()
        child.join()
        found = json.loads(path.read_text()) if path.exists() else {}
    holds = bool(found) and found["ours"] and found["tilelang"] and all(found["computed"].values())
    print(json.dumps({"holds": holds, "exit": child.exitcode, **found}, indent=1))
    sys.exit(not holds)


for name in OVERLAYS if multiprocessing.current_process().name != "MainProcess" else ():
    importlib.import_module(name)  # on a host, the .pth files do this

if __name__ == "__main__":
    main()
