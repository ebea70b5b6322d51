"""Indexer logits against plain FP64, and what stands behind a row's length."""

import pytest
import torch
from pd_overlay_sm120_decode import indexer

from tests.kernels import reference

ERROR = 1e-6  # FP32 sums of exact products


def run(given: reference.IndexerInput, tokens: int = 64, workers: int = 2, fill: int = 128) -> torch.Tensor:
    options = {"TOKENS": tokens, "workers": workers, "FILL": fill, "STAGES": 1, "num_warps": 4}
    return indexer.fp8_paged_mqa_logits(
        given.q, given.cache, given.weights, given.lengths, given.table, None, given.columns, False, options=options
    )


def made(lengths: list[int], columns: int, heads: int = 64, **options) -> reference.IndexerInput:
    return reference.indexer_input(lengths, columns, heads, torch.Generator().manual_seed(3), **options)


@pytest.mark.parametrize("tokens", [64, 128])
@pytest.mark.parametrize("workers", [1, 3, 9])
def test_lengths_at_the_edges_of_pages(workers: int, tokens: int) -> None:
    given = made([0, 1, 63, 64, 65, 127, 128, 129, 300, 320], 320)
    assert reference.relative_error(run(given, tokens, workers), reference.logits(given)) < ERROR


@pytest.mark.parametrize("heads", [1, 16, 20, 64])
def test_heads(heads: int) -> None:
    given = made([100, 64], 128, heads)
    assert reference.relative_error(run(given), reference.logits(given)) < ERROR


@pytest.mark.parametrize("columns", [1, 63, 65, 129, 1000])
def test_columns_that_are_no_whole_pages(columns: int) -> None:
    given = made([min(columns, 65), columns], columns)
    assert reference.relative_error(run(given), reference.logits(given)) < ERROR


def test_entries_behind_the_length_are_not_read() -> None:
    given = made([65, 0], 640, behind=2**30)
    assert reference.relative_error(run(given), reference.logits(given)) < ERROR


def test_a_page_below_zero_is_none() -> None:
    given = made([128], 128)
    given.table[0, 0] = -1
    found = run(given)
    assert found[0, :64].isneginf().all()
    assert found[0, 64:].isfinite().all()


def test_a_length_beyond_the_columns_or_the_table_ends_there() -> None:
    given = made([128, 128], 128)
    given.lengths = torch.tensor([5000, 128], dtype=torch.int32)
    assert reference.relative_error(run(given), reference.logits(given)) < ERROR
    given.columns = 256
    assert run(given)[:, 128:].isneginf().all()


@pytest.mark.parametrize("scales", [(1e-30, 2e-30), (1e28, 2e28), (1e-3, 1e3)])
def test_scales_far_from_one(scales: tuple[float, float]) -> None:
    given = made([130, 5], 192, scales=scales)
    assert reference.relative_error(run(given), reference.logits(given)) < ERROR


def test_lengths_and_weights_as_the_server_gives_them() -> None:
    plain, given = made([100, 7], 128), made([100, 7], 128)
    given.lengths = given.lengths[:, None]
    given.weights = torch.stack([given.weights, given.weights], dim=2)[:, :, 0]
    assert torch.equal(run(given), run(plain))


def test_clean_logits_changes_nothing() -> None:
    given = made([10], 64)
    arguments = (given.q, given.cache, given.weights, given.lengths, given.table, None, 64)
    dirty, clean = (indexer.fp8_paged_mqa_logits(*arguments, clean_logits=asked) for asked in (False, True))
    assert torch.equal(dirty, clean)


def test_what_is_not_served_is_refused() -> None:
    given = made([10], 64)
    with pytest.raises(ValueError, match=r"served are \[rows, 1, heads, 128\]"):
        indexer.fp8_paged_mqa_logits(
            given.q[..., :64], given.cache, given.weights, given.lengths, given.table, None, 64
        )
    with pytest.raises(ValueError, match="1 rows and 64 heads"):
        indexer.fp8_paged_mqa_logits(given.q, given.cache, given.weights[:, :3], given.lengths, given.table, None, 64)
