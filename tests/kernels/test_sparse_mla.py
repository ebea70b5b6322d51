"""Sparse MLA decode against plain FP64: ordinary shapes and those that go wrong first."""

import pytest
import torch
from pd_overlay_sm120_decode import sparse_mla

from tests.kernels import reference

# The interpreter cuts FP32 off to BF16 where a GPU rounds: up to 2 ** -8, 0.6 of it in the mean.
OUT, LSE = 2**-8, 2e-6
SCALE = 512**-0.5


def options(splits: int = 1, tokens: int = 32, heads: int = 16) -> dict[str, int]:
    return {"HEADS": heads, "TOKENS": tokens, "splits": splits, "STAGES": 1, "num_warps": 4}


class Case:
    """Random rows over one cache, or two."""

    def __init__(self, rows=2, heads=16, topk=64, page=64, extra=0, extra_page=64, exponents=(124, 129)) -> None:
        g = torch.Generator().manual_seed(7)
        self.cache = reference.attention_cache(3, page, g, exponents)
        self.q = torch.randn((rows, 1, heads, 512), generator=g).to(torch.bfloat16)
        self.indices = torch.randint(0, 3 * page, (rows, 1, topk), generator=g, dtype=torch.int32)
        self.lengths: torch.Tensor | None = torch.full((rows,), topk, dtype=torch.int32)
        self.sink: torch.Tensor | None = torch.randn(heads, generator=g)
        self.second = reference.attention_cache(4, extra_page, g, exponents) if extra else None
        self.extra = torch.randint(0, 4 * extra_page, (rows, 1, extra), generator=g, dtype=torch.int32)
        self.extra_lengths: torch.Tensor | None = torch.full((rows,), extra, dtype=torch.int32)

    def run(self, **chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
        second = (self.second.view, self.extra, self.extra_lengths) if self.second else ()
        out, lse = sparse_mla.flash_mla_sparse_decode(
            self.q,
            self.cache.view,
            self.indices,
            self.lengths,
            self.sink,
            512,
            None,
            *second,
            options=options(**chosen),
        )
        assert out.shape == self.q.shape and out.dtype == torch.bfloat16
        assert lse.shape == (self.q.shape[0], self.q.shape[2], 1) and lse.dtype == torch.float32
        return out[:, 0], lse[..., 0]

    def wanted(self) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [(self.cache.tokens, self.indices, self.lengths)]
        if self.second:
            parts.append((self.second.tokens, self.extra, self.extra_lengths))
        return reference.attention(self.q, parts, self.sink, SCALE)

    def holds(self, **chosen: int) -> None:
        (out, lse), (wanted, wanted_lse) = self.run(**chosen), self.wanted()
        assert reference.relative_error(out, wanted) < OUT
        assert reference.relative_error(lse, wanted_lse) < LSE


@pytest.mark.parametrize("heads", [1, 8, 16, 20, 64])
def test_heads_are_taken_in_groups(heads: int) -> None:
    Case(heads=heads, topk=32).holds()


@pytest.mark.parametrize("page", [2, 64, 256])
@pytest.mark.parametrize("splits", [1, 3, 8])
def test_pages_and_shares(page: int, splits: int) -> None:
    Case(page=page, topk=96).holds(splits=splits)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("extra_page", [2, 64])
def test_a_second_cache_is_merged(extra_page: int, splits: int) -> None:
    Case(extra=40, extra_page=extra_page).holds(splits=splits)


@pytest.mark.parametrize("splits", [1, 4])
def test_lengths_at_the_edges_of_tiles_and_pages(splits: int) -> None:
    case = Case(rows=8, topk=70, extra=70)
    case.lengths = torch.tensor([0, 1, 31, 32, 33, 63, 64, 70], dtype=torch.int32)
    case.extra_lengths = torch.tensor([0, 0, 70, 1, 64, 65, 33, 32], dtype=torch.int32)
    case.holds(splits=splits)


def test_a_length_beyond_the_indices_or_below_nothing_counts_as_such() -> None:
    case, plain = Case(rows=2, topk=40), Case(rows=2, topk=40)
    case.lengths = torch.tensor([1000, -3], dtype=torch.int32)
    plain.lengths = torch.tensor([40, 0], dtype=torch.int32)
    assert torch.equal(case.run()[0], plain.run()[0])


@pytest.mark.parametrize("splits", [1, 2])
def test_holes_among_the_indices(splits: int) -> None:
    case = Case(rows=3)
    case.indices[0, 0, ::2] = -1
    case.indices[1, 0, :33] = -1
    case.indices[2, 0, 1:] = -1
    case.holds(splits=splits)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("sink", [True, False])
def test_a_row_without_a_token_is_zero(sink: bool, splits: int) -> None:
    case = Case(extra=32)
    case.indices.fill_(-1)
    case.extra_lengths = torch.tensor([0, 32], dtype=torch.int32)
    case.extra[1].fill_(-9)
    if not sink:
        case.sink = None
    out, lse = case.run(splits=splits)
    assert not out.any()
    wanted = case.sink.expand_as(lse) if case.sink is not None else torch.full_like(lse, float("-inf"))
    assert reference.relative_error(lse, wanted.double()) < LSE


def test_without_lengths_every_index_counts() -> None:
    case = Case(extra=32)
    case.lengths = case.extra_lengths = None
    case.holds()


@pytest.mark.parametrize("exponents", [(0, 0), (1, 30), (60, 190), (127, 127), (180, 190)])
def test_scales_far_from_one(exponents: tuple[int, int]) -> None:
    case = Case(exponents=exponents)
    if exponents == (0, 0):
        (out, _), (wanted, _) = case.run(), case.wanted()
        assert reference.relative_error(out[..., 448:], wanted[..., 448:]) < OUT  # 2 ** -127 itself is flushed
        assert out[..., :448].abs().max() < 1e-30
    else:
        case.holds(splits=2)


def test_a_sink_of_minus_infinity_is_none() -> None:
    case, plain = Case(), Case()
    case.sink = torch.full((16,), float("-inf"))
    plain.sink = None
    assert torch.equal(case.run()[0], plain.run()[0])


def test_one_row_one_token() -> None:
    Case(rows=1, topk=1).holds()


def test_indices_and_queries_that_are_views() -> None:
    case, plain = Case(rows=4), Case(rows=4)
    case.indices = torch.cat([plain.indices, plain.indices], dim=2)[:, :, :64]
    case.q = torch.cat([plain.q, plain.q], dim=2)[:, :, :16]
    assert torch.equal(case.run()[0], plain.run()[0])


def test_no_rows() -> None:
    case = Case(rows=1)
    out, lse = sparse_mla.flash_mla_sparse_decode(
        case.q[:0], case.cache.view, case.indices[:0], None, case.sink, 512, None
    )
    assert out.shape == (0, 1, 16, 512) and lse.shape == (0, 16, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: (c.q[..., :256], c.cache.view, 512), "512"),
        (lambda c: (c.q, c.cache.view, 256), "head_dim_v 256"),
        (lambda c: (c.q, c.cache.view.view(torch.uint8).to(torch.int16), 512), "one byte a value"),
        (lambda c: (c.q, c.cache.view.as_strided((3, 64, 1, 584), (576, 584, 584, 1)), 512), "too few"),
    ],
)
def test_what_is_not_served_is_refused(change, says: str) -> None:
    case = Case()
    q, cache, width = change(case)
    with pytest.raises(ValueError, match=says):
        sparse_mla.flash_mla_sparse_decode(q, cache, case.indices, None, None, width, None)


@pytest.mark.parametrize("capability", [(9, 0), (12, 0)])
@pytest.mark.parametrize("heads", [8, 16, 64, 128])
@pytest.mark.parametrize("rows", [1, 7, 64, 512])
def test_launch_options_fill_the_gpu_and_no_more(rows: int, heads: int, capability: tuple[int, int]) -> None:
    def tiles(tokens: int) -> int:
        return -(-2048 // tokens)

    found = sparse_mla.launch_options(heads, rows, tiles, capability, 188)
    programs = rows * -(-heads // found["HEADS"]) * found["splits"]
    assert 1 <= found["splits"] <= min(tiles(found["TOKENS"]), sparse_mla.MOST_SPLITS)
    assert found["splits"] == 1 or programs <= 2 * 188
