"""The mixing before a sublayer with hyper-connections (hc_pre of DeepSeek-V4), on tensor cores.

A row of the state is 4 streams of `hidden` values, BF16. All 4 * hidden of them are multiplied with 24
FP32 weight vectors and by the reciprocal root of their mean square. Of the 24 results, 4 become the
streams' weights in y, 4 the weights with which the sublayer's output is added to each stream, and 16 a
4 x 4 matrix that sinkhorn's alternate normalising makes nearly doubly stochastic.

Two kernels: `_product` reads the state once for the 24 sums and the squares; rows of small batches are
shared out over several programs. `_finish` adds those shares up, and reads the state a second time for y.

The state is BF16 already, so it goes into the tensor cores as it is. A weight goes in as three BF16
numbers that add up to all 24 bits of it, so each product is exact, as in FP32. The sums of STEP products
are added up outside the tensor cores, which cut off where FP32 rounds: over 16,384 terms that would count.
"""

import functools

import torch
import triton
import triton.language as tl

STREAMS, MIXES = 4, 24  # of a row; its sums: 4 + 4 + 4 * 4
KEPT = tl.constexpr(32)  # numbers of a row and share: 24 sums, the sum of squares, 7 unused
WIDEST_STEP = 128
MOST_SHARES = 128


@triton.jit
def _rounded(x, WIDE: tl.constexpr):
    # The interpreter multiplies BF16 as integers: there the rounded value goes on as FP32.
    x = x.to(tl.bfloat16)
    if WIDE:
        x = x.to(tl.float32)
    return x


@triton.jit
def _dot(a, b, c, WIDE: tl.constexpr):
    if WIDE:
        return tl.dot(a, tl.trans(b), c, input_precision="ieee")
    return tl.dot(a, tl.trans(b), c)


@triton.jit(do_not_specialize=["rows", "shares"])  # one binary for every batch size
def _product(
    x, weight, part, rows, x_row, shares,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    PARTS: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    share = tl.program_id(0) % shares
    row = tl.program_id(0) // shares * ROWS + tl.arange(0, ROWS)
    there = row < rows
    start = x + row.to(tl.int64)[:, None] * x_row
    column = tl.arange(0, KEPT)
    sums = tl.zeros([ROWS, KEPT], dtype=tl.float32)
    squares = tl.zeros([ROWS, STEP], dtype=tl.float32)
    steps = WIDTH // STEP
    for step in tl.range(share * steps // shares, (share + 1) * steps // shares, num_stages=STAGES):
        at = step * STEP + tl.arange(0, STEP)
        value = tl.load(start + at[None, :], mask=there[:, None], other=0.0)
        w = tl.load(weight + column[:, None] * WIDTH + at[None, :], mask=(column < 24)[:, None], other=0.0)
        high = w.to(tl.bfloat16).to(tl.float32)
        middle = (w - high).to(tl.bfloat16).to(tl.float32)
        operand = _rounded(value, WIDE)
        s = tl.zeros([ROWS, KEPT], dtype=tl.float32)
        if PARTS > 2:
            s = _dot(operand, _rounded(w - high - middle, WIDE), s, WIDE)
        if PARTS > 1:
            s = _dot(operand, _rounded(middle, WIDE), s, WIDE)
        sums += _dot(operand, _rounded(high, WIDE), s, WIDE)
        full = value.to(tl.float32)
        squares += full * full
    to = part + (share.to(tl.int64) * rows + row)[:, None] * KEPT
    tl.store(to + column[None, :], sums, mask=there[:, None] & (column < 24)[None, :])
    tl.store(to + 24, tl.sum(squares, 1)[:, None], mask=there[:, None])


@triton.jit(do_not_specialize=["rows", "shares"])
def _finish(
    x, part, scale, base, y, post, comb, rows, x_row, shares, rms_eps, eps,
    HIDDEN: tl.constexpr, ITERATIONS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SHARES_PADDED: tl.constexpr,
):  # fmt: skip
    # Last rows first: what _product read last is still in the L2 cache.
    pieces: tl.constexpr = HIDDEN // COLUMNS + 1
    piece = tl.program_id(0) % pieces
    block = (tl.num_programs(0) - 1 - tl.program_id(0)) // pieces
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    column = tl.arange(0, KEPT)
    share = tl.arange(0, SHARES_PADDED)
    at = (share[None, :, None] * rows.to(tl.int64) + row[:, None, None]) * KEPT + column[None, None, :]
    kept = (share < shares)[None, :, None] & there[:, None, None] & (column < 25)[None, None, :]
    total = tl.sum(tl.load(part + at, mask=kept, other=0.0), 1)
    square = tl.sum(tl.where((column == 24)[None, :], total, 0.0), 1)
    factor = tl.math.rsqrt(square / (HIDDEN * 4) + rms_eps)
    group = tl.minimum(column // 4, 2)
    by = tl.load(scale + group)[None, :]
    logit = total * factor[:, None] * by + tl.load(base + column, mask=column < 24, other=0.0)[None, :]

    if piece < HIDDEN // COLUMNS:
        weight = tl.sigmoid(logit) + eps
        value_at = (piece * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        out = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for stream in tl.static_range(4):
            start = x + row[:, None] * x_row + stream * HIDDEN
            value = tl.load(start + value_at, mask=there[:, None], other=0.0).to(tl.float32)
            out += tl.sum(tl.where((column == stream)[None, :], weight, 0.0), 1)[:, None] * value
        tl.store(y + row[:, None] * HIDDEN + value_at, out.to(y.dtype.element_ty), mask=there[:, None])
    else:
        is_post = there[:, None] & (column // 4 == 1)[None, :]
        tl.store(post + row[:, None] * 4 + (column - 4)[None, :], 2.0 * tl.sigmoid(logit), mask=is_post)
        # Lines 2 to 5 of eight are the matrix; the others stay 0.
        matrix = tl.reshape(logit, [ROWS, 8, 4])
        line = tl.arange(0, 8)[None, :, None]
        inside = (line >= 2) & (line < 6)
        matrix = tl.exp(matrix - tl.max(matrix, 2)[:, :, None])
        matrix = tl.where(inside, matrix / tl.sum(matrix, 2)[:, :, None] + eps, 0.0)
        matrix = matrix / (tl.sum(matrix, 1)[:, None, :] + eps)
        for _ in range(ITERATIONS - 1):
            matrix = matrix / (tl.sum(matrix, 2)[:, :, None] + eps)
            matrix = matrix / (tl.sum(matrix, 1)[:, None, :] + eps)
        place = row[:, None, None] * 16 + (line - 2) * 4 + tl.arange(0, 4)[None, None, :]
        tl.store(comb + place, matrix, mask=there[:, None, None] & inside)


@functools.lru_cache
def _device(index):
    """(multiprocessors, (major, minor)) of a GPU."""
    found = torch.cuda.get_device_properties(index)
    return found.multi_processor_count, (found.major, found.minor)


def launch_options(rows, width, capability, multiprocessors):
    """How the two kernels are launched: (of _product, of _finish), their constants, shares and num_warps.

    The figures were found by measuring (docs/kernels.md); on compute capability 12.0 a block has 99 KiB of
    shared memory, on 9.0 227.
    """
    small = capability[0] >= 12
    if rows <= 16:
        block, step, warps, stages, resident = 16, 128, 4, 3, 1
    elif rows <= 1024:
        block, step, warps, stages, resident = 64, 64, 8 if small else 4, 4, 2
    else:
        block, step, warps, stages, resident = 128, 64, 8, 4, 2
    if small:
        resident = 1
    shares = max(1, min(width // step, resident * multiprocessors // -(-rows // block), MOST_SHARES))
    hidden = width // STREAMS
    columns = next(n for n in (1024, 512, 256, 128) if hidden % n == 0 and (n == 128 or rows * hidden >= n * 256))
    return (
        {"ROWS": block, "STEP": step, "PARTS": 3, "STAGES": stages, "shares": shares, "num_warps": warps},
        {"ROWS": 1 if rows <= 256 else 4, "COLUMNS": columns, "num_warps": 4},
    )


def chosen_options(x):
    """launch_options for x, [rows, 4 * hidden], on the GPU that it is on."""
    processors, capability = _device(x.device.index) if x.is_cuda else (1, (0, 0))
    return launch_options(*x.shape, capability, processors)


def padded(shares):
    """The shares that _finish is compiled for: few sizes, so that a server compiles it seldom."""
    return max(16, triton.next_power_of_2(shares))


def products(x, weight, options):
    """[shares, rows, 32] FP32: shares of the 24 sums of a row, of its sum of squares, and 7 numbers not set.

    x: [rows, n] BF16, n a multiple of 128, the last stride 1. weight: [24, n] FP32, contiguous.
    """
    options = dict(options)
    rows, shares = x.shape[0], options.pop("shares")
    part = torch.empty((shares, rows, KEPT.value), dtype=torch.float32, device=x.device)
    _product[(-(-rows // options["ROWS"]) * shares,)](
        x, weight, part, rows, x.stride(0), shares, WIDTH=x.shape[1], WIDE=not x.is_cuda, **options
    )  # fmt: skip
    return part


def mix(x, weight, scale, base, iterations, rms_eps, eps, y=None, options=None):
    """What goes into a sublayer, and how its output is mixed back.

    x: [rows, 4, hidden] BF16, hidden a multiple of 128. weight: [24, 4 * hidden], scale: [3], base: [24], all FP32.
    iterations: of sinkhorn. rms_eps: added to the mean square; eps: to y's weights and to sums that are divided by.
    y: where to put the result, [rows, hidden]. options: for measuring, in place of launch_options.

    Returns (y [rows, hidden] BF16, post [rows, 4] FP32, comb [rows, 4, 4] FP32). ValueError for what it does not serve.
    """
    rows, streams, hidden = x.shape
    width = streams * hidden
    if (streams, x.dtype, weight.dtype, hidden % WIDEST_STEP) != (STREAMS, torch.bfloat16, torch.float32, 0):
        raise ValueError(
            f"x {tuple(x.shape)} {x.dtype}, weight {weight.dtype}: served are [rows, 4, n * {WIDEST_STEP}] "
            "torch.bfloat16 and torch.float32"
        )
    if (weight.shape, scale.shape, base.shape) != ((MIXES, width), (3,), (MIXES,)):
        raise ValueError(
            f"x {tuple(x.shape)}, but weight {tuple(weight.shape)}, scale {tuple(scale.shape)}, "
            f"base {tuple(base.shape)}: needed are ({MIXES}, {width}), (3,), ({MIXES},)"
        )
    if y is None:
        y = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    post = torch.empty((rows, STREAMS), dtype=torch.float32, device=x.device)
    comb = torch.empty((rows, STREAMS, STREAMS), dtype=torch.float32, device=x.device)
    if rows == 0:
        return y, post, comb
    if x.stride(2) != 1 or x.stride(1) != hidden:
        x = x.contiguous()
    flat = x.view(rows, width)
    first, second = options or chosen_options(flat)
    part = products(flat, weight.contiguous(), first)
    _finish[(-(-rows // second["ROWS"]) * (hidden // second["COLUMNS"] + 1),)](
        x, part, scale, base, y, post, comb, rows, x.stride(0), part.shape[0], rms_eps, eps,
        HIDDEN=hidden, ITERATIONS=iterations, SHARES_PADDED=padded(part.shape[0]), **second
    )  # fmt: skip
    return y, post, comb
