"""Who gets the speculative slot, for how long, and who may wait for it.

At most one generation decodes with the drafter. It holds the slot for a *grant* of so many slices; who waits for it
stands in the *ring*, and so does who held it and was parked. Units are slices and grant decisions, never seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Most that may wait for the slot when another is admitted to wait. A park may add one more until the next grant.
BACKLOG_CAP = 2
#: Grant decisions that may pass an entry over before it goes first, whatever its lane.
SKIP_CAP = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """One in the ring. ``lane_rank``: 0 is the highest lane. ``skips``: grant decisions that passed it over."""

    lane_rank: int
    skips: int


def grant_expired(slices: int, budget: int, backlog_pending: bool) -> bool:
    """Whether the holder has to make way after ``slices`` of its grant of ``budget`` (0: it never has to).

    Only while somebody waits: one that is alone goes on, and makes way at its first round's end after that.
    """
    return budget > 0 and backlog_pending and slices >= budget


def backlog_admits(backlog_len: int, budget: int) -> bool:
    """Whether one more may wait for the slot behind ``backlog_len`` others; nobody may without rotation."""
    return budget > 0 and backlog_len < BACKLOG_CAP


def next_grant_index(ring: Sequence[Contender]) -> int | None:
    """The index of the one in ``ring`` (in order of arrival) that is granted the slot next; None if it is empty.

    The highest lane goes first, the earliest inside it. But whoever was passed over ``SKIP_CAP`` times or more goes
    before all lanes: the most skipped, the earliest of equals. So with three in the ring each is granted at the latest
    by the third decision, or by the fourth if another was skipped as long.
    """
    if not ring:
        return None
    overdue = [index for index, contender in enumerate(ring) if contender.skips >= SKIP_CAP]
    # `max` and `min` keep the first of equals: the earliest.
    if overdue:
        return max(overdue, key=lambda index: ring[index].skips)
    return min(range(len(ring)), key=lambda index: ring[index].lane_rank)
