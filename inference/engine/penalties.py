"""Penalties on tokens that a sequence has already, and the client's own bias."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from inference.messages import Sampling


class Penalties:
    """What one row's logits are changed by before its token is drawn.

    As in OpenAI's API, presence and frequency look at the tokens produced, not at the prompt; as
    elsewhere, repetition looks at both. The bias comes last, so that it decides.
    """

    def __init__(
        self, sampling: Sampling, vocab_size: int, prompt: Sequence[int], emitted: Sequence[int]
    ) -> None:
        counts = np.bincount(np.asarray(emitted, dtype=np.int64), minlength=vocab_size)
        seen = counts > 0
        seen[np.asarray(prompt, dtype=np.int64)] = True
        self._sampling = sampling
        self._started = False
        self._counting = bool(
            sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
        )
        self._counts = mx.array(counts.astype(np.float32))[None]
        self._seen = mx.array(seen)[None]
        self._biased = mx.array(list(sampling.logit_bias), dtype=mx.int32)
        self._bias = mx.array(list(sampling.logit_bias.values()), dtype=mx.float32)

    @staticmethod
    def wanted(sampling: Sampling) -> bool:
        """Whether a row with this sampling has any."""
        return bool(
            sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1
            or sampling.logit_bias
        )

    @property
    def state(self) -> list[mx.array]:
        """What has to be evaluated with every step, lest its history grow."""
        return [self._counts, self._seen]

    def observe(self, token: mx.array) -> None:
        """Count the token, ``(1,)``, that the model was given last; it may be unevaluated.

        The first one is known already: the last of the prompt, or of what was emitted before.
        """
        if self._started and self._counting:
            self._counts = self._counts.at[:, token].add(1.0)
            self._seen = self._seen | (self._counts > 0)
        self._started = True

    def apply(self, logits: mx.array) -> mx.array:
        """The changed logits, ``(1, vocabulary)``, in float32."""
        sampling = self._sampling
        logits = logits.astype(mx.float32)
        if sampling.repetition_penalty != 1:
            factor = mx.where(logits > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
            logits = mx.where(self._seen, logits * factor, logits)
        if sampling.frequency_penalty:
            logits = logits - sampling.frequency_penalty * self._counts
        if sampling.presence_penalty:
            logits = logits - sampling.presence_penalty * (self._counts > 0)
        if sampling.logit_bias:
            logits = logits.at[:, self._biased].add(self._bias)
        return logits
