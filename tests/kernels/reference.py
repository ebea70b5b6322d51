"""What the kernels should compute, in FP64 and by the plainest code, and inputs to try them on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

NOPE, GROUP = 448, 64


def page_bytes(page: int) -> int:
    """Bytes of a page of the attention's cache: 584 a token, filled up to a multiple of 576."""
    return -(-page * 584 // 576) * 576


@dataclass
class Cache:
    """A paged cache beside the FP64 tokens that it stands for."""

    view: torch.Tensor  # [pages, page, 1, 584] FP8, the first stride the bytes of a page
    tokens: torch.Tensor  # [pages * page, 512] FP64


def attention_cache(
    pages: int, page: int, generator: torch.Generator, exponents: tuple[int, int] = (120, 131), wanted: bool = True
) -> Cache:
    """Random tokens on the generator's device; padding holds NaN.

    The exponent bytes are drawn from `exponents`, both ends included. Without `wanted` there are no FP64
    tokens beside them (eight times the memory).
    """
    here = generator.device
    raw = torch.full((pages, page_bytes(page)), 0x7F, dtype=torch.uint8, device=here)  # NaN in FP8, in BF16 too
    values = torch.randn((pages, page, NOPE), generator=generator, device=here).to(torch.float8_e4m3fn)
    rope = torch.randn((pages, page, 64), generator=generator, device=here).to(torch.bfloat16)
    low, high = exponents
    scale = torch.randint(low, high + 1, (pages, page, 7), generator=generator, dtype=torch.uint8, device=here)
    data = raw[:, : page * 576].view(pages, page, 576)
    data[..., :NOPE] = values.view(torch.uint8)
    data[..., NOPE:] = rope.view(torch.uint8).view(pages, page, 128)
    raw[:, page * 576 : page * 584].view(pages, page, 8)[..., :7] = scale
    view = raw.view(torch.float8_e4m3fn).as_strided((pages, page, 1, 584), (raw.stride(0), 584, 584, 1))
    if not wanted:
        return Cache(view, torch.empty((0, 512), dtype=torch.float64, device=here))
    factor = torch.exp2(scale.double() - 127).repeat_interleave(GROUP, dim=-1)
    tokens = torch.cat([values.double() * factor, rope.double()], dim=-1).view(pages * page, 512)
    return Cache(view, tokens)


def attention(
    q: torch.Tensor,
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]],
    sink: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [rows, heads, 512], lse [rows, heads]) in FP64; parts are (tokens, indices [rows, topk], lengths)."""
    rows, heads = q.shape[0], q.shape[-2]
    out = torch.zeros((rows, heads, 512), dtype=torch.float64, device=q.device)
    lse = torch.full((rows, heads), float("-inf"), dtype=torch.float64, device=q.device)
    for row in range(rows):
        chosen = []
        for tokens, indices, lengths in parts:
            mine = indices.reshape(rows, -1)[row]
            if lengths is not None:
                mine = mine[: int(lengths[row])]
            chosen.append(tokens[mine[mine >= 0].long()])
        kv = torch.cat(chosen)
        scores = q[row].reshape(heads, 512).double() @ kv.T * scale
        if sink is not None:
            scores = torch.cat([scores, sink.double()[:, None]], dim=1)
        if scores.shape[1] == 0:
            continue
        lse[row] = torch.logsumexp(scores, dim=1)
        weights = torch.softmax(scores, dim=1).nan_to_num(0.0)
        out[row] = weights[:, : kv.shape[0]] @ kv
    return out, lse


@dataclass
class IndexerInput:
    q: torch.Tensor  # [rows, 1, heads, 128] FP8
    cache: torch.Tensor  # [pages, 64, 1, 132] uint8
    weights: torch.Tensor  # [rows, heads] FP32
    lengths: torch.Tensor  # [rows] int32
    table: torch.Tensor  # [rows, n] int32
    columns: int
    keys: torch.Tensor = field(repr=False)  # [pages * 64, 128] FP64, scaled


def indexer_input(
    lengths: list[int],
    columns: int,
    heads: int,
    generator: torch.Generator,
    scales: tuple[float, float] = (0.01, 0.1),
    behind: int = -7,
    wanted: bool = True,
) -> IndexerInput:
    """Random rows of these lengths; entries of the page table behind a row's length are `behind`."""
    here = generator.device
    rows, most = len(lengths), -(-columns // 64)
    need = [-(-min(length, columns) // 64) for length in lengths]
    pages = sum(need) + 1
    raw = torch.empty((pages, 64 * 132), dtype=torch.uint8, device=here)
    values = torch.randn((pages, 64, 128), generator=generator, device=here).to(torch.float8_e4m3fn)
    scale = torch.empty((pages, 64), device=here).uniform_(*scales, generator=generator)
    raw[:, : 64 * 128] = values.view(torch.uint8).view(pages, -1)
    raw[:, 64 * 128 :] = scale.view(torch.uint8).view(pages, -1)
    order = torch.randperm(pages, generator=generator, device=here).to(torch.int32)
    table = torch.full((rows, most), behind, dtype=torch.int32, device=here)
    start = 0
    for row, count in enumerate(need):
        table[row, :count] = order[start : start + count]
        start += count
    return IndexerInput(
        q=torch.randn((rows, 1, heads, 128), generator=generator, device=here).to(torch.float8_e4m3fn),
        cache=raw.view(pages, 64, 1, 132),
        weights=torch.randn((rows, heads), generator=generator, device=here),
        lengths=torch.tensor(lengths, dtype=torch.int32, device=here),
        table=table,
        columns=columns,
        keys=(values.double() * scale.double()[..., None]).view(-1, 128)
        if wanted
        else values.new_empty((0, 128)).double(),
    )


def logits(given: IndexerInput) -> torch.Tensor:
    """[rows, columns] in FP64, -inf behind each row's length."""
    rows = given.q.shape[0]
    out = torch.full((rows, given.columns), float("-inf"), dtype=torch.float64, device=given.q.device)
    for row in range(rows):
        length = min(int(given.lengths[row]), given.columns)
        at = torch.arange(length, device=given.q.device)
        tokens = given.table[row, at // 64].long() * 64 + at % 64
        scores = torch.relu(given.q[row, 0].double() @ given.keys[tokens].T)
        out[row, :length] = given.weights[row].double() @ scores
    return out


@dataclass
class MixingInput:
    """What hc_pre is given, apart from the layer's numbers, which are those of DeepSeek-V4."""

    x: torch.Tensor  # [rows, 4, hidden] BF16
    weight: torch.Tensor  # [24, 4 * hidden] FP32
    scale: torch.Tensor  # [3] FP32
    base: torch.Tensor  # [24] FP32


SINKHORN, RMS_EPS, EPS = 20, 1e-6, 1e-6


def mixing_input(
    rows: int, hidden: int, generator: torch.Generator, size: float = 1.0, weights: float = 0.02, outlier: float = 1.0
) -> MixingInput:
    """Random rows of standard deviation `size`, weights of `weights`; one value in 128 is `outlier` times larger."""
    here = generator.device
    x = torch.randn((rows, 4, hidden), generator=generator, device=here) * size
    x[..., ::128] *= outlier
    return MixingInput(
        x=x.to(torch.bfloat16),
        weight=torch.randn((24, 4 * hidden), generator=generator, device=here) * weights,
        scale=torch.rand(3, generator=generator, device=here) + 0.5,
        base=torch.randn(24, generator=generator, device=here),
    )


def products(given: MixingInput) -> torch.Tensor:
    """[rows, 24] in FP64: each row with each of the 24 weight vectors."""
    return given.x.double().flatten(1) @ given.weight.double().T


def mixing(given: MixingInput) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y [rows, hidden], post [rows, 4], comb [rows, 4, 4]) in FP64."""
    x = given.x.double()
    mixes = products(given) * torch.rsqrt(x.flatten(1).square().mean(1, keepdim=True) + RMS_EPS)
    for_y, for_post, for_comb = mixes.split((4, 4, 16), dim=1)
    base_y, base_post, base_comb = given.base.double().split((4, 4, 16))
    scale_y, scale_post, scale_comb = given.scale.double()
    y = torch.einsum("rs,rsh->rh", torch.sigmoid(for_y * scale_y + base_y) + EPS, x)
    post = 2 * torch.sigmoid(for_post * scale_post + base_post)
    comb = torch.softmax((for_comb * scale_comb + base_comb).view(-1, 4, 4), dim=2) + EPS
    comb = comb / (comb.sum(1, keepdim=True) + EPS)
    for _ in range(SINKHORN - 1):
        comb = comb / (comb.sum(2, keepdim=True) + EPS)
        comb = comb / (comb.sum(1, keepdim=True) + EPS)
    return y, post, comb


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference over the norm of what is wanted; inf where either is not finite alike."""
    found = found.double()
    if not torch.equal(found.isfinite(), wanted.isfinite()) or not torch.equal(
        found[~found.isfinite()], wanted[~wanted.isfinite()]
    ):
        return float("inf")
    finite = wanted.isfinite()
    difference = (found[finite] - wanted[finite]).norm()
    return float(difference / wanted[finite].norm().clamp(min=1e-300)) if difference > 0 else 0.0
