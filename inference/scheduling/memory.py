"""Room in one worker: what a request's cache may take, whether that fits now, and who has waited for it too long.

A request is given room for its whole sequence, prompt and max tokens, when it is admitted: nothing that runs can fail
for lack of memory later. What the prefix cache holds of its prompt is not deducted, because a row of a batch is a
dense copy: the hit saves the work of running those tokens, not their bytes.

Rows that decode together are one array, in which every row is as long as the longest: the others are padded
(``BatchKVCache.extend`` of mlx-lm). So what is reserved for ``n`` sequences that were given ``b1 ... bn`` bytes is not
their sum but ``n × max(b1 ... bn)`` (``batch_bytes``). All count, those whose prompt is still run or that have the
speculative slot too: each may join the batch. No order of joining and leaving takes more: each row is within what its
sequence was given, and whoever leaves takes the padding along that was only for it.

The prefix cache lives in the same budget and gives way: its cold entries are evicted before anyone is refused room,
and before anyone is preempted.

A request that does not fit now is *deferred*: it goes on waiting, first of its tenant's, and smaller ones are admitted
past it. So that they do not pass for ever, the worker keeps a ledger of its deferrals. Once
``RESERVED_AFTER`` requests went past, the oldest becomes the *reserved* one: nothing of its own or a lower lane is
admitted until it fits, and ``cap`` of higher lanes at most.

Bound (``cap`` = 4): behind ``p`` older deferrals, at most ``RESERVED_AFTER + (p + 1) × cap + p`` requests are admitted
from a request's first deferral to its own admission; then what runs ends, one after another, until it fits, at the
latest when nothing runs any more. The ledger is one worker's: what other workers admit passes nobody here, and what
they admit of those deferred here leaves the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

#: So many requests may be admitted past a deferred one before room is kept for it.
RESERVED_AFTER: Final = 4


class Verdict(StrEnum):
    """Whether a request is admitted, and why not."""

    ADMIT = "admit"
    #: Its cache would exceed the whole budget, here and elsewhere. It is let through to be ended, and takes no room.
    NEVER_FITS = "never_fits"
    #: Its cache would exceed the whole budget here, and not that of another worker, as far as is known: it is left to
    #: that one.
    FITS_ELSEWHERE = "fits_elsewhere"
    #: It would fit, but the room is kept for one that has waited too long.
    HOLD_FOR_RESERVED = "hold_for_reserved"
    DEFER_NO_ROOM = "defer_no_room"
    #: There are bytes for it, but every row is taken.
    DEFER_NO_ROW = "defer_no_row"


def sequence_bytes(tokens: int, bytes_per_token: int, step: int) -> int:
    """Bytes of the cache of a sequence of ``tokens`` (prompt + max tokens), which grows by ``step`` tokens."""
    return -(-tokens // step) * step * bytes_per_token


def batch_bytes(sequences: Collection[int]) -> int:
    """Bytes that sequences which were given so many can take together. One that was given none is in no batch."""
    rows = [bytes_ for bytes_ in sequences if bytes_]
    return len(rows) * max(rows, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The cache memory of one worker, in bytes.

    ``budget``: all of it. ``watermark``: what is kept free while rows decode. ``given``: what each admitted sequence
    was given. ``cached``: cold entries of the prefix cache, which may be evicted for others.
    """

    budget: int
    watermark: int = 0
    given: tuple[int, ...] = ()
    cached: int = 0

    def __post_init__(self) -> None:
        if min(self.budget, self.watermark, self.cached, *self.given) < 0:
            raise ValueError(f"bytes must not be negative: {self}")

    @property
    def reserved(self) -> int:
        """Bytes that all admitted sequences can take together."""
        return batch_bytes(self.given)

    def without(self, leaving: Iterable[int]) -> Room:
        """The room once sequences that were given so many have left."""
        return replace(self, given=tuple((Counter(self.given) - Counter(leaving)).elements()))

    def free(self, decoding: bool) -> int:
        """Bytes that nothing holds and nothing keeps free; negative where a lowered budget is exceeded."""
        return self.budget - (self.watermark if decoding else 0) - self.reserved - self.cached

    def fits(self, bytes_: int, decoding: bool) -> bool:
        """Whether there is room for a sequence of ``bytes_`` more, once enough of the prefix cache was evicted."""
        return self._lacking(bytes_, decoding) <= self.cached

    def reclaim_for(self, bytes_: int, decoding: bool) -> int:
        """Bytes to evict from the prefix cache for a sequence of ``bytes_`` more; all where not even that suffices."""
        return min(self.cached, max(0, self._lacking(bytes_, decoding)))

    def never_fits(self, bytes_: int) -> bool:
        """Whether a sequence of ``bytes_`` exceeds what the worker has when it is empty."""
        return bytes_ > self.budget

    def _lacking(self, bytes_: int, decoding: bool) -> int:
        """Bytes that a sequence of ``bytes_`` more lacks. If it is longer than all others, their rows grow with it."""
        return batch_bytes((*self.given, bytes_)) - self.reserved - self.free(decoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one worker can take on now.

    ``bytes_per_token`` and ``step`` tell the cost of a sequence (``sequence_bytes``). ``free_rows``: sequences it may
    admit beside those it has, parked ones counted; 0 or less is none. ``decoding``: rows decode. ``longest_elsewhere``:
    tokens of the longest sequence that another worker of the model can hold; 0 where there is no other, None where that
    is not known: then nothing is too long for everybody.
    """

    room: Room
    bytes_per_token: int
    step: int
    free_rows: int
    decoding: bool
    longest_elsewhere: int | None = 0

    def __post_init__(self) -> None:
        if self.bytes_per_token < 0 or self.step < 1:
            raise ValueError(f"bytes_per_token must not be negative, and step be at least 1: {self}")

    def bytes_of(self, tokens: int) -> int:
        """What a sequence of ``tokens`` is given: what it takes alone."""
        return sequence_bytes(tokens, self.bytes_per_token, self.step)

    def is_left_to_others(self, tokens: int) -> bool:
        """Whether a sequence of ``tokens`` can never be held here, and by another worker, as far as is known."""
        elsewhere = self.longest_elsewhere is None or tokens <= self.longest_elsewhere
        return elsewhere and self.room.never_fits(self.bytes_of(tokens))

    def verdict(self, tokens: int) -> Verdict:
        """Whether a sequence of ``tokens`` can be taken on now; 0 tokens need neither bytes nor a row."""
        if tokens == 0:
            return Verdict.ADMIT
        if self.is_left_to_others(tokens):
            return Verdict.FITS_ELSEWHERE
        needed = self.bytes_of(tokens)
        if self.room.never_fits(needed):
            return Verdict.NEVER_FITS
        if not self.room.fits(needed, self.decoding):
            return Verdict.DEFER_NO_ROOM
        return Verdict.ADMIT if self.free_rows > 0 else Verdict.DEFER_NO_ROW


@dataclass(frozen=True, slots=True)
class Deferral:
    """A request that waits for bytes.

    ``passes``: requests admitted past it. ``higher_passes``: how many of them were of higher lanes
    while it was the reserved one.
    """

    generation: str
    lane_rank: int
    bytes: int
    passes: int = 0
    higher_passes: int = 0


#: Who waits for bytes, the oldest deferral first.
Deferrals: TypeAlias = tuple[Deferral, ...]


def reserved_request(deferrals: Deferrals) -> Deferral | None:
    """The one that room is kept for: the oldest of those passed ``RESERVED_AFTER`` times."""
    return next((one for one in deferrals if one.passes >= RESERVED_AFTER), None)


def held_back(deferrals: Deferrals, generation: str, lane_rank: int, cap: int = 4) -> bool:
    """Whether a request must wait until the reserved one fits: all of its own and lower lanes, and of higher
    lanes all after the first ``cap``."""
    reserved = reserved_request(deferrals)
    if reserved is None or reserved.generation == generation:
        return False
    return lane_rank >= reserved.lane_rank or reserved.higher_passes >= cap


def deferred(deferrals: Deferrals, generation: str, lane_rank: int, bytes_: int) -> Deferrals:
    """The ledger once a request did not fit: as the youngest, or where it stands already."""
    if any(one.generation == generation for one in deferrals):
        return tuple(replace(one, bytes=bytes_) if one.generation == generation else one for one in deferrals)
    return (*deferrals, Deferral(generation, lane_rank, bytes_))


def admitted(deferrals: Deferrals, generation: str, lane_rank: int) -> Deferrals:
    """The ledger once a request was admitted: past all that were deferred before it, and out of the ledger."""
    reserved = reserved_request(deferrals)
    ledger: list[Deferral] = []
    is_later = True
    for one in deferrals:
        if one.generation == generation:
            is_later = False
        elif is_later:
            higher = one is reserved and lane_rank < one.lane_rank
            ledger.append(replace(one, passes=one.passes + 1, higher_passes=one.higher_passes + higher))
        else:
            ledger.append(one)
    return tuple(ledger)


def forgotten(deferrals: Deferrals, waiting: Collection[str]) -> Deferrals:
    """The ledger without those that are not ``waiting`` first of their tenant's any more.

    They were withdrawn, or another worker has them, or is to have them; or an elder of their tenant came back to the
    queue and stands before them, once for every time that it does: then they are deferred anew when it is gone.
    """
    return tuple(one for one in deferrals if one.generation in waiting)
