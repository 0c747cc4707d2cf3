"""Which of a model's caches can give back what a rejected guess left in them, and how far."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from mlx_lm.models.cache import BatchKVCache, BatchRotatingKVCache

from inference.engine.row_prefixes import flat


def cannot_roll_back(caches: Iterable[Any], length: int) -> str | None:
    """Why caches that will hold ``length`` tokens could not give back a guess behind them; None: they could."""
    caches = list(flat(caches))
    kinds = {type(cache).__name__ for cache in caches if not isinstance(cache, _KINDS)}
    if kinds:
        return f"the model has caches that cannot be cut ({', '.join(sorted(kinds))})"
    windows = [cache.max_size for cache in caches if isinstance(cache, BatchRotatingKVCache)]
    if windows and _room(min(windows), length) < 1:
        return (
            f"after {length} tokens its sliding window of {min(windows)} is full, and cannot be cut any more"
        )
    return None


def room(caches: Iterable[Any]) -> int:
    """How many tokens behind the next one these caches could give back."""
    windows = (cache for cache in flat(caches) if isinstance(cache, BatchRotatingKVCache))
    return max(0, min((_room(cache.max_size, cache._offset) for cache in windows), default=sys.maxsize))


def roll_back(caches: Iterable[Any], count: int) -> None:
    """Cut the last ``count`` tokens off. Nothing is copied."""
    if count:
        for cache in flat(caches):
            cache.trim(count)


_KINDS = (BatchKVCache, BatchRotatingKVCache)


def _room(window: int, length: int) -> int:
    # The next token is run with the guesses, and a window that is full after them has begun to overwrite.
    return window - 1 - (length + 1)
