"""What the engine knows of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mlx_lm.sample_utils import LogitsProcessor

from inference.engine.batch import PrefillBatch
from inference.messages import Sampling


class RowState(StrEnum):
    """Where a sequence is."""

    PARKED = "parked"
    DECODING = "decoding"
    #: Its next token cannot be computed. Nobody has asked for it yet: the text may end before.
    DOOMED = "doomed"
    FAULTED = "faulted"


@dataclass
class Row:
    """One sequence: all that is needed to run it again from nothing.

    ``tokens`` are the prompt and everything emitted, ``run`` counts those that its cache holds.
    """

    key: str
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    processors: Sequence[LogitsProcessor]
    prefill: PrefillBatch | None
    state: RowState = RowState.PARKED
    run: int = 0
    #: The decode batch will hand out a token that was already emitted.
    ahead: bool = False
    fault: Exception | None = field(default=None, repr=False)

    @property
    def remaining(self) -> int:
        """Tokens of the prompt (and, after a resumption, of the answer) still to run."""
        return len(self.tokens) - self.run if self.state is RowState.PARKED else 0

    def take(self, count: int) -> list[int]:
        """The next ``count`` tokens to run, counted as run."""
        taken = self.tokens[self.run : self.run + count]
        self.run += len(taken)
        return taken
