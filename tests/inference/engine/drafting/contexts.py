"""Sequences as drafters are told of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from inference.engine.drafting.drafter import DraftContext, Drafter

#: Few different tokens, so that much recurs.
TOKENS = st.lists(st.integers(0, 3), max_size=40)


def context(
    tokens: Sequence[int],
    key: str = "one",
    *,
    namespace: str | None = None,
    learns: bool = False,
    prompt_length: int = 0,
) -> DraftContext:
    return DraftContext(key, namespace, learns, list(tokens), prompt_length)


def drafted(drafter: Drafter, of: DraftContext, k: int = 4) -> list[int]:
    drafter.bind(of)
    return drafter.draft(k)
