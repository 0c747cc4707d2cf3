"""What the engine knows of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mlx_lm.sample_utils import LogitsProcessor

from inference.engine.batch import PrefillBatch
from inference.engine.drafting.drafter import DraftContext
from inference.engine.results import StepResult
from inference.engine.speculative.session import Session
from inference.messages import Sampling


class RowState(StrEnum):
    """Where a sequence is."""

    PARKED = "parked"
    DECODING = "decoding"
    #: It decodes alone, in rounds, or waits between two of them.
    SPECULATING = "speculating"
    #: Its next token cannot be computed, and nobody has been told yet.
    DOOMED = "doomed"
    FAULTED = "faulted"


@dataclass
class Row:
    """One sequence: all that is needed to run it again from nothing.

    ``tokens`` are the prompt and everything emitted, ``run`` counts those that its cache holds, and ``cached``
    those of them that were found in the prefix cache of its ``namespace``. A drafter looks in the texts of
    ``draft_pool`` and, if the sequence ``teaches``, takes in what it produced.
    """

    key: str
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    processors: Sequence[LogitsProcessor]
    namespace: str | None = None
    draft_pool: str | None = None
    teaches: bool = False
    prefill: PrefillBatch | None = None
    session: Session | None = None
    state: RowState = RowState.PARKED
    run: int = 0
    cached: int = 0
    #: Its first chunk was asked for.
    begun: bool = False
    #: The decode batch will hand out a token that was already emitted.
    ahead: bool = False
    fault: Exception | None = field(default=None, repr=False)

    @property
    def remaining(self) -> int:
        """Tokens of the prompt (and, after a resumption, of the answer) still to run."""
        return len(self.tokens) - self.run if self.state is RowState.PARKED else 0

    @property
    def prompt_batch(self) -> PrefillBatch:
        """The batch in which its prompt is run. Raises ``RuntimeError`` if there is none: it is not parked."""
        if self.prefill is None:
            raise RuntimeError(f"Sequence {self.key!r} is {self.state}, and has no prompt to run.")
        return self.prefill

    @property
    def draft_context(self) -> DraftContext:
        """What a drafter may know of it. Its tokens grow as the row's do."""
        return DraftContext(self.key, self.draft_pool, self.teaches, self.tokens, self.prompt_length)

    def check(self, context_length: int, vocab_size: int) -> None:
        """Raise ``ValueError`` if a model with this context and vocabulary cannot run it."""
        if not self.prompt_length or len(self.tokens) >= context_length:
            raise ValueError(
                f"Sequence {self.key!r} has {self.prompt_length} + {len(self.tokens) - self.prompt_length} tokens; at "
                f"least one of the prompt and less than the context of {context_length} are needed."
            )
        if not all(0 <= token < vocab_size for token in (*self.tokens, *self.sampling.logit_bias)):
            raise ValueError(f"Sequence {self.key!r} names a token outside the vocabulary of {vocab_size}.")

    def doom(self, fault: Exception) -> None:
        """Its next token cannot be computed: nothing of it can be used any more. A later ``decode`` says so."""
        self.state, self.fault = RowState.DOOMED, fault
        self.prefill = self.session = None

    def fail(self, fault: Exception, result: StepResult) -> None:
        """End it by a fault, and say so: nothing of it can be used any more."""
        self.state = RowState.FAULTED
        self.prefill = self.session = None
        result.faults[self.key] = fault

    def take(self, count: int) -> list[int]:
        """The next ``count`` tokens to run, counted as run."""
        taken = self.tokens[self.run : self.run + count]
        self.run += len(taken)
        return taken
