"""mlx-lm's two batches, made to act once a tick, to sample per row, and to keep faults apart."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Self, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import TokenBuffer, make_prompt_cache
from mlx_lm.sample_utils import LogitsProcessor

from inference.engine.halves import Halves
from inference.engine.penalties import Penalties
from inference.engine.row_prefixes import Prefix
from inference.engine.sampling import RowSampler, draw


class ShapeError(ValueError):
    """A logits processor returned something else than one row of logits."""


def adjusted(
    logits: mx.array,
    penalties: Penalties | None,
    processors: Sequence[LogitsProcessor],
    context: mx.array,
) -> mx.array:
    """One row's logits, ``(1, vocabulary)``, after its penalties and its processors.

    ``context``: the tokens that were run, for the processors. Raises ``ShapeError``, and what a processor raises.
    """
    shape = logits.shape
    if penalties is not None:
        logits = penalties.apply(logits)
    for processor in processors:
        logits = processor(context, logits)
    if logits.shape != shape:
        raise ShapeError(f"A logits processor returned {logits.shape} in place of {shape}.")
    return logits


class PrefillBatch(PromptProcessingBatch):
    """Prompts that are being run, chunk by chunk, on caches of their own."""

    # The base class carries one entry a row about without looking at it: keys and ``RowSampler`` here.
    uids: Any
    samplers: Any

    @classmethod
    def of_one(
        cls,
        model: Module,
        key: str,
        sampler: RowSampler,
        processors: Sequence[LogitsProcessor],
        prefix: Prefix | None = None,
    ) -> Self:
        """A batch of one sequence, of which nothing was run yet but ``prefix``.

        Raises ``ValueError`` when the model's caches cannot be batched.
        """
        rows: dict[str, Any] = {
            "uids": [key],
            "caches": [prefix.caches if prefix else make_prompt_cache(model)],
            "tokens": [prefix.tokens if prefix else []],
            "samplers": [sampler],
            "logits_processors": [list(processors)],
        }
        return cls(
            model,
            **rows,
            # A chunk is one forward pass, whatever its size: the caller cuts.
            prefill_step_size=sys.maxsize,
        )

    def start(self, last_tokens: Sequence[int]) -> DecodeBatch:
        """Run the last token of every prompt; the first token of each answer is on its way.

        This batch must not be used any more.
        """
        return DecodeBatch(
            self.model,
            self.uids,
            mx.array(list(last_tokens)),
            self.prompt_cache,
            self.tokens,
            self.samplers,
            self.fallback_sampler,
            self.logits_processors,
            self.stop_sequences,
            self.max_tokens,
        )

    def end(self, tokens: Sequence[list[int]], halves: Halves) -> DecodeBatch:
        """Run all these tokens, the last of every prompt, in one pass; the first token of each answer is on its way.

        Where rows have not as many tokens as others, each has two or more. This batch must not be used any more.
        """
        lengths = [len(row) for row in tokens]
        padding = [max(lengths) - length for length in lengths]
        padded = mx.array([row + [0] * pad for row, pad in zip(tokens, padding, strict=True)])
        if any(padding):
            for cache in self.prompt_cache:
                cache.prepare(lengths=lengths, right_padding=padding)
        hidden = halves.trunk(padded, self.prompt_cache)
        if any(padding):
            for cache in self.prompt_cache:
                cache.finalize()
        last = hidden[mx.arange(len(lengths)), mx.array(lengths) - 1]
        for known, row in zip(self.tokens, tokens, strict=True):
            known += row[:-1]
        batch = self.join([row[-1] for row in tokens])
        batch.continue_from(halves.head(last[:, None, :])[:, -1, :])
        return batch

    def join(self, last_tokens: Sequence[int]) -> DecodeBatch:
        """The rows as decoding ones whose next ``step`` hands out these tokens, and runs them. Nothing is run before.

        This batch must not be used any more.
        """
        batch = DecodeBatch.without_rows(self.model)
        batch.uids = self.uids
        batch.prompt_cache = self.prompt_cache
        batch.tokens = self.tokens
        batch.samplers = self.samplers
        batch.logits_processors = self.logits_processors
        batch.stop_sequences = self.stop_sequences
        batch.max_tokens = self.max_tokens
        batch._next_tokens = mx.array(list(last_tokens), dtype=mx.uint32)
        batch._next_logprobs = [None] * len(self.uids)
        batch._token_context = [TokenBuffer(tokens) for tokens in self.tokens]  # type: ignore[no-untyped-call]
        batch._num_tokens = [0] * len(self.uids)
        batch._matchers = [sequences.matcher() for sequences in self.stop_sequences]
        return batch


class DecodeBatch(GenerationBatch):
    """Rows that produce tokens, one each a step, always one step ahead.

    ``step`` starts the computation of the next tokens and then hands out the current ones, which were
    computed meanwhile: the device works while Python publishes. Who ends a row, and when, is the caller's
    business: ``max_tokens`` and stop sequences of the base class are not used, ``next`` is not called.

    ``faults``: by key, what a row's own processor raised. The row's token of this step is no good, the
    one handed out is.
    """

    uids: Any
    samplers: Any
    logits_processors: Any

    def __init__(self, *arguments: Any) -> None:
        self.faults: dict[str, Exception] = {}
        super().__init__(*arguments)

    @classmethod
    def without_rows(cls, model: Module) -> Self:
        """A batch to be extended."""
        return cls(model, [], mx.array([], dtype=mx.uint32), [], [], [], None, [], [], [])

    def extend(self, batch: DecodeBatch) -> None:
        """Take in the rows of another batch, which must not be used any more."""
        super().extend(batch)  # type: ignore[no-untyped-call]
        self.faults |= batch.faults

    def step(self) -> list[tuple[str, int]]:
        """Hand out one token of every row, in order, and compute the one after it."""
        keys = list(self.uids)
        return list(zip(keys, self._step()[0], strict=True))

    def hand_out(self) -> list[tuple[str, int]]:
        """What the next ``step`` will hand out, in order, and compute nothing."""
        return list(zip(self.uids, self.peek(), strict=True))

    def peek(self) -> list[int]:
        """The tokens that the next ``step`` will hand out."""
        return _integers(self._next_tokens)

    def remove(self, keys: set[str]) -> None:
        """Take rows out of the batch."""
        if keys:
            self.filter([index for index, key in enumerate(self.uids) if key not in keys])
            self.faults = {key: fault for key, fault in self.faults.items() if key not in keys}

    def _step(self) -> tuple[list[int], list[mx.array]]:
        logits = self.model(self._next_tokens[:, None], cache=self.prompt_cache)[:, -1, :]
        return self.continue_from(logits), []

    def continue_from(self, logits: mx.array) -> list[int]:
        """Compute the tokens after those that the next ``step`` would have run, from the logits that running them gave,
        ``(rows, vocabulary)``; the tokens that were run."""
        inputs = self._next_tokens
        logits, states = self._adjusted(inputs, logits)
        self._next_tokens = draw(logits, self.samplers)
        # The base class moves one entry a row about. Nobody asked for log-probabilities, and computing
        # them for the whole vocabulary costs more than a greedy choice.
        self._next_logprobs = [None] * len(self.uids)
        mx.async_eval(self._next_tokens, states)  # type: ignore[no-untyped-call]
        tokens = _integers(inputs)
        for known, token in zip(self.tokens, tokens, strict=True):
            known.append(token)
        return tokens

    def _adjusted(self, inputs: mx.array, logits: mx.array) -> tuple[mx.array, list[mx.array]]:
        """The logits after the rows' penalties and processors, and the states of these."""
        if not any(self.logits_processors) and not any(sampler.penalties for sampler in self.samplers):
            return logits, []
        rows: list[mx.array] = []
        states: list[mx.array] = []
        for index, key in enumerate(self.uids):
            row = logits[index : index + 1]
            try:
                row = self._adjusted_row(index, inputs[index : index + 1], row, states)
            except Exception as fault:  # noqa: BLE001 (reported: it is this row's own, whatever it is)
                self.faults[key] = fault
            rows.append(row)
        return mx.concatenate(rows, axis=0), states

    def _adjusted_row(
        self, index: int, token: mx.array, logits: mx.array, states: list[mx.array]
    ) -> mx.array:
        penalties, processors = self.samplers[index].penalties, self.logits_processors[index]
        context = token
        if penalties is not None:
            penalties.observe(token)
            states += penalties.state
        if processors:
            context = self._token_context[index].update_and_fetch(token)  # type: ignore[no-untyped-call]
            states.append(context)
        return adjusted(logits, penalties, processors, context)


def _integers(array: mx.array) -> list[int]:
    return cast("list[int]", array.tolist())
