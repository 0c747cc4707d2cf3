"""Whose cache and row are taken for a request of a higher lane, once the prefix cache cannot give enough.

Only sequences of **strictly** lower lanes are victims, so equals never preempt each other, and no sequence is one
more than ``MOST_PREEMPTIONS`` times, so each runs to its end at last. Nobody is preempted unless that makes room: if
all eligible victims and the cold prefix cache together do not suffice, there is no victim at all.

A victim goes back to the front of its tenant's queue with its tokens kept. The choice is a plan: the requester is
claimed first, against the room that the victims will leave (``choose_claim``'s ``promised``), and nobody leaves if that
comes to nothing. So the room is the requester's before it is there, and nobody is preempted for one that another worker
has taken or that was withdrawn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from inference.scheduling.memory import Capacity, Room

#: How often one sequence may be preempted in its life, by any worker.
MOST_PREEMPTIONS: Final = 2


class Occupation(StrEnum):
    """What a sequence does with its row and its cache."""

    DECODING = "decoding"
    PARKED_PREFILL = "parked_prefill"
    PARKED_JOB = "parked_job"
    #: It holds the speculative slot, between two rounds.
    SLOT_BETWEEN_ROUNDS = "slot_between_rounds"
    #: It holds the speculative slot, in a round: its cache cannot be let go of.
    SLOT_IN_ROUND = "slot_in_round"


@dataclass(frozen=True, slots=True)
class Requester:
    """The request that would be next, and the bytes that its cache is given."""

    lane_rank: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A sequence that runs, and could be preempted.

    ``bytes``: what it was given. ``generated``: tokens that it has produced. ``order``: its admission's number, unique
    and growing. ``preempted``: how often it was before.
    """

    key: str
    lane_rank: int
    bytes: int
    generated: int
    order: int
    preempted: int
    occupation: Occupation = Occupation.DECODING

    def is_eligible_for(self, request: Requester) -> bool:
        """Whether ``request`` may take its place."""
        return (
            self.lane_rank > request.lane_rank
            and self.preempted < MOST_PREEMPTIONS
            and self.occupation is not Occupation.SLOT_IN_ROUND
        )


@dataclass(frozen=True, slots=True)
class Preemption:
    """The victims' keys, first preferred first, and the bytes to evict from the prefix cache beside them."""

    victims: tuple[str, ...]
    reclaim: int


def choose_victims(request: Requester, victims: Sequence[Victim], capacity: Capacity) -> Preemption | None:
    """What must give way so that ``request`` has its bytes and one row; None if that cannot be.

    ``capacity``: as it is with the ``victims``; what each was given is among ``capacity.room.given``.

    The cache counts first: nobody is preempted for bytes that it can give. Then as few victims as suffice, and among
    sets of that size the preferred one. Victims are preferred by the lowest lane, then the fewest tokens generated,
    then the newest admission; of two sets the one whose first victim is preferred, or, where they share it, the next.
    So one victim that was given much goes before two of a lower lane that were given little. Of the cache, only what
    the victims leave missing is evicted.

    Bytes do not add up: rows are as long as the longest (``memory``). But a set of victims is never worse for one more,
    nor for one that was given more in the place of another, so the choice is made by asking what fits, no more. That is
    asked once where the answer is None, and else a number of times that grows with the logarithm of the victims'.
    """
    eligible = sorted(
        (victim for victim in victims if victim.is_eligible_for(request)),
        key=lambda victim: (-victim.lane_rank, victim.generated, -victim.order),
    )

    def suffices(leaving: Sequence[Victim]) -> bool:
        return _once_gone(capacity, leaving).fits(request.bytes, capacity.decoding)

    chosen = _fewest(eligible, suffices, rows=max(0, 1 - capacity.free_rows))
    if chosen is None:
        return None
    reclaim = _once_gone(capacity, chosen).reclaim_for(request.bytes, capacity.decoding)
    return Preemption(tuple(victim.key for victim in chosen), reclaim)


def _once_gone(capacity: Capacity, victims: Sequence[Victim]) -> Room:
    return capacity.room.without(victim.bytes for victim in victims)


def _fewest(
    preferred: Sequence[Victim], suffices: Callable[[Sequence[Victim]], bool], rows: int
) -> list[Victim] | None:
    """The fewest that suffice, ``rows`` at least; of the sets of that size, the first in the order given."""
    if len(preferred) < rows or not suffices(preferred):
        return None
    counts = range(rows, len(preferred))
    count = rows + bisect_left(counts, True, key=lambda number: suffices(_largest(preferred, number)))
    chosen: list[Victim] = []
    rest = list(preferred)
    while len(chosen) < count:
        taken = _taken_together(chosen, rest, count - len(chosen), suffices)
        chosen, rest = [*chosen, *rest[:taken]], rest[taken + 1 :]
        left = count - len(chosen)
        largest = _largest(rest, left + 1)
        if left and not suffices([*chosen, *largest[: left - 1], *largest[left:]]):
            needed = set(largest[:left])  # no other can stand in for even the smallest of them
            return [*chosen, *(victim for victim in rest if victim in needed)]
    return chosen


def _taken_together(
    chosen: Sequence[Victim], rest: Sequence[Victim], left: int, suffices: Callable[[Sequence[Victim]], bool]
) -> int:
    """How many of ``rest``, from the first on, may be among the ``left`` that leave beside the ``chosen``.

    Whoever comes first is taken if it suffices with the largest of those after it.
    """

    def too_many(taken: int) -> bool:
        return not suffices([*chosen, *rest[:taken], *_largest(rest[taken:], left - taken)])

    return bisect_left(range(1, left + 1), True, key=too_many)


def _largest(victims: Sequence[Victim], count: int) -> list[Victim]:
    """The ``count`` that were given most; all, where there are fewer."""
    return sorted(victims, key=lambda victim: -victim.bytes)[:count]
