"""What proposes the next tokens of a sequence, so that the model may confirm several in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class DraftContext:
    """All that a drafter may know of a sequence.

    ``key`` names it. ``namespace``: whose texts a learning drafter may look in, besides those that are nobody's;
    with None in no others. ``learns``: whether what the sequence produces may be taken in. ``tokens``: the prompt
    and everything emitted; the first ``prompt_length`` are the prompt.
    """

    key: str
    namespace: str | None
    learns: bool
    tokens: Sequence[int]
    prompt_length: int


class Drafter(Protocol):
    """Guesses what comes next. A wrong guess costs time and nothing else: the model decides every token.

    One drafter serves all sequences in turn, bound to one of them at a time, on the engine's thread. What it
    raises never reaches a client: it is replaced by a new one.
    """

    name: str

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds beside the model."""

    def bind(self, context: DraftContext) -> None:
        """Set the state for this sequence, wholly from ``context``: nothing of another sequence may be left.

        Called when the sequence takes the drafter and before each of its rounds, so it has to be cheap when few
        tokens were added since the last binding of the same key.
        """

    def draft(self, k: int) -> list[int]:
        """At most ``k`` tokens that may follow those of the bound sequence; none if it has no guess."""

    def observe(self, committed: Sequence[int], proposed: int, accepted: int) -> None:
        """What the round committed after ``proposed`` tokens were drafted and the first ``accepted`` confirmed.

        ``committed``: the accepted ones, and the token that the model put behind them.
        """

    def finish(self, context: DraftContext) -> None:
        """The sequence is over: where ``context.learns``, what it produced may be taken in."""

    def release(self) -> None:
        """The drafter is returned: forget the bound sequence."""


class DrafterFault(Exception):
    """The drafter failed, or could not be made. It is made again from nothing before it is used again."""
