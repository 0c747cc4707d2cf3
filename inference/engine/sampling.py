"""Drawing the next token of every row of a batch.

Each row draws by its own rule and its own randomness: the key of the token at position ``p`` of a row comes
from the row's seed and ``p`` alone, and no row's arithmetic depends on which others are there. So a seeded
sequence is the same alone, in a batch and resumed, as far as the backend's logits are.

Rows with the same kind of rule are drawn together; a greedy batch is one argmax.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final

import mlx.core as mx

from inference.engine.penalties import Penalties
from inference.messages import Sampling

#: Tokens of a batch, ``(rows,)``, from logits, ``(rows, vocabulary)``.
Rule = Callable[[mx.array, Sequence["RowSampler"]], mx.array]

#: Colder than this the best token always wins, and dividing by it may overflow.
_COLDEST: Final = 1e-5
#: Candidates that are sorted at least.
_NARROWEST: Final = 64


class RowSampler:
    """How the next tokens of one sequence are drawn, and how far it is.

    ``position`` counts the tokens drawn before; a resumed sequence starts at the number that it has already.
    """

    def __init__(
        self, sampling: Sampling, vocab_size: int, prompt: Sequence[int] = (), emitted: Sequence[int] = ()
    ) -> None:
        self.sampling = sampling
        self.position = len(emitted)
        self.penalties = (
            Penalties(sampling, vocab_size, prompt, emitted) if Penalties.wanted(sampling) else None
        )
        self.rule: Rule = _rule(sampling, vocab_size)

    def next_key(self) -> tuple[int, int]:
        """The random key of the next position, as two 32-bit words."""
        message = struct.pack("<QQ", self.sampling.seed % 2**64, self.position)
        self.position += 1
        high, low = struct.unpack("<II", blake2b(message, digest_size=8).digest())
        return high, low


def draw(logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    """The next token of every row, ``(rows,)``, unevaluated. ``logits`` is ``(rows, vocabulary)``."""
    groups: dict[Rule, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.rule, []).append(index)
    if len(groups) == 1:
        return next(iter(groups))(logits, rows)
    drawn = [
        rule(logits[mx.array(indices)], [rows[index] for index in indices])
        for rule, indices in groups.items()
    ]
    order = [index for indices in groups.values() for index in indices]
    places = sorted(range(len(order)), key=order.__getitem__)
    return mx.concatenate(drawn)[mx.array(places)]


def _rule(sampling: Sampling, vocab_size: int) -> Rule:
    if sampling.temperature < _COLDEST or sampling.top_k == 1:
        return _greedy
    if 0 < sampling.top_k < vocab_size:
        # By powers of two: how many candidates are sorted must not depend on the other rows.
        width = max(_NARROWEST, 1 << (sampling.top_k - 1).bit_length())
        return _ranked_rule(min(width, vocab_size))
    if sampling.top_p < 1:
        return _ranked_rule(vocab_size)
    return _above_min_p if sampling.min_p > 0 else _plain


def _greedy(logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    return mx.argmax(logits, axis=-1)


def _plain(logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    return _pick(_tempered(logits, rows), rows)


def _above_min_p(logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    scaled = _tempered(logits, rows)
    floor = mx.max(scaled, axis=-1, keepdims=True) + _column(rows, _log_min_p)
    return _pick(mx.where(scaled >= floor, scaled, -mx.inf), rows)


def _ranked(width: int, logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    """``min_p``, ``top_k`` and ``top_p``, in this order, on the ``width`` most probable tokens."""
    scaled = _tempered(logits, rows)
    whole = width == scaled.shape[-1]
    best = -mx.sort(-(scaled if whole else mx.topk(scaled, width)), axis=-1)
    rank = mx.arange(width)[None]
    top_k = _column(rows, lambda sampling: sampling.top_k or width)
    kept = (rank < top_k) & (best >= best[:, :1] + _column(rows, _log_min_p))
    mass = mx.where(kept, mx.exp(best - best[:, :1]), 0.0)
    mass_above = mx.cumsum(mass, axis=-1) - mass
    enough = _column(rows, lambda sampling: sampling.top_p if sampling.top_p < 1 else math.inf)
    kept &= (mass_above < enough * mass.sum(axis=-1, keepdims=True)) | (rank == 0)
    lowest = mx.min(mx.where(kept, best, mx.inf), axis=-1, keepdims=True)
    return _pick(mx.where(scaled >= lowest, scaled, -mx.inf), rows)


_ranked_rules: dict[int, Rule] = {}


def _ranked_rule(width: int) -> Rule:
    """One rule per width: rows are grouped by the identity of theirs."""
    return _ranked_rules.setdefault(width, partial(_ranked, width))


def _tempered(logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    return logits.astype(mx.float32) * _column(rows, lambda sampling: 1.0 / sampling.temperature)


def _pick(scaled: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    """Draw from ``softmax(scaled)`` by the Gumbel trick."""
    keys = mx.array([row.next_key() for row in rows], dtype=mx.uint32)
    noise = mx.vmap(lambda key: mx.random.gumbel(scaled.shape[-1:], key=key))(keys)
    return mx.argmax(scaled + noise, axis=-1)


def _column(rows: Sequence[RowSampler], value: Callable[[Sampling], float]) -> mx.array:
    """One number a row, to go with ``(rows, anything)``."""
    return mx.array([[value(row.sampling)] for row in rows], dtype=mx.float32)


def _log_min_p(sampling: Sampling) -> float:
    return math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
