"""Measures the kernels beside SGLang's own on one GPU: errors, graph replay, speed; JSON on standard output.

    PYTHONPATH=files/kernels/sm120-decode:SITE python -m tests.kernels.bench [speed|check|memcheck]

Those of sm120-decode; tests.kernels.bench_mixing measures hc_pre. SITE is the site-packages of an installed
SGLang. Times are medians in microseconds of a captured graph's replay, with the GPU's cache flushed in between
(triton.testing.do_bench).
"""

import ast
import importlib.util
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from pd_overlay_sm120_decode import indexer, sparse_mla
from triton.testing import do_bench

from tests.kernels import reference

LARGE = 1 << 24  # rows * columns from which upstream's indexer takes too much memory to be captured


def upstream() -> tuple[Any, Any]:
    """SGLang's two functions; the second read from its file, since its module imports the whole server."""
    for name in ("sglang.kernels.ops.attention", "sglang.srt.layers.attention"):
        try:
            decode = importlib.import_module(f"{name}.flash_mla_sm120_triton").flash_mla_sparse_decode_triton
            break
        except ImportError:
            continue
    else:
        raise SystemExit("no SGLang with a sm_120 decode function on PYTHONPATH")
    wanted = "fp8_paged_mqa_logits_torch_sm120"
    names: dict[str, Any] = {"torch": torch, "F": F, "Any": Any, "FP8_DTYPE": torch.float8_e4m3fn}
    return decode, from_file("srt/layers/attention/dsv4/indexer.py", names, wanted)


def from_file(path: str, names: dict[str, Any], *wanted: str) -> Any:
    """The last of these functions (or Class.method) of a file of SGLang, run in `names` without the rest of it."""
    folders = importlib.util.find_spec("sglang").submodule_search_locations
    file = next(p for f in folders if (p := Path(f) / path).is_file())
    for each in wanted:
        body: Any = ast.parse(file.read_text())
        for name in each.split("."):
            (body,) = (n for n in body.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name)
        exec(compile(ast.Module([body], []), str(file), "exec", dont_inherit=True), names)
    return names[wanted[-1].rpartition(".")[2]]


def decode_input(rows: int, heads: int, topk: int, page: int = 256, extra: int = 0, **options: Any):
    """(arguments, parts for the reference) with every token of a row at a random place of its own."""
    g = torch.Generator(device="cuda").manual_seed(rows * 131 + heads + topk)
    wanted = options.pop("wanted", False)
    exponents = options.pop("exponents", (126, 128))

    def one(n: int, page: int):
        cache = reference.attention_cache(-(-rows * n // page) + 1, page, g, exponents, wanted)
        indices = torch.randperm(rows * n, generator=g, device="cuda").to(torch.int32).view(rows, 1, n)
        return cache, indices, torch.full((rows,), n, dtype=torch.int32, device="cuda")

    cache, indices, lengths = one(topk, page)
    q = torch.randn((rows, 1, heads, 512), generator=g, device="cuda").to(torch.bfloat16)
    sink = torch.randn(heads, generator=g, device="cuda")
    arguments = [q, cache.view, indices, lengths, sink, 512, 512**-0.5]
    parts = [(cache.tokens, indices, lengths)]
    if extra:
        cache, indices, lengths = one(extra, 64)
        arguments += [cache.view, indices, lengths]
        parts.append((cache.tokens, indices, lengths))
    return arguments, parts


def logits_input(lengths: list[int], columns: int, wanted: bool = False, **options: Any):
    g = torch.Generator(device="cuda").manual_seed(columns + sum(lengths))
    given = reference.indexer_input(lengths, columns, 64, g, behind=0, wanted=wanted, **options)
    return [given.q, given.cache, given.weights, given.lengths, given.table, None, columns, False], given


def replayed(call, rep: int = 40) -> float:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return do_bench(graph.replay, warmup=8, rep=rep, return_mode="median") * 1000


def eager(call, rep: int = 40) -> float:
    return do_bench(call, warmup=8, rep=rep, return_mode="median") * 1000


def copied() -> float:
    """Bytes read and written in a second by a copy of 2 GiB."""
    x = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / eager(lambda: y.copy_(x)) * 1e6


def speed() -> dict[str, Any]:
    decode, logits = upstream()
    bandwidth = copied()
    a, b = (torch.randn((8192, 8192), device="cuda").to(torch.bfloat16) for _ in range(2))
    peak = 2 * 8192**3 / eager(lambda: a @ b) * 1e6
    found: dict[str, Any] = {"bytes_per_s": bandwidth, "flop_per_s": peak, "decode": [], "logits": []}
    for rows, heads, topk in itertools.product((1, 8, 64, 256), (16, 64, 128), (512, 2048)):
        arguments, _ = decode_input(rows, heads, topk)
        needed = rows * (topk * (584 + 4) + heads * (512 * 4 + 4))
        operations = rows * heads * topk * 512 * 4
        bound = max(needed / bandwidth, operations / peak) * 1e6
        ours = replayed(lambda: sparse_mla.flash_mla_sparse_decode(*arguments))  # noqa: B023
        theirs = replayed(lambda: decode(*arguments), rep=10)  # noqa: B023
        outside = eager(lambda: sparse_mla.flash_mla_sparse_decode(*arguments))  # noqa: B023
        found["decode"].append(
            {"rows": rows, "heads": heads, "topk": topk, "ours": ours, "upstream": theirs, "bound": bound}
            | {"bytes": needed, "flop": operations, "eager": outside}
        )
    for rows, columns, length in itertools.product((1, 16, 64), (8192, 131072, 1 << 20), (512, 8192, 65536)):
        if length > columns:
            continue
        arguments, _ = logits_input([length] * rows, columns)
        needed = rows * (length * (132 + 4) + -(-length // 64) * 4 + 64 * 132)
        operations = rows * length * 64 * 128 * 2
        ours = replayed(lambda: indexer.fp8_paged_mqa_logits(*arguments))  # noqa: B023
        take = eager if rows * columns >= LARGE else replayed
        theirs = take(lambda: logits(*arguments), rep=10)  # noqa: B023
        torch.cuda.empty_cache()
        out = torch.empty((rows, columns), device="cuda")
        fill = replayed(lambda: out.fill_(float("-inf")))  # noqa: B023
        found["logits"].append(
            {"rows": rows, "length": length, "columns": columns, "ours": ours, "upstream": theirs, "fill": fill}
            | {"bound": max(needed / bandwidth, operations / peak) * 1e6, "bytes": needed, "flop": operations}
        )
    return found


def check() -> dict[str, Any]:
    """Errors against FP64, ours and upstream's, on ordinary and on nasty inputs; graph replay with other lengths."""
    decode, logits = upstream()
    found: dict[str, Any] = {"decode": [], "logits": [], "graph": {}}

    def judge(name: str, arguments: list[Any], parts: Any) -> None:
        wanted, wanted_lse = reference.attention(arguments[0], parts, arguments[4], arguments[6])
        line: dict[str, Any] = {"case": name, "rounding": reference.relative_error(wanted.bfloat16(), wanted)}
        for who, call in (("ours", sparse_mla.flash_mla_sparse_decode), ("upstream", decode)):
            out, lse = call(*arguments)
            line[who] = reference.relative_error(out[:, 0], wanted)
            line[f"{who}_lse"] = reference.relative_error(lse[..., 0], wanted_lse)
        found["decode"].append(line)

    for heads, topk, page in itertools.product((8, 16, 64, 128), (64, 512, 2048), (64, 256)):
        judge(f"{heads} heads, top-k {topk}, page {page}", *decode_input(3, heads, topk, page, wanted=True))
    for rows in (1, 512):
        judge(f"{rows} rows", *decode_input(rows, 16, 64, wanted=True))
    judge("two caches", *decode_input(5, 64, 128, extra=512, wanted=True))
    arguments, parts = decode_input(5, 16, 128, extra=512, wanted=True)
    arguments[3].copy_(torch.tensor([1, 0, 63, 64, 65]))
    arguments[9].copy_(torch.tensor([0, 0, 512, 1, 256]))
    arguments[2][3] = -1
    arguments[8][2, 0, ::2] = -1
    judge("two caches, empty rows, -1 among them", arguments, parts)
    arguments, parts = decode_input(3, 16, 512, wanted=True)
    arguments[2].fill_(-1)
    judge("all -1", arguments, parts)
    for exponents in ((67, 187), (120, 131), (1, 60)):
        judge(f"exponents {exponents}", *decode_input(3, 16, 512, exponents=exponents, wanted=True))
    arguments, parts = decode_input(3, 64, 512, wanted=True)
    arguments[4] = None
    judge("no sink", arguments, parts)

    ragged = [0, 1, 63, 64, 65, 127, 128, 129, 511, 4095, 4096, 8191, 8192]
    for name, arguments, given in (
        ("page edges", *logits_input(ragged, 8192, wanted=True)),
        ("one row", *logits_input([8000], 8192, wanted=True)),
        ("512 rows", *logits_input([(i * 37) % 700 for i in range(512)], 768, wanted=True)),
        ("tiny scales", *logits_input([512] * 4, 1024, wanted=True, scales=(1e-30, 2e-30))),
        ("huge scales", *logits_input([512] * 4, 1024, wanted=True, scales=(1e28, 2e28))),
        ("columns no multiple of a page", *logits_input([1000, 100], 1001, wanted=True)),
    ):
        wanted = reference.logits(given)
        line = {"case": name}
        for who, call in (("ours", indexer.fp8_paged_mqa_logits), ("upstream", logits)):
            line[who] = reference.relative_error(call(*arguments), wanted)
        found["logits"].append(line)

    arguments, _ = decode_input(8, 64, 512)
    table, _ = logits_input([8192] * 8, 8192)
    sparse_mla.flash_mla_sparse_decode(*arguments)
    indexer.fp8_paged_mqa_logits(*table)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = sparse_mla.flash_mla_sparse_decode(*arguments)
        scores = indexer.fp8_paged_mqa_logits(*table)
    same = []
    for lengths in ([512] * 8, [0, 1, 31, 32, 33, 64, 200, 511], [512, 0] * 4):
        arguments[3].copy_(torch.tensor(lengths))
        table[3].copy_(torch.tensor([n * 16 for n in lengths]))
        for poisoned in (out, lse, scores):
            poisoned.fill_(float("nan"))
        graph.replay()
        fresh, fresh_lse = sparse_mla.flash_mla_sparse_decode(*arguments)
        fresh_scores = indexer.fp8_paged_mqa_logits(*table)
        same += [torch.equal(out, fresh), torch.equal(lse, fresh_lse), torch.equal(scores, fresh_scores)]
    found["graph"] = {"replays": 3, "equal": all(same)}
    return found


def memcheck() -> dict[str, Any]:
    """A little of everything, for compute-sanitizer."""
    for rows, heads, extra in ((1, 16, 0), (3, 20, 64), (70, 16, 64)):
        arguments, _ = decode_input(rows, heads, 96, page=64, extra=extra)
        arguments[3][0] = 0
        arguments[2][-1, 0, ::3] = -1
        sparse_mla.flash_mla_sparse_decode(*arguments)
    arguments, _ = logits_input([0, 1, 64, 65, 1001], 1001)
    indexer.fp8_paged_mqa_logits(*arguments)
    torch.cuda.synchronize()
    return {"ran": True}


def about() -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}


def main() -> None:
    chosen = sys.argv[1] if len(sys.argv) > 1 else "check"
    print(json.dumps(about() | {"speed": speed, "check": check, "memcheck": memcheck}[chosen](), indent=1))


if __name__ == "__main__":
    main()
