"""Where each n-gram of one sequence has occurred."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from inference.engine.drafting.guess import Guess

#: Occurrences that a guess looks at, the most recent ones: later text says more about what comes next.
_LOOKED_AT: Final = 16
#: Bytes of an entry beside the table's own: a tuple of a few integers, and a position.
_ENTRY_BYTES: Final = 104
_TOKEN_BYTES: Final = 40


class ContextIndex:
    """The n-grams of one sequence, by what followed them; it grows with the sequence, in constant time a token.

    It depends on the sequence alone: followed token by token or all at once, it is the same.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        """Index n-grams of ``shortest`` to ``longest`` tokens."""
        self.tokens: list[int] = []
        self._orders: Final = range(shortest, longest + 1)
        #: Behind the last occurrence of each n-gram that something follows: where that is.
        self._latest: dict[tuple[int, ...], int] = {}
        #: For each order, by position: the position behind the occurrence before, -1 for none.
        self._earlier: Final = {order: array("i") for order in self._orders}

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds, about."""
        chains = sum(sys.getsizeof(chain) for chain in self._earlier.values())
        return (
            sys.getsizeof(self._latest)
            + len(self._latest) * _ENTRY_BYTES
            + len(self.tokens) * _TOKEN_BYTES
            + chains
        )

    def follow(self, tokens: Sequence[int]) -> None:
        """Become the index of ``tokens``. What it knows of their beginning is kept if they begin with all of it."""
        known = len(self.tokens)
        if list(tokens[:known]) != self.tokens:
            self.tokens, self._latest, known = [], {}, 0
            for chain in self._earlier.values():
                del chain[:]
        for token in islice(tokens, known, None):
            self._add(token)

    def latest(self, gram: tuple[int, ...]) -> int | None:
        """The position behind the last occurrence of an n-gram that something follows."""
        return self._latest.get(gram)

    def guess(self, gram: tuple[int, ...]) -> Guess | None:
        """What followed an n-gram most often lately; of those that tie, what did last. None: it never occurred."""
        followers = [self.tokens[position] for position in islice(self._occurrences(gram), _LOOKED_AT)]
        if not followers:
            return None
        [(token, count)] = Counter(followers).most_common(1)
        return Guess(token, count / len(followers))

    def _occurrences(self, gram: tuple[int, ...]) -> Iterator[int]:
        """The positions behind an n-gram, the last one first."""
        position = self._latest.get(gram, -1)
        earlier = self._earlier[len(gram)]
        while position >= 0:
            yield position
            position = earlier[position]

    def _add(self, token: int) -> None:
        position = len(self.tokens)
        for order, earlier in self._earlier.items():
            if position < order:
                earlier.append(-1)
                continue
            gram = tuple(self.tokens[position - order :])
            earlier.append(self._latest.get(gram, -1))
            self._latest[gram] = position
        self.tokens.append(token)
