"""A drafter that goes by what the sequence says itself, and by what its model has said before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inference.engine.drafting.confidence import LEAST_CONFIDENCE, TRUST
from inference.engine.drafting.context_index import ContextIndex
from inference.engine.drafting.drafter import DraftContext
from inference.engine.drafting.guess import Guess
from inference.engine.drafting.pool_store import PoolStore
from inference.engine.drafting.sessions import Sessions
from inference.engine.drafting.suffix_pool import LONGEST_CONTEXT


class _Source(Protocol):
    def guess(self, context: tuple[int, ...], /) -> Guess | None: ...


class PoolDrafter:
    """Back-off over n-gram counts, token by token, as long as the guesses are likely.

    The longest context that occurred anywhere decides. Of places where contexts of the same length occurred, the
    sequence itself comes first, then its tenant's pool, then the neutral pool.

    A tenant's pool is looked in and taught only where ``learns`` says that its tenant wants it.
    """

    name: str = "suffix_pool"

    def __init__(self, pools: PoolStore) -> None:
        self._pools = pools
        self._sessions: Sessions[ContextIndex] = Sessions(lambda: ContextIndex(1, LONGEST_CONTEXT))
        self._tokens: list[int] = []
        self._sources: tuple[_Source, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return self._pools.memory_bytes + sum(index.memory_bytes for index in self._sessions)

    def bind(self, context: DraftContext) -> None:
        index = self._sessions.of(context.key)
        index.follow(context.tokens)
        self._tokens = index.tokens[-LONGEST_CONTEXT:]
        own = self._pools.of(context.namespace) if context.learns and context.namespace is not None else None
        self._sources = tuple(source for source in (index, own, self._pools.neutral) if source is not None)

    def draft(self, k: int) -> list[int]:
        drafted: list[int] = []
        likely = 1.0
        while len(drafted) < k and (guess := self._guess([*self._tokens, *drafted])) is not None:
            likely *= guess.confidence
            if likely < LEAST_CONFIDENCE:
                break
            drafted.append(guess.token)
        return drafted

    def observe(self, committed: Sequence[int], proposed: int, accepted: int) -> None:
        """Nothing: the next binding brings what was committed, and a pool learns whole answers."""

    def finish(self, context: DraftContext) -> None:
        self._sessions.forget(context.key)
        if context.learns and context.namespace is not None:
            self._pools.learn(context.namespace, context.tokens[context.prompt_length :])

    def release(self) -> None:
        self._tokens, self._sources = [], ()

    def _guess(self, tokens: Sequence[int]) -> Guess | None:
        for order in range(min(LONGEST_CONTEXT, len(tokens)), 0, -1):
            context = tuple(tokens[-order:])
            for source in self._sources:
                if (guess := source.guess(context)) is not None:
                    return guess._replace(confidence=guess.confidence * TRUST[order - 1])
        return None
