"""Weights and KV cache of a rank against its card, beside what servers measured."""

from __future__ import annotations

import pytest

from tasks.plan.model import memory
from tasks.plan.settings.roles import Role
from tasks.support import catalogue
from tests.plan.builders import profile, settings

H200_MIB = 143771


def role(name: str = "decode", **changes: object) -> Role:
    return settings(**{f"{name}_{key}": value for key, value in changes.items()}).roles[name]


def qwen2_7b():  # type: ignore[no-untyped-def]
    said = catalogue.stated("random-qwen2-7b").fields
    return profile(**{**said, "size_gb": 15.231})  # as the generator writes it: 15,231 MB of bfloat16


@pytest.mark.parametrize(("fraction", "measured"), [(0.7, 1_554_816), (0.5, 1_033_600)])
def test_the_tokens_that_a_server_measured(fraction: float, measured: int) -> None:
    """Two decode servers on H200 (docs/measurements.md): SGLang 0.5.16 and 0.5.23, pages of 64."""
    expected = memory.fit(qwen2_7b(), role(tensor_parallel=1, mem_fraction=fraction), H200_MIB).tokens
    assert abs(expected / measured - 1) < 0.01


def test_weights_that_fill_what_a_role_may_take() -> None:
    """65.6 GB on a card of 102.6, of which decode takes 0.60."""
    one = memory.fit(profile(size_gb=65.6), role(tensor_parallel=1, mem_fraction=0.60), 97887)
    assert (round(one.card, 1), round(one.budget, 1), one.tokens, one.kv) == (102.6, 60.6, 0, 0.0)
    assert 0.64 < one.needed_fraction < 0.66
    assert round(one.left, 1) == 37.0


def test_ranks_share_the_weights() -> None:
    whole, shared = (
        memory.fit(profile(size_gb=80), role(tensor_parallel=parallel), 97887).weights for parallel in (1, 4)
    )
    assert (whole, shared) == (80, 20)


def test_a_draft_takes_room_only_where_it_is_used() -> None:
    drafting = profile(size_gb=62, draft_share=1 / 62, speculative_algorithm="NEXTN")
    assert memory.fit(drafting, role(tensor_parallel=1), 97887).weights == pytest.approx(61)
    assert memory.fit(drafting, role(tensor_parallel=1), 97887, speculative=True).weights == 62


def test_tokens_come_in_whole_pages() -> None:
    one = memory.fit(profile(size_gb=1, page_size=256), role(tensor_parallel=1), 97887)
    assert one.tokens % 256 == 0
    assert one.tokens * one.bytes_per_token / 1e9 <= one.kv


def test_a_card_of_unknown_size_holds_nothing() -> None:
    assert memory.fit(profile(), role(), 0).tokens == 0
