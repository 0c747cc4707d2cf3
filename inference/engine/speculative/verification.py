"""What plain decoding draws at each position of a block of tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor

from inference.engine.batch import adjusted
from inference.engine.penalties import Penalties
from inference.engine.sampling import RowSampler, draw


@dataclass(frozen=True)
class Drawn:
    """``tokens``: one for each position, up to the one at which ``fault`` was raised, if any.

    ``penalties``: their state after each of these positions; empty where the sequence has none.
    """

    tokens: list[int]
    penalties: list[Penalties]
    fault: Exception | None = None


def draw_block(
    logits: mx.array,
    before: Sequence[int],
    block: Sequence[int],
    sampler: RowSampler,
    processors: Sequence[LogitsProcessor],
) -> Drawn:
    """Draw a token behind each token of ``block``, each as if those before it in the block had been drawn.

    ``logits``: ``(tokens of the block, vocabulary)``; ``before``: the tokens that were run before the block.
    The sampler's position goes on by one a token, its penalties stay as they are.
    """
    if sampler.penalties is None and not processors:
        return Drawn(_drawn(logits, sampler), [])
    context = mx.array([*before, *block], dtype=mx.int32)
    penalties = sampler.penalties
    states: list[Penalties] = []
    rows: list[mx.array] = []
    fault: Exception | None = None
    for index, token in enumerate(block):
        if penalties is not None:
            penalties = copy.copy(penalties)
            penalties.observe(mx.array([token]))
            states.append(penalties)
        ran = context[: len(before) + index + 1]
        try:
            rows.append(adjusted(logits[index : index + 1], penalties, processors, ran))
        except Exception as error:  # noqa: BLE001 (reported, if this position is ever reached)
            fault = error
            break
    tokens = _drawn(mx.concatenate(rows, axis=0), sampler) if rows else []
    return Drawn(tokens, states[: len(tokens)], fault)


def confirmed(guesses: Sequence[int], drawn: Sequence[int]) -> int:
    """How many of the first ``guesses`` are what was drawn."""
    count = 0
    for guess, token in zip(guesses, drawn, strict=False):
        if guess != token:
            break
        count += 1
    return count


def _drawn(logits: mx.array, sampler: RowSampler) -> list[int]:
    return cast("list[int]", draw(logits, [sampler] * logits.shape[0]).tolist())
