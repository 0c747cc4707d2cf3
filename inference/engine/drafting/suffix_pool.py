"""Counts of what followed what in texts that a model has produced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from inference.engine.drafting.guess import Guess

#: Tokens of context that are looked at: with the one that follows, n-grams of at most five.
LONGEST_CONTEXT: Final = 4
#: Tokens of all texts of a pool. About 2 MB of memory, and at most half of that on disk.
CAPACITY_TOKENS: Final = 131_072
#: What is left when the oldest texts go. They go many at a time, for the counts are made anew then.
_KEPT_SHARE: Final = 7 / 8
#: A token takes 16 bits of a context's key.
_BITS: Final = 16
_NOTHING: Final = 0xFFFF

_Keys = npt.NDArray[np.uint64]
_Tokens = npt.NDArray[np.uint32]


def pack(tokens: Iterable[int]) -> bytes:
    """A text as a pool keeps it: token ids as little-endian 32-bit words."""
    return np.fromiter(tokens, dtype="<u4").tobytes()


def unpack(text: bytes) -> _Tokens:
    return np.frombuffer(text, dtype="<u4")


class SuffixPool:
    """Texts, and for every context of one to four tokens in them, which tokens followed how often.

    The contexts are sorted, last token first, so that those that end alike lie side by side, whatever their length:
    eight bytes for a context and four for what follows, for every token of the texts.

    Holds at most ``capacity_tokens``: the texts that were learnt longest ago go first. A text that is in it already
    counts once, and as new.

    Token ids above 65,535 are folded into 16 bits: where two contexts fall together they share their counts, which
    can cost a wrong guess and nothing else.
    """

    def __init__(self, texts: Iterable[bytes] = (), capacity_tokens: int = CAPACITY_TOKENS) -> None:
        """``texts``: packed, the oldest first."""
        self._capacity = capacity_tokens
        self._size = 0
        self._keys: _Keys = np.empty(0, np.uint64)
        self._followers: _Tokens = np.empty(0, np.uint32)
        self._texts: dict[bytes, None] = dict.fromkeys(self._cut(text) for text in texts)
        self._evict(self._capacity)

    @property
    def texts(self) -> tuple[bytes, ...]:
        """The texts, packed, the oldest first."""
        return tuple(self._texts)

    @property
    def tokens(self) -> int:
        """How many tokens the texts have."""
        return self._size

    @property
    def memory_bytes(self) -> int:
        return self._keys.nbytes + self._followers.nbytes + 4 * self._size

    def learn(self, tokens: Sequence[int]) -> bool:
        """Take a text in. False: it was in it already, or is too short to say what follows what."""
        if len(tokens) < 2:
            return False
        text = self._cut(pack(tokens))
        if text in self._texts:
            del self._texts[text]
            self._texts[text] = None
            return False
        self._texts[text] = None
        self._size += len(text) // 4
        if self._size > self._capacity:
            self._evict(int(self._capacity * _KEPT_SHARE))
            return True
        keys, followers = _counted(text)
        places = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, places, keys)
        self._followers = np.insert(self._followers, places, followers)
        return True

    def guess(self, context: tuple[int, ...]) -> Guess | None:
        """What followed these one to four tokens most often; of those that tie, the lowest id. None: nothing did."""
        shift = 64 - _BITS * len(context)
        low = 0
        for place, token in enumerate(reversed(context), start=1):
            low |= _folded(token) << (64 - _BITS * place)
        begin = int(self._keys.searchsorted(np.uint64(low)))
        end = int(self._keys.searchsorted(np.uint64(low | ((1 << shift) - 1)), side="right"))
        if begin == end:
            return None
        tokens, counts = np.unique(self._followers[begin:end], return_counts=True)
        best = int(counts.argmax())
        return Guess(int(tokens[best]), int(counts[best]) / (end - begin))

    def _cut(self, text: bytes) -> bytes:
        return text[-4 * self._capacity :]

    def _evict(self, most_tokens: int) -> None:
        """Let the oldest texts go until ``most_tokens`` are left at most, but never the newest; count the rest anew."""
        self._size = sum(len(text) for text in self._texts) // 4
        for text in list(self._texts)[:-1]:
            if self._size <= most_tokens:
                break
            del self._texts[text]
            self._size -= len(text) // 4
        counted = [_counted(text) for text in self._texts]
        keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in counted)])
        followers = np.concatenate([np.empty(0, np.uint32), *(followers for _, followers in counted)])
        order = np.argsort(keys, kind="stable")
        self._keys, self._followers = keys[order], followers[order]


def _folded(token: int) -> int:
    return (token & 0xFFFF) ^ (token >> _BITS)


def _counted(text: bytes) -> tuple[_Keys, _Tokens]:
    """The contexts of a text in order, and what follows each."""
    tokens = unpack(text).astype(np.uint64)
    folded = (tokens & np.uint64(0xFFFF)) ^ (tokens >> np.uint64(_BITS))
    padded = np.concatenate([np.full(LONGEST_CONTEXT, _NOTHING, np.uint64), folded])
    count = len(tokens) - 1
    keys = np.zeros(count, np.uint64)
    for place in range(1, LONGEST_CONTEXT + 1):
        begin = LONGEST_CONTEXT + 1 - place
        keys |= padded[begin : begin + count] << np.uint64(64 - _BITS * place)
    order = np.argsort(keys, kind="stable")
    return keys[order], unpack(text)[1:][order].astype(np.uint32)
