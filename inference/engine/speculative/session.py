"""One sequence that decodes alone, several tokens in a forward pass, on caches of its own."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from inference.engine.batch import DecodeBatch, PrefillBatch
from inference.engine.speculative.rollback import roll_back, room
from inference.engine.speculative.verification import confirmed, draw_block


class Session:
    """A sequence between two rounds: caches that hold all of its tokens but the last.

    Between rounds nothing is computed, so a session may wait as long as it likes, and go on, in rounds or
    in the decode batch, as if it had not. Its state is what plain decoding would have left.
    """

    def __init__(self, batch: PrefillBatch, last_token: int) -> None:
        """``batch``: the sequence alone, run up to ``last_token``, which is not run."""
        #: The sequence's caches, and what they hold.
        self.batch = batch
        #: What keeps the next token from being computed, once that is known.
        self.fault: Exception | None = None
        self._last_token = last_token

    @property
    def room(self) -> int:
        """The most drafted tokens that the caches could give back."""
        return room(self.batch.prompt_cache)

    def advance(self, guesses: Sequence[int]) -> list[int]:
        """Run the last token and the ``guesses`` behind it in one forward pass; the tokens that this makes certain.

        They are the guesses that were right, and what the model puts behind them. Where a processor of the sequence
        fails, those before it are returned, and ``fault`` says why the next call returns none.

        If it raises, neither caches nor sampler are any good.
        """
        if self.fault is not None:
            return []
        batch = self.batch
        [ran], [sampler], [processors] = batch.tokens, batch.samplers, batch.logits_processors
        block = [self._last_token, *guesses]
        begin = sampler.position
        logits = batch.model(mx.array([block]), cache=batch.prompt_cache)[0]
        drawn = draw_block(logits, ran, block, sampler, processors)
        right = confirmed(guesses, drawn.tokens)
        tokens = drawn.tokens[: right + 1]
        if right == len(drawn.tokens):
            self.fault = drawn.fault
        roll_back(batch.prompt_cache, len(block) - len(tokens))
        ran += block[: len(tokens)]
        sampler.position = begin + len(tokens)
        if tokens:
            self._last_token = tokens[-1]
            if drawn.penalties:
                sampler.penalties = drawn.penalties[len(tokens) - 1]
                mx.async_eval(sampler.penalties.state)  # type: ignore[no-untyped-call]
        return tokens

    def into_batch(self) -> DecodeBatch:
        """A decode batch of the sequence, whose next ``step`` hands out the last token again and runs it.

        Nothing is run before. The session must not be used any more.
        """
        return self.batch.join([self._last_token])
