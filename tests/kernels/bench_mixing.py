"""Measures hc_pre beside SGLang's own on one GPU: errors, graph replay, compute-sanitizer, speed; JSON on standard output.

    PYTHONPATH=files/kernels/sm120-decode:files/kernels/sm120-hc-pre:SITE python -m tests.kernels.bench_mixing

Under 120 s. SITE is the site-packages of an installed SGLang, from 0.5.16 on; its method is called with the layer's
numbers in place of a layer. Times as in tests.kernels.bench, in microseconds.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Optional

import torch
import torch.nn.functional as F
from pd_overlay_sm120_hc_pre import mixing

from tests.kernels import reference
from tests.kernels.bench import about, copied, eager, from_file, replayed

# Seconds after the start: compute-sanitizer is ended; no further variant of the first, of the second kernel is tried.
SANITIZED, PRODUCTS, VARIANTS = 70, 92, 106
SINKHORN_OF_SGLANG = "SGLang's, by TileLang"


def upstream_sinkhorn() -> tuple[Any, str]:
    """SGLang's hc_split_sinkhorn, which TileLang compiles, and where it is from; where there is none, one of torch."""
    try:
        import tilelang

        key = tilelang.PassConfigKey
        names = {
            "T": tilelang.language, "tilelang": tilelang, "torch": torch, "is_arch_support_pdl": lambda: False,
            "pass_configs": {key.TL_DISABLE_WARP_SPECIALIZED: True, key.TL_DISABLE_TMA_LOWER: True},
            "FP32": "float32", "__name__": "sglang_mhc",
        }  # fmt: skip
        file = "kernels/ops/layernorm/mhc.py"
        found = from_file(file, names, "hc_split_sinkhorn_kernel", "hc_split_sinkhorn")
        found(*(torch.zeros(n, device="cuda") for n in ((1, 1, 24), (3,), (24,))), 4, 20, 1e-6)
        return found, SINKHORN_OF_SGLANG
    except Exception as error:  # whatever keeps TileLang from compiling here is no fault of what is measured
        return torch_sinkhorn, f"torch, written here: {type(error).__name__}: {error}"[:300]


def torch_sinkhorn(mixes: Any, scale: Any, base: Any, streams: int, iterations: int, eps: float) -> Any:
    """The same in FP32 by torch."""
    logit = mixes * scale.repeat_interleave(torch.tensor([4, 4, 16], device=scale.device)) + base
    comb = logit[..., 8:].unflatten(-1, (streams, streams)).softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return logit[..., :4].sigmoid() + eps, 2 * logit[..., 4:8].sigmoid(), comb


def upstream_hc_pre(sinkhorn: Any, compiled: bool = False) -> Callable[[reference.MixingInput], Any]:
    """The method of SGLang's decoder layer as sm_120 runs it, read from its file; compiled: as in a captured graph."""
    off = SimpleNamespace(get=lambda: False)
    names = {
        "torch": torch, "nn": torch.nn, "F": F, "Optional": Optional, "ForwardBatch": Any,
        "_is_npu": False, "_is_hip": False, "envs": type("Off", (), {"__getattr__": lambda *_: off})(),
        "compile_in_capture_mode": torch.compile if compiled else lambda function: function,
        "_get_mhc_ops": lambda: SimpleNamespace(hc_split_sinkhorn=sinkhorn),
        "use_symmetric_memory": lambda *_, **__: contextlib.nullcontext(),
        "get_tp_group": lambda: None, "is_allocation_symmetric": lambda: False,
    }  # fmt: skip
    method = from_file("srt/models/deepseek_v4.py", names, "DeepseekV4DecoderLayer.hc_pre")
    layer = SimpleNamespace(
        hc_mult=4, hc_sinkhorn_iters=reference.SINKHORN, rms_norm_eps=reference.RMS_EPS, hc_eps=reference.EPS
    )
    return lambda given: method(layer, given.x, given.weight, given.scale, given.base)[:3]


def ours_hc_pre(given: reference.MixingInput, options: Any = None) -> Any:
    numbers = reference.SINKHORN, reference.RMS_EPS, reference.EPS
    return mixing.mix(given.x, given.weight, given.scale, given.base, *numbers, options=options)


def check(theirs: Callable[[reference.MixingInput], Any]) -> list[dict[str, Any]]:
    """Errors of hc_pre's three results against FP64, ours and upstream's, on ordinary and on nasty inputs."""
    found = []
    for rows, hidden, chosen in (
        *((rows, 4096, {}) for rows in (1, 5, 17, 64, 129, 1000, 8192)),
        *((rows, 7168, {}) for rows in (3, 300)),
        (64, 4096, {"size": 1e-18}),
        (64, 4096, {"size": 1e15}),
        (64, 4096, {"weights": 1e-30}),
        (64, 4096, {"weights": 10.0}),
        (64, 4096, {"outlier": 1e4}),
    ):
        given = reference.mixing_input(rows, hidden, torch.Generator(device="cuda").manual_seed(rows), **chosen)
        if chosen == {} and rows > 1:
            given.x[::3] = 0  # as rows of padding are
        wanted = reference.mixing(given)
        line: dict[str, Any] = {"rows": rows, "hidden": hidden, **chosen}
        line["rounding"] = reference.relative_error(wanted[0].bfloat16(), wanted[0])
        for who, call in (("ours", ours_hc_pre), ("upstream", theirs)):
            errors = map(reference.relative_error, call(given), wanted)
            line[who] = dict(zip(("y", "post", "comb"), errors, strict=True))
        found.append(line)
    return found


def ways(given: reference.MixingInput) -> dict[str, Callable[[], torch.Tensor]]:
    """The 24 sums of each row, by how they are computed; ours still in shares, and with the sum of squares."""
    flat, weight, half = given.x.flatten(1), given.weight, given.weight.bfloat16()
    first, _ = mixing.chosen_options(flat)

    def tf32() -> torch.Tensor:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return F.linear(flat.float(), weight)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return {
        "ours": lambda: mixing.products(flat, weight, first),
        "two_parts": lambda: mixing.products(flat, weight, first | {"PARTS": 2}),
        "fp32": lambda: F.linear(flat.float(), weight),
        "tf32": tf32,
        "bf16": lambda: F.linear(flat, half),
    }


def product_check() -> list[dict[str, Any]]:
    """Errors of the 24 sums alone against FP64."""
    found = []
    for rows in (1, 8, 64, 512, 8192):
        given = reference.mixing_input(rows, 4096, torch.Generator(device="cuda").manual_seed(rows))
        wanted = reference.products(given)
        line: dict[str, Any] = {"rows": rows}
        for name, call in ways(given).items():
            value = call()
            value = value.sum(0)[:, :24] if value.ndim == 3 else value
            line[name] = reference.relative_error(value, wanted)
        found.append(line)
    return found


def graph_check() -> dict[str, Any]:
    """Captured once, replayed with other states: bit for bit what a new call gives?"""
    same = []
    for rows in (1, 8, 64, 512, 2048):
        given = reference.mixing_input(rows, 4096, torch.Generator(device="cuda").manual_seed(rows))
        ours_hc_pre(given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ours_hc_pre(given)
        for seed in range(3):
            g = torch.Generator(device="cuda").manual_seed(seed)
            given.x.copy_(torch.randn(given.x.shape, generator=g, device="cuda"))
            for poisoned in captured:
                poisoned.fill_(float("nan"))
            graph.replay()
            same += [torch.equal(old, new) for old, new in zip(captured, ours_hc_pre(given), strict=True)]
    return {"replays": 15, "equal": all(same)}


def speed(bandwidth: float, theirs: Any, compiled: Any) -> list[dict[str, Any]]:
    found = []
    for rows in (1, 8, 64, 512, 8192):
        given = reference.mixing_input(rows, 4096, torch.Generator(device="cuda").manual_seed(rows))
        state = given.x.numel() * 2 + given.weight.numel() * 4
        needed = state + rows * (4096 * 2 + 4 * 4 + 16 * 4)
        line: dict[str, Any] = {"rows": rows, "bytes": needed, "bound": needed / bandwidth * 1e6}
        line["ours"] = replayed(lambda: ours_hc_pre(given))  # noqa: B023
        line["upstream"] = replayed(lambda: theirs(given))  # noqa: B023
        if rows <= 512:  # what decode captures; SGLang does not compile it for prefill
            try:
                line["upstream_compiled"] = replayed(lambda: compiled(given))  # noqa: B023
            except Exception as error:
                line["upstream_compiled"] = f"{type(error).__name__}: {error}"[:200]
        line["share"] = line["bound"] / line["ours"]
        line["eager"] = eager(lambda: ours_hc_pre(given))  # noqa: B023
        line["product"] = {"bound": (state + rows * 24 * 4) / bandwidth * 1e6}
        line["product"] |= {name: replayed(call) for name, call in ways(given).items()}
        found.append(line)
    return found


def variants(products_until: float, until: float) -> dict[str, Any]:
    """Other launch options than launch_options chooses, as many as the time allows."""
    firsts = [
        {"ROWS": rows, "STEP": step, "STAGES": stages, "num_warps": warps, "PARTS": 3}
        for rows, step, stages, warps in (
            (64, 64, 4, 8), (128, 64, 4, 8), (64, 128, 3, 4), (64, 64, 3, 4), (128, 64, 3, 8), (32, 128, 3, 4),
            (64, 64, 5, 4), (128, 64, 5, 8), (64, 128, 4, 8), (128, 32, 5, 4), (128, 128, 3, 8), (16, 128, 3, 4),
        )
    ]  # fmt: skip
    seconds = [
        {"ROWS": rows, "COLUMNS": columns, "num_warps": warps}
        for rows, columns, warps in (
            (1, 1024, 4), (4, 512, 4), (8, 512, 4), (2, 1024, 4), (4, 1024, 8), (1, 512, 4), (1, 256, 4), (8, 256, 4),
            (2, 2048, 8), (1, 128, 4), (1, 4096, 4),
        )
    ]  # fmt: skip
    found: dict[str, Any] = {"product": [], "finish": [], "complete": True}
    sizes = {}
    for rows in (8192, 64, 512, 8):
        given = reference.mixing_input(rows, 4096, torch.Generator(device="cuda").manual_seed(rows))
        sizes[rows] = given, *mixing.chosen_options(given.x.flatten(1))
    for (rows, (given, first, _)), options in itertools.product(sizes.items(), [None, *firsts]):
        options = options or first
        if time.monotonic() > products_until:
            found["complete"] = False
            break
        if (rows <= 8 and options["ROWS"] > 64) or (rows > 512 and options["ROWS"] < 64):
            continue
        blocks, most = -(-rows // options["ROWS"]), min(16384 // options["STEP"], mixing.MOST_SHARES)
        for shares in sorted({max(1, min(most, n * 132 // blocks)) for n in (1, 2, 4)}):
            chosen = options | {"shares": shares}
            taken = replayed(lambda: mixing.products(given.x.flatten(1), given.weight, chosen), rep=15)  # noqa: B023
            found["product"].append({"rows": rows, "us": taken, **chosen})
    for (rows, (given, first, second)), options in itertools.product(sizes.items(), [None, *seconds]):
        if time.monotonic() > until:
            found["complete"] = False
            break
        alone = replayed(lambda: mixing.products(given.x.flatten(1), given.weight, first), rep=15)  # noqa: B023
        both = replayed(lambda: ours_hc_pre(given, (first, options or second)), rep=15)  # noqa: B023
        found["finish"].append({"rows": rows, "us": both, "less": alone, **(options or second)})
    return found


def memcheck() -> dict[str, Any]:
    """A little of everything of the mixing, for compute-sanitizer."""
    for rows, hidden in ((1, 4096), (7, 4096), (65, 4096), (300, 4096), (1100, 4096), (3, 7168)):
        ours_hc_pre(reference.mixing_input(rows, hidden, torch.Generator(device="cuda").manual_seed(rows)))
    torch.cuda.synchronize()
    return {"ran": True}


class Sanitizer:
    """This module's memcheck under compute-sanitizer, in a process beside this one."""

    def __init__(self) -> None:
        tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        command = [tool or "", "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-m", __spec__.name]
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # every tensor has bounds of its own
        self.process = tool and subprocess.Popen(
            [*command, "memcheck"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def result(self, until: float) -> dict[str, Any]:
        if not self.process:
            return {"clean": None, "said": "no compute-sanitizer"}
        try:
            said, _ = self.process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # the tool and what it runs
            self.process.wait()
            return {"clean": None, "said": "not finished in time"}
        summary = [line for line in said.splitlines() if "ERROR SUMMARY" in line]
        clean = self.process.returncode == 0 and '"ran": true' in said and len(summary) == 1
        return {"clean": clean, "said": summary} | ({} if clean else {"output": said[-3000:]})


def everything() -> dict[str, Any]:
    began = time.monotonic()
    sanitizer = Sanitizer()
    sinkhorn, whose = upstream_sinkhorn()
    theirs, compiled = upstream_hc_pre(sinkhorn), upstream_hc_pre(sinkhorn, compiled=True)
    found: dict[str, Any] = {"sinkhorn": whose, "check": check(theirs), "products": product_check()}
    found["graph"] = graph_check()
    found["memcheck"] = sanitizer.result(began + SANITIZED)  # before anything is timed
    found["seconds"] = {"until_timing": time.monotonic() - began}
    found["bytes_per_s"] = copied()
    found["speed"] = speed(found["bytes_per_s"], theirs, compiled)
    found["seconds"]["until_variants"] = time.monotonic() - began
    found["variants"] = variants(began + PRODUCTS, began + VARIANTS)
    found["seconds"]["all"] = time.monotonic() - began
    return found


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):  # TileLang's words
        found = memcheck() if sys.argv[1:] == ["memcheck"] else everything()
    print(json.dumps(about() | found, indent=1))


if __name__ == "__main__":
    main()
