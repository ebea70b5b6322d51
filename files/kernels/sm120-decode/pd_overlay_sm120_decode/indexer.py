"""Indexer logits on tensor cores, for DeepSeek-V4's paged FP8 index keys.

One page of the cache holds, for 64 tokens: 128 bytes a token (FP8 e4m3), then one FP32 scale a token.
The logit of a token is scale * sum over heads of weight * relu(q . k).

Each row is walked by some programs. How many there are follows from shapes alone, so a captured graph
stays right when lengths change; how much each does follows from the row's length, read on the GPU.
"""

import functools

import torch
import triton
import triton.language as tl

PAGE, WIDTH = 64, 128  # tokens of a page, values of a token
PAGE_BYTES = PAGE * (WIDTH + 4)


@triton.jit(do_not_specialize=["workers"])  # one binary for every batch size
def _logits(
    q, keys, scales, weights, lengths, table, out,
    heads, columns, q_row, q_head, weight_row, length_row, table_row, table_columns, workers,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, FILL: tl.constexpr,
    IN_BF16: tl.constexpr, EXACT_TERMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // workers).to(tl.int64)
    worker = tl.program_id(0) % workers
    length = tl.minimum(tl.load(lengths + row * length_row).to(tl.int32), tl.minimum(columns, table_columns * 64))
    length = tl.maximum(length, 0)
    out += row * columns

    if worker * TOKENS < length:
        head = tl.arange(0, HEADS)
        value = tl.arange(0, 128)
        query = tl.load(
            q + row * q_row + head[:, None] * q_head + value[None, :], mask=(head < heads)[:, None], other=0.0
        )
        if IN_BF16:
            query = query.to(tl.bfloat16)
        query = tl.trans(query)
        weight = tl.load(weights + row * weight_row + head, mask=head < heads, other=0.0).to(tl.float32)
        for start in tl.range(worker * TOKENS, length, workers * TOKENS, num_stages=STAGES):
            t = start + tl.arange(0, TOKENS)
            page = tl.load(table + row * table_row + t // 64, mask=t < length, other=-1).to(tl.int64)
            there = page >= 0
            page = tl.where(there, page, 0)
            key = tl.load(
                keys + (page * 8448 + (t % 64) * 128)[:, None] + value[None, :], mask=there[:, None], other=0.0
            )
            scale = tl.load(scales + page * 2112 + 2048 + t % 64, mask=there, other=0.0)
            if IN_BF16:
                score = tl.dot(key.to(tl.bfloat16), query)
            else:
                score = tl.dot(key, query, max_num_imprecise_acc=EXACT_TERMS)
            logit = tl.sum(tl.maximum(score, 0.0) * weight[None, :], 1) * scale
            tl.store(out + t, tl.where(there, logit, float("-inf")), mask=t < columns)

    # Behind the row's length stands -inf, as upstream has it; the last tile has written up to `done`.
    done = (length + TOKENS - 1) // TOKENS * TOKENS
    for start in range(done + worker * FILL, columns, workers * FILL):
        t = start + tl.arange(0, FILL)
        tl.store(out + t, tl.full([FILL], float("-inf"), tl.float32), mask=t < columns)


@functools.lru_cache
def _device(index):
    """(multiprocessors, (major, minor)) of a GPU."""
    found = torch.cuda.get_device_properties(index)
    return found.multi_processor_count, (found.major, found.minor)


def launch_options(rows, columns, capability, multiprocessors):
    """How _logits is launched: its constants TOKENS, FILL and STAGES, workers a row and num_warps.

    Found by measuring (docs/kernels.md); on compute capability 12.0 four warps would spill registers.
    """
    tokens, programs = 128, multiprocessors * 16
    workers = max(1, min(-(-columns // tokens), -(-programs // rows)))
    return {
        "TOKENS": tokens,
        "workers": workers,
        "FILL": 2048,
        "STAGES": 2,
        "num_warps": 8 if capability[0] >= 12 else 4,
    }


def fp8_paged_mqa_logits(
    q_fp8,
    kvcache_fp8,
    weight,
    seq_lens,
    page_table,
    deep_gemm_metadata,
    max_seq_len,
    clean_logits=True,
    options=None,
):
    """The indexer's logit of every token of every row.

    q_fp8: [rows, 1, heads, 128] FP8 e4m3. kvcache_fp8: [pages, 64, 1, 132], one byte a value, contiguous.
    weight: [rows, heads]. seq_lens: [rows] or [rows, 1], tokens of a row. page_table: [rows, n] int32,
    its first ceil(length / 64) entries are read; below 0 is no page, whose tokens get -inf.
    deep_gemm_metadata is not used. options: for measuring, in place of launch_options.

    Returns [rows, max_seq_len] FP32. Behind a row's length stands -inf, whatever clean_logits says, as in
    the function of upstream that this stands in for. ValueError for shapes it does not serve.
    """
    rows, queries, heads, width = q_fp8.shape
    if (queries, width) != (1, WIDTH) or tuple(kvcache_fp8.shape[1:]) != (PAGE, 1, WIDTH + 4):
        raise ValueError(
            f"q {tuple(q_fp8.shape)}, cache {tuple(kvcache_fp8.shape)}: served are [rows, 1, heads, 128] and "
            "[pages, 64, 1, 132]"
        )
    if weight.shape != (rows, heads) or seq_lens.numel() != rows or page_table.shape[0] != rows:
        raise ValueError(
            f"{rows} rows and {heads} heads, but weight {tuple(weight.shape)}, seq_lens {tuple(seq_lens.shape)}, "
            f"page_table {tuple(page_table.shape)}"
        )
    out = torch.empty((rows, max_seq_len), dtype=torch.float32, device=q_fp8.device)
    if out.numel() == 0:
        return out
    q = q_fp8[:, 0]
    if q.stride(-1) != 1:
        q = q.contiguous()
    if page_table.stride(-1) != 1:
        page_table = page_table.contiguous()
    raw = kvcache_fp8.view(-1).view(torch.uint8)
    if weight.stride(-1) != 1:
        weight = weight.contiguous()

    if options is None:
        processors, capability = _device(q.device.index) if q.is_cuda else (1, (0, 0))
        options = launch_options(rows, max_seq_len, capability, processors)
    options = {"IN_BF16": False, "EXACT_TERMS": WIDTH, **options}
    warps, workers = options.pop("num_warps"), options.pop("workers")
    _logits[(rows * workers,)](
        q,
        raw.view(torch.float8_e4m3fn),
        raw.view(torch.float32),
        weight,
        seq_lens,
        page_table,
        out,
        heads,
        max_seq_len,
        q.stride(0),
        q.stride(1),
        weight.stride(0),
        seq_lens.stride(0),
        page_table.stride(0),
        page_table.shape[1],
        workers,
        HEADS=max(16, triton.next_power_of_2(heads)),
        num_warps=warps,
        **options,
    )
    return out
