"""A drafter that copies from the sequence itself: prompts are quoted, code is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inference.engine.drafting.context_index import ContextIndex
from inference.engine.drafting.drafter import DraftContext
from inference.engine.drafting.sessions import Sessions

_LONGEST: Final = 4
#: Two tokens recur by chance too often: what followed them is rarely what follows now.
_SHORTEST: Final = 3


class PromptLookup:
    """Finds the last tokens further up in prompt and output, the most recent time, and proposes what followed there.

    Four tokens are looked for, then three. Learns nothing and knows no other text.
    """

    name: str = "prompt_lookup"

    def __init__(self) -> None:
        self._sessions: Sessions[ContextIndex] = Sessions(lambda: ContextIndex(_SHORTEST, _LONGEST))
        self._bound: ContextIndex | None = None

    @property
    def memory_bytes(self) -> int:
        return sum(index.memory_bytes for index in self._sessions)

    def bind(self, context: DraftContext) -> None:
        self._bound = self._sessions.of(context.key)
        self._bound.follow(context.tokens)

    def draft(self, k: int) -> list[int]:
        if self._bound is None:
            return []
        tokens = self._bound.tokens
        for order in range(_LONGEST, _SHORTEST - 1, -1):
            position = self._bound.latest(tuple(tokens[-order:]))
            if position is not None:
                return _copied(tokens, position, k)
        return []

    def observe(self, committed: Sequence[int], proposed: int, accepted: int) -> None:
        """Nothing: the next binding brings what was committed."""

    def finish(self, context: DraftContext) -> None:
        self._sessions.forget(context.key)

    def release(self) -> None:
        self._bound = None


def _copied(tokens: Sequence[int], start: int, count: int) -> list[int]:
    """``count`` tokens from ``start`` on. Behind the last one the copy goes on with itself: what repeats, repeats."""
    period = len(tokens) - start
    return [tokens[start + offset % period] for offset in range(count)]
