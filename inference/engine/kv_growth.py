"""What a sequence's caches take, by the caches themselves."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import ArraysCache, RotatingKVCache, make_prompt_cache

from inference.engine.row_prefixes import flat


@dataclass(frozen=True)
class KvGrowth:
    """How the caches of one sequence grow, for whoever has to reserve their room.

    ``bytes_per_token``: for every token, without end. ``step``: tokens by which the caches grow at a time.
    ``fixed_bytes``: what sliding windows and recurrent states take at most, however long the sequence is.
    """

    bytes_per_token: int
    step: int
    fixed_bytes: int


def measure_growth(model: Module, context_length: int) -> KvGrowth:
    """Run a token, and look at what the caches allocated for it. Nothing is computed: shapes are enough."""
    caches = make_prompt_cache(model)
    model(mx.array([[0]]), cache=caches)
    per_token, fixed, step = Fraction(0), Fraction(0), 1
    for cache in flat(caches):
        if isinstance(cache, ArraysCache):
            fixed += cache.nbytes
            continue
        # An unknown kind counts for every token what it took for one, which is too much rather than too little.
        allocated = cache.keys.shape[2] if hasattr(cache, "keys") else 1
        if isinstance(cache, RotatingKVCache):
            fixed += Fraction(cache.nbytes, allocated) * min(cache.max_size, context_length)
        else:
            per_token += Fraction(cache.nbytes, allocated)
            step = max(step, allocated)
    return KvGrowth(ceil(per_token), step, ceil(fixed))
