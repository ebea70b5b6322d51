"""What the kernels take of an sm_120 multiprocessor, from the compiler alone: no GPU is needed.

    PYTHONPATH=files/kernels/sm120-decode:files/kernels/sm120-hc-pre python -m tests.kernels.resources

prints one JSON object a line: every variant that launch_options can choose on compute capability 12.0,
with registers a thread, bytes of stack (spills), bytes of shared memory a block.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from pd_overlay_sm120_decode import indexer, sparse_mla
from pd_overlay_sm120_hc_pre import mixing
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 120, 32)
PROCESSORS = 188  # RTX PRO 6000 Blackwell
POINTERS = {
    "q": "*bf16", "fp8": "*fp8e4nv", "words": "*i64", "bf16": "*bf16", "indices": "*i32", "lengths": "*i32",
    "extra_fp8": "*fp8e4nv", "extra_words": "*i64", "extra_bf16": "*bf16", "extra_indices": "*i32",
    "extra_lengths": "*i32", "sink": "*fp32", "out": "*bf16", "lse": "*fp32", "part": "*fp32", "part_m": "*fp32",
    "part_l": "*fp32", "keys": "*fp8e4nv", "scales": "*fp32", "weights": "*fp32", "table": "*i32",
    "x": "*bf16", "weight": "*fp32", "base": "*fp32", "y": "*bf16", "post": "*fp32", "comb": "*fp32",
}  # fmt: skip
ALIGNED = {
    "topk",
    "extra_topk",
    "q_row",
    "q_head",
    "index_row",
    "extra_index_row",
    "columns",
    "table_row",
    "weight_row",
    "x_row",
}


def compiled(function: Any, constants: dict[str, Any], warps: int, **types: str) -> dict[str, int]:
    """Registers, stack and shared memory of a kernel compiled for sm_120."""
    names = function.arg_names
    known = POINTERS | dict.fromkeys(("scale", "rms_eps", "eps"), "fp32") | types
    signature = {name: "constexpr" if name in constants else known.get(name, "i32") for name in names}
    aligned = [n for n in names if n not in constants and (signature[n].startswith("*") or n in ALIGNED)]
    source = ASTSource(
        function,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    kernel = triton.compile(source, target=TARGET, options={"num_warps": warps})
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    used = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert used, text
    registers, stack, local = map(int, used.groups())
    return {"registers": registers, "stack": stack, "local": local, "shared": kernel.metadata.shared}


def variants() -> list[dict[str, int]]:
    """The distinct choices of launch_options on 12.0, without the number of shares."""
    found = []
    for heads in (8, 16, 32, 64, 128):
        for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            for topk in (64, 128, 512, 2048):
                tiles = lambda tokens, n=topk: -(-n // tokens)  # noqa: E731
                chosen = sparse_mla.launch_options(heads, rows, tiles, (12, 0), PROCESSORS)
                del chosen["splits"]
                if chosen not in found:
                    found.append(chosen)
    return found


def mixing_lines() -> None:
    """The distinct choices of mixing.launch_options on 12.0, for 4 streams of 4,096 and of 7,168."""
    shown = []
    for hidden in (4096, 7168):
        for rows in (1, 16, 17, 64, 256, 257, 512, 1024, 1025, 4096, 8192, 32768):
            first, second = mixing.launch_options(rows, 4 * hidden, (12, 0), PROCESSORS)
            second |= {"SHARES_PADDED": mixing.padded(first.pop("shares"))}
            for kernel, function, chosen, constants, types in (
                ("product", mixing._product, first, {"WIDTH": 4 * hidden, "WIDE": False}, {}),
                ("finish", mixing._finish, second, {"HIDDEN": hidden, "ITERATIONS": 20}, {"scale": "*fp32"}),
            ):
                if (kernel, hidden, chosen) in shown:
                    continue
                shown.append((kernel, hidden, dict(chosen)))
                warps = chosen.pop("num_warps")
                used = compiled(function, chosen | constants, warps, **types)
                print(json.dumps({"kernel": kernel, "hidden": hidden, **chosen, "warps": warps, **used}), flush=True)


def main() -> None:
    for chosen in variants():
        warps = chosen.pop("num_warps")
        for split, extra in ((True, True), (False, True), (False, False)):
            constants = chosen | {
                "PAGE": 256, "PAGE_BYTES": 149760, "EXTRA_PAGE": 64, "EXTRA_PAGE_BYTES": 37440, "BOUNDED": True,
                "EXTRA": extra, "EXTRA_BOUNDED": extra, "SINK": True, "SPLIT": split, "PRECISE": True, "WIDE": False,
            }  # fmt: skip
            used = compiled(sparse_mla._decode, constants, warps)
            line = {"kernel": "decode", **chosen, "warps": warps, "split": split, "extra": extra, **used}
            print(json.dumps(line), flush=True)
    for padded in (2, 64):
        columns = min(sparse_mla.D, sparse_mla.MERGED_AT_ONCE // padded)
        used = compiled(sparse_mla._merge, {"SINK": True, "SPLITS_PADDED": padded, "COLUMNS": columns}, 4)
        print(json.dumps({"kernel": "merge", "parts": padded, "warps": 4, **used}), flush=True)
    chosen = indexer.launch_options(64, 131072, (12, 0), PROCESSORS)
    warps = chosen.pop("num_warps")
    del chosen["workers"]
    constants = chosen | {"HEADS": 64, "IN_BF16": False, "EXACT_TERMS": 128}
    used = compiled(indexer._logits, constants, warps, q="*fp8e4nv", out="*fp32")
    print(json.dumps({"kernel": "logits", **chosen, "warps": warps, **used}), flush=True)
    mixing_lines()


if __name__ == "__main__":
    main()
