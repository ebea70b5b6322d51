"""Does a model fit the cards? Weights and KV cache of a rank against the memory that a server may take.

As SGLang 0.5.23 counts: mem_fraction of what is free at its start, less the weights, is the KV cache. What is left of
the card is for activations, CUDA graphs and the communication libraries.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.plan.model.profile import ModelProfile
from tasks.plan.settings.roles import Role

MIB, GB = 1 << 20, 1_000_000_000
# GB of a card that are gone before a server measures it: CUDA context, NCCL. Measured on H200 with two fractions.
BEFORE_START_GB = 1.6
LEAST_TOKENS = 1024  # with a cache for fewer, a server may come up, but serves nothing useful; a rule of thumb


@dataclass(frozen=True)
class Fit:
    """What one rank of a server does with its card, in GB."""

    card: float
    fraction: float
    weights: float
    budget: float  # for weights and KV cache together
    kv: float  # 0 where nothing is left for it
    tokens: int  # that the KV cache holds
    bytes_per_token: float

    @property
    def left(self) -> float:
        """Outside of weights and KV cache."""
        return self.card - self.weights - self.kv

    @property
    def needed_fraction(self) -> float:
        """The smallest mem_fraction with which a least useful KV cache fits; more than 1: none does."""
        least = self.weights + LEAST_TOKENS * self.bytes_per_token / GB
        return least / (self.card - BEFORE_START_GB)


def fit(profile: ModelProfile, role: Role, memory_mib: int, speculative: bool = False) -> Fit:
    """For one rank on the smallest of a server's cards. memory_mib: of that card, as the driver tells it.

    Every tensor is taken as split over the ranks, embeddings too, as SGLang splits them. What it copies to each rank
    (norms, routers, MLA's down-projections) was not counted: about 1 % of a large model.
    """
    card = memory_mib * MIB / GB
    weights = profile.size_gb * (1 if speculative else 1 - profile.draft_share) / role.tensor_parallel
    budget = max(0.0, card - BEFORE_START_GB) * role.mem_fraction
    per_token = bytes_per_token(profile, role.tensor_parallel)
    kv = max(0.0, budget - weights)
    page = profile.page_size or 1
    return Fit(card, role.mem_fraction, weights, budget, kv, int(kv * GB / per_token) // page * page, per_token)


def bytes_per_token(profile: ModelProfile, parallel: int) -> float:
    """Of the KV cache of one rank, all layers."""
    of_page = sum(one.count * one.share * profile.rank_bytes(one, parallel) for one in profile.kv_buffers)
    return of_page / (profile.page_size or 1)
