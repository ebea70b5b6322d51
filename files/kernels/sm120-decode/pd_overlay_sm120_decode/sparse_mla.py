"""Sparse MLA decode on tensor cores, for DeepSeek-V4's paged FP8 KV cache.

One page of the cache holds, for PAGE tokens: 576 bytes a token (448 no-rope values in FP8 e4m3, then
64 rope values in BF16), then 8 bytes a token (7 exponents, one for each 64 no-rope values: the scale
is 2 ** (byte - 127)), then padding to a multiple of 576 bytes. Keys and values are the same 512 numbers.

A program takes one row of the batch, up to HEADS of its heads and a share of its tokens: it reads each
token once for all those heads, which are the M of every product. Rows of small batches are shared out
over several programs, whose parts `_merge` puts together.
"""

import functools

import torch
import triton
import triton.language as tl

NOPE, ROPE, D = 448, 64, 512  # values of a token
TOKEN_BYTES, SCALE_BYTES = 576, 8  # of a token: its values, its scales with one byte unused
LOG2E = tl.constexpr(1.4426950408889634)
MERGED_AT_ONCE = 4096  # numbers that one program of _merge holds
MOST_SPLITS = 64  # parts of a row that one program of _merge can hold


@triton.jit
def _operand(x, WIDE: tl.constexpr):
    # The interpreter multiplies BF16 as integers: there the rounded value goes on as FP32.
    x = x.to(tl.bfloat16)
    if WIDE:
        x = x.to(tl.float32)
    return x


@triton.jit
def _query(q, there, FIRST: tl.constexpr, WIDE: tl.constexpr):
    return _operand(tl.load(q + (FIRST + tl.arange(0, 64))[None, :], mask=there[:, None], other=0.0), WIDE)


@triton.jit
def _token(indices, tile, last, length, TOKENS: tl.constexpr):
    # The tokens of a tile, below 0 for none.
    t = tile * TOKENS + tl.arange(0, TOKENS)
    return tl.load(indices + t, mask=(t < length) & (tile < last), other=-1)


@triton.jit
def _columns(fp8, start, there, FIRST: tl.constexpr):
    return tl.load(fp8 + (start + (FIRST + tl.arange(0, 64))[None, :]), mask=there[:, None], other=0.0)


@triton.jit
def _fetch(fp8, words, bf16, index, PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    # A tile as it stands in the cache: seven groups of FP8, the rope part, the scales.
    there = index >= 0
    index = tl.where(there, index, 0)
    page = (index // PAGE).to(tl.int64)
    slot = (index % PAGE).to(tl.int64)
    start = (page * PAGE_BYTES + slot * 576)[:, None]
    f0 = _columns(fp8, start, there, 0)
    f1 = _columns(fp8, start, there, 64)
    f2 = _columns(fp8, start, there, 128)
    f3 = _columns(fp8, start, there, 192)
    f4 = _columns(fp8, start, there, 256)
    f5 = _columns(fp8, start, there, 320)
    f6 = _columns(fp8, start, there, 384)
    rope = (page * (PAGE_BYTES // 2) + slot * 288)[:, None]
    f7 = tl.load(bf16 + (rope + (224 + tl.arange(0, 64))[None, :]), mask=there[:, None], other=0.0)
    scales = tl.load(words + (page * (PAGE_BYTES // 8) + PAGE * 72 + slot), mask=there, other=0)
    return f0, f1, f2, f3, f4, f5, f6, f7, scales


@triton.jit
def _scaled(value, scales, GROUP: tl.constexpr, WIDE: tl.constexpr):
    # Exact in BF16, since a scale is a power of two.
    exponent = (scales >> (GROUP * 8)).to(tl.int32) & 0xFF
    return _operand(value.to(tl.float32) * (exponent << 23).to(tl.float32, bitcast=True)[:, None], WIDE)


@triton.jit
def _scores(q, k, s, WIDE: tl.constexpr):
    if WIDE:
        return tl.dot(q, tl.trans(k), s, input_precision="ieee")
    return tl.dot(q, tl.trans(k), s)


@triton.jit
def _weighted(high, low, v, acc, PRECISE: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        return tl.dot(low, v, tl.dot(high, v, acc, input_precision="ieee"), input_precision="ieee")
    acc = tl.dot(high, v, acc)
    if PRECISE:
        acc = tl.dot(low, v, acc)
    return acc


@triton.jit
def _walk(
    q0, q1, q2, q3, q4, q5, q6, q7, m, z, o0, o1, o2, o3, o4, o5, o6, o7,
    fp8, words, bf16, indices, length, first, last, scale,
    PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, TOKENS: tl.constexpr,
    PRECISE: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # Tiles first to last of one cache, added to the running softmax (base 2).
    after = _token(indices, first, last, length, TOKENS)
    for tile in tl.range(first, last, num_stages=STAGES):
        index = after
        there = index >= 0
        f0, f1, f2, f3, f4, f5, f6, f7, scales = _fetch(fp8, words, bf16, index, PAGE, PAGE_BYTES)
        after = _token(indices, tile + 1, last, length, TOKENS)  # on its way while this tile is computed with
        # The branch is always taken. Behind it Triton sees BF16, not what became of FP8: only then does it
        # read the operands with ldmatrix, and hold them in shared memory once for both products.
        if tile < last:
            k0 = _scaled(f0, scales, 0, WIDE)
            k1 = _scaled(f1, scales, 1, WIDE)
            k2 = _scaled(f2, scales, 2, WIDE)
            k3 = _scaled(f3, scales, 3, WIDE)
            k4 = _scaled(f4, scales, 4, WIDE)
            k5 = _scaled(f5, scales, 5, WIDE)
            k6 = _scaled(f6, scales, 6, WIDE)
        else:
            k0 = _operand(tl.zeros([TOKENS, 64], dtype=tl.float32), WIDE)
            k1, k2, k3, k4, k5, k6 = k0, k0, k0, k0, k0, k0
        k7 = _operand(f7, WIDE)

        s = tl.zeros([q0.shape[0], TOKENS], dtype=tl.float32)
        s = _scores(q0, k0, s, WIDE)
        s = _scores(q1, k1, s, WIDE)
        s = _scores(q2, k2, s, WIDE)
        s = _scores(q3, k3, s, WIDE)
        s = _scores(q4, k4, s, WIDE)
        s = _scores(q5, k5, s, WIDE)
        s = _scores(q6, k6, s, WIDE)
        s = _scores(q7, k7, s, WIDE)
        s = tl.where(there[None, :], s * scale, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # a row without tokens so far: -inf - -inf is NaN
        p = tl.math.exp2(s - base[:, None])
        alpha = tl.math.exp2(m - base)
        m = m_new
        z = z * alpha + tl.sum(p, 1)
        # A weight in two BF16 halves keeps 16 bits of it: with one, its rounding would be the largest error.
        high = p.to(tl.bfloat16)
        low = _operand(p - high.to(tl.float32), WIDE)
        high = _operand(high, WIDE)
        o0 = _weighted(high, low, k0, o0 * alpha[:, None], PRECISE, WIDE)
        o1 = _weighted(high, low, k1, o1 * alpha[:, None], PRECISE, WIDE)
        o2 = _weighted(high, low, k2, o2 * alpha[:, None], PRECISE, WIDE)
        o3 = _weighted(high, low, k3, o3 * alpha[:, None], PRECISE, WIDE)
        o4 = _weighted(high, low, k4, o4 * alpha[:, None], PRECISE, WIDE)
        o5 = _weighted(high, low, k5, o5 * alpha[:, None], PRECISE, WIDE)
        o6 = _weighted(high, low, k6, o6 * alpha[:, None], PRECISE, WIDE)
        o7 = _weighted(high, low, k7, o7 * alpha[:, None], PRECISE, WIDE)
    return m, z, o0, o1, o2, o3, o4, o5, o6, o7


@triton.jit
def _with_sink(m, z, sink, head, there, SINK: tl.constexpr):
    # (factor of the accumulated values, log-sum-exp) of a finished row; the sink adds weight, but no value.
    if SINK:
        weight = tl.load(sink + head, mask=there, other=float("-inf")).to(tl.float32) * LOG2E
        top = tl.maximum(m, weight)
        base = tl.where(top == float("-inf"), 0.0, top)
        total = z * tl.math.exp2(m - base) + tl.math.exp2(weight - base)
        factor = tl.math.exp2(m - base) / tl.where(total > 0, total, 1.0)
    else:
        base = tl.where(m == float("-inf"), 0.0, m)
        total = z
        factor = 1.0 / tl.where(total > 0, total, 1.0)
    lse = tl.where(total > 0, (base + tl.math.log2(total)) / LOG2E, float("-inf"))
    return factor, lse


@triton.jit
def _store(pointer, value, row, FIRST: tl.constexpr, there):
    column = FIRST + tl.arange(0, 64)
    tl.store(pointer + (row * 512)[:, None] + column[None, :], value.to(pointer.dtype.element_ty), mask=there[:, None])


@triton.jit(do_not_specialize=["splits"])  # one binary for every batch size
def _decode(
    q, fp8, words, bf16, indices, lengths, extra_fp8, extra_words, extra_bf16, extra_indices, extra_lengths,
    sink, out, lse, part, part_m, part_l, scale, heads, topk, extra_topk, q_row, q_head, index_row, extra_index_row,
    splits,
    PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, EXTRA_PAGE: tl.constexpr, EXTRA_PAGE_BYTES: tl.constexpr,
    BOUNDED: tl.constexpr, EXTRA: tl.constexpr, EXTRA_BOUNDED: tl.constexpr, SINK: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, SPLIT: tl.constexpr,
    PRECISE: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # One dimension, the shares and head groups of a row side by side: they read the same tokens.
    split = tl.program_id(0) % splits
    groups = (heads + HEADS - 1) // HEADS
    group = tl.program_id(0) // splits % groups
    row = (tl.program_id(0) // splits // groups).to(tl.int64)

    head = group * HEADS + tl.arange(0, HEADS)
    is_head = head < heads
    q_start = q + row * q_row + head[:, None] * q_head
    q0 = _query(q_start, is_head, 0, WIDE)
    q1 = _query(q_start, is_head, 64, WIDE)
    q2 = _query(q_start, is_head, 128, WIDE)
    q3 = _query(q_start, is_head, 192, WIDE)
    q4 = _query(q_start, is_head, 256, WIDE)
    q5 = _query(q_start, is_head, 320, WIDE)
    q6 = _query(q_start, is_head, 384, WIDE)
    q7 = _query(q_start, is_head, 448, WIDE)

    m = tl.full([HEADS], float("-inf"), dtype=tl.float32)
    z = tl.zeros([HEADS], dtype=tl.float32)
    o0 = tl.zeros([HEADS, 64], dtype=tl.float32)
    o1, o2, o3, o4, o5, o6, o7 = o0, o0, o0, o0, o0, o0, o0

    length = topk
    if BOUNDED:
        length = tl.maximum(tl.minimum(tl.load(lengths + row).to(tl.int32), topk), 0)
    tiles = (length + TOKENS - 1) // TOKENS
    all_tiles = tiles
    if EXTRA:
        extra_length = extra_topk
        if EXTRA_BOUNDED:
            extra_length = tl.maximum(tl.minimum(tl.load(extra_lengths + row).to(tl.int32), extra_topk), 0)
        all_tiles += (extra_length + TOKENS - 1) // TOKENS
    share = (all_tiles + splits - 1) // splits  # of what is there, so short rows are shared out evenly too
    first = split * share
    last = tl.minimum(first + share, all_tiles)

    m, z, o0, o1, o2, o3, o4, o5, o6, o7 = _walk(
        q0, q1, q2, q3, q4, q5, q6, q7, m, z, o0, o1, o2, o3, o4, o5, o6, o7,
        fp8, words, bf16, indices + row * index_row, length, tl.minimum(first, tiles), tl.minimum(last, tiles), scale,
        PAGE, PAGE_BYTES, TOKENS, PRECISE, WIDE, STAGES,
    )  # fmt: skip
    if EXTRA:
        m, z, o0, o1, o2, o3, o4, o5, o6, o7 = _walk(
            q0, q1, q2, q3, q4, q5, q6, q7, m, z, o0, o1, o2, o3, o4, o5, o6, o7,
            extra_fp8, extra_words, extra_bf16, extra_indices + row * extra_index_row, extra_length,
            tl.maximum(first, tiles) - tiles, tl.maximum(last, tiles) - tiles, scale,
            EXTRA_PAGE, EXTRA_PAGE_BYTES, TOKENS, PRECISE, WIDE, STAGES,
        )  # fmt: skip

    if not SPLIT:
        factor, row_lse = _with_sink(m, z, sink, head, is_head, SINK)
        to = row * heads + head
        _store(out, o0 * factor[:, None], to, 0, is_head)
        _store(out, o1 * factor[:, None], to, 64, is_head)
        _store(out, o2 * factor[:, None], to, 128, is_head)
        _store(out, o3 * factor[:, None], to, 192, is_head)
        _store(out, o4 * factor[:, None], to, 256, is_head)
        _store(out, o5 * factor[:, None], to, 320, is_head)
        _store(out, o6 * factor[:, None], to, 384, is_head)
        _store(out, o7 * factor[:, None], to, 448, is_head)
        tl.store(lse + row * heads + head, row_lse, mask=is_head)
    else:
        to = (row * heads + head) * splits + split
        tl.store(part_m + to, m, mask=is_head)
        tl.store(part_l + to, z, mask=is_head)
        kept = is_head & (z > 0)  # what an empty share would write is not read either
        _store(part, o0, to, 0, kept)
        _store(part, o1, to, 64, kept)
        _store(part, o2, to, 128, kept)
        _store(part, o3, to, 192, kept)
        _store(part, o4, to, 256, kept)
        _store(part, o5, to, 320, kept)
        _store(part, o6, to, 384, kept)
        _store(part, o7, to, 448, kept)


@triton.jit(do_not_specialize=["splits"])
def _merge(
    part, part_m, part_l, sink, out, lse, heads, splits,
    SINK: tl.constexpr, SPLITS_PADDED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(0) % heads
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.arange(0, SPLITS_PADDED)
    at = row * splits + split
    each_m = tl.load(part_m + at, mask=split < splits, other=float("-inf"))
    each_l = tl.load(part_l + at, mask=split < splits, other=0.0)
    m = tl.max(each_m, 0)
    weight = tl.math.exp2(each_m - tl.where(m == float("-inf"), 0.0, m))
    z = tl.sum(each_l * weight, 0)
    value = tl.load(part + (at[:, None] * 512 + column[None, :]), mask=(each_l > 0)[:, None], other=0.0)
    factor, row_lse = _with_sink(m, z, sink, head, True, SINK)
    total = tl.sum(value * weight[:, None], 0) * factor
    tl.store(out + row * 512 + column, total.to(tl.bfloat16))
    if tl.program_id(1) == 0:
        tl.store(lse + row, row_lse)


@functools.lru_cache
def _device(index):
    """(multiprocessors, (major, minor)) of a GPU."""
    found = torch.cuda.get_device_properties(index)
    return found.multi_processor_count, (found.major, found.minor)


def launch_options(heads, rows, tiles_of, capability, multiprocessors):
    """How _decode is launched: its constants HEADS, TOKENS and STAGES, splits and num_warps.

    `tiles_of(TOKENS)` is the number of tiles of a row at most. The figures were found by measuring
    (docs/kernels.md); on compute capability 12.0 a block has 99 KiB of shared memory, on 9.0 227.
    """
    # Too little to do for every multiprocessor: smaller groups of heads make more programs.
    block = 16 if heads <= 16 or rows * -(-heads // 16) * tiles_of(64) <= 2 * multiprocessors else 32
    programs = rows * -(-heads // block)
    tokens, warps, stages, resident = 64, 8, 1, 1
    if programs * tiles_of(64) < multiprocessors // 4:
        tokens, warps = 16, 4
    elif heads <= 16 and capability[0] < 12:
        tokens, warps, stages, resident = 32, 4, 2, 2  # on 12.0 a second program finds no shared memory
    splits = max(1, min(tiles_of(tokens), resident * multiprocessors // programs, MOST_SPLITS))
    return {"HEADS": block, "TOKENS": tokens, "splits": splits, "STAGES": stages, "num_warps": warps}


def _views(cache):
    """(FP8, 64-bit words, BF16, tokens a page, bytes a page) of a paged cache, each view over all its bytes."""
    page, page_bytes = cache.shape[1], cache.stride(0)
    if cache.element_size() != 1 or cache.stride(-1) != 1 or page_bytes % TOKEN_BYTES:
        raise ValueError(f"cache of {cache.dtype}, strides {cache.stride()}: one byte a value, pages of n * 576 bytes")
    if page_bytes < page * (TOKEN_BYTES + SCALE_BYTES):
        raise ValueError(f"{page_bytes} bytes a page are too few for {page} tokens of 584 bytes")
    raw = cache.as_strided((cache.shape[0] * page_bytes,), (1,)).view(torch.uint8)
    return raw.view(torch.float8_e4m3fn), raw.view(torch.int64), raw.view(torch.bfloat16), page, page_bytes


def _rows(indices, rows):
    flat = indices.reshape(rows, -1)
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def flash_mla_sparse_decode(
    q,
    k_cache,
    indices,
    topk_length,
    attn_sink,
    head_dim_v,
    softmax_scale,
    extra_k_cache=None,
    extra_indices=None,
    extra_topk_length=None,
    options=None,
):
    """Attention of one query a row over the tokens that its indices name, in one or two caches.

    q: [rows, 1, heads, 512] BF16. k_cache: [pages, page, 1, bytes] FP8 or uint8, its first stride the bytes
    of a page. indices: [rows, 1, topk] int32, a token's page * page size + slot; below 0 is none.
    topk_length: [rows] or None, how many of them count. attn_sink: [heads] FP32 or None, the logarithm of
    a weight without a value. head_dim_v: 512. softmax_scale: None is 512 ** -0.5. The extra_ arguments
    are a second cache, which may have another page size. options: for measuring, in place of launch_options.

    Returns (out [rows, 1, heads, 512] BF16, lse [rows, heads, 1] FP32: natural logarithm, the sink counted).
    A row without a token gives out 0 and lse the sink, or -inf. ValueError for shapes it does not serve.
    """
    rows, queries, heads, width = q.shape
    if (queries, width, head_dim_v) != (1, D, D):
        raise ValueError(f"q {tuple(q.shape)}, head_dim_v {head_dim_v}: served are [rows, 1, heads, 512] and 512")
    if softmax_scale is None:
        softmax_scale = width**-0.5
    out = torch.empty((rows, 1, heads, D), dtype=torch.bfloat16, device=q.device)
    lse = torch.empty((rows, 1, heads), dtype=torch.float32, device=q.device)
    if rows == 0:
        return out, lse.permute(0, 2, 1)

    q = q[:, 0]
    if q.stride(-1) != 1:
        q = q.contiguous()
    main = _views(k_cache)
    indices = _rows(indices, rows)
    topk = indices.shape[1]
    extra = extra_k_cache is not None and extra_indices is not None
    second = _views(extra_k_cache) if extra else main
    extra_indices = _rows(extra_indices, rows) if extra else indices
    extra_topk = extra_indices.shape[1] if extra else 0

    def tiles_of(tokens):
        return -(-topk // tokens) + -(-extra_topk // tokens)

    if options is None:
        processors, capability = _device(q.device.index) if q.is_cuda else (1, (0, 0))
        options = launch_options(heads, rows, tiles_of, capability, processors)
    options = dict(options)
    warps = options.pop("num_warps")
    splits, block = options.pop("splits"), options["HEADS"]
    kept = rows * heads * splits if splits > 1 else 0
    part = torch.empty((kept, D), dtype=torch.float32, device=q.device)
    part_m, part_l = torch.empty((2, kept), dtype=torch.float32, device=q.device)

    _decode[(rows * -(-heads // block) * splits,)](
        q,
        *main[:3],
        indices,
        topk_length if topk_length is not None else indices,
        *second[:3],
        extra_indices,
        extra_topk_length if extra_topk_length is not None else indices,
        attn_sink if attn_sink is not None else lse,
        out,
        lse,
        part,
        part_m,
        part_l,
        float(softmax_scale) * LOG2E.value,
        heads,
        topk,
        extra_topk,
        q.stride(0),
        q.stride(1),
        indices.stride(0),
        extra_indices.stride(0),
        splits,
        PAGE=main[3],
        PAGE_BYTES=main[4],
        EXTRA_PAGE=second[3],
        EXTRA_PAGE_BYTES=second[4],
        BOUNDED=topk_length is not None,
        EXTRA=extra,
        EXTRA_BOUNDED=extra and extra_topk_length is not None,
        SINK=attn_sink is not None,
        SPLIT=splits > 1,
        PRECISE=options.pop("PRECISE", True),
        WIDE=not q.is_cuda,
        num_warps=warps,
        **options,
    )
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        columns = min(D, MERGED_AT_ONCE // padded)
        _merge[(rows * heads, D // columns)](
            part,
            part_m,
            part_l,
            attn_sink if attn_sink is not None else lse,
            out,
            lse,
            heads,
            splits,
            SINK=attn_sink is not None,
            SPLITS_PADDED=padded,
            COLUMNS=columns,
            num_warps=4,
        )
    return out, lse.permute(0, 2, 1)
