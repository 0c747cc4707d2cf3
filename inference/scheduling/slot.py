"""The speculative slot: who holds it, who waits for it, and each step between, as plain values.

An eligible sequence is *offered* once its prompt is down to its last chunk. It takes the slot at once, waits for it
(a *waiter*: it has produced nothing yet), or decodes classically for good. The holder runs *slices*: slice 0, its
last chunk, which yields its first token, and then rounds. When its grant has expired it is *parked*: it keeps its cache
and what it has produced, and joins the ring's tail as a *parked job*. With the slot empty and the ring not, one
*grant decision* at a time takes an entry out of the ring until one of them can take the slot.

Everything here is bookkeeping: nothing of it is a tick of its own. Parking at one tick's end and the next grant are
two ticks, between which the ring holds one more than may wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from inference.scheduling.rotation import Contender, backlog_admits, grant_expired, next_grant_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds the slot.

    ``slices``: how many it ran in this grant. ``budget``: slices of the grant as the setting was read when it began;
    0 is no rotation, and counts as 1 as long as somebody is in the ring. ``started``: its slice 0 has run, so that its
    next slice is a round. ``direct``: it took the slot without waiting for it, and has not started: the ring was empty
    then, so its grant is not tested after slice 0.
    """

    key: str
    lane_rank: int
    slices: int
    budget: int
    started: bool
    direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RingEntry(Contender):
    """Who waits for the slot. ``started``: a parked job, which has produced tokens; else a waiter."""

    key: str
    started: bool


@dataclass(frozen=True, slots=True)
class SlotState:
    """The slot and its ring, in the order in which its entries joined. The default is an idle slot's."""

    holder: Holder | None = None
    ring: tuple[RingEntry, ...] = ()

    @property
    def pending(self) -> bool:
        """Whether a slice waits to be run: ``TickState.speculative_pending``."""
        return self.holder is not None or bool(self.ring)

    @property
    def keys(self) -> tuple[str, ...]:
        """All that hold the slot or wait for it."""
        waiting = tuple(entry.key for entry in self.ring)
        return waiting if self.holder is None else (self.holder.key, *waiting)


class Offer(StrEnum):
    """What becomes of an eligible sequence whose prompt is down to its last chunk."""

    TAKES_SLOT = "takes_slot"
    WAITS = "waits"
    #: For good: its last chunk is ordinary prefill, and it joins the batch.
    CLASSIC = "classic"


class SliceEnd(StrEnum):
    """What becomes of the holder that has run a slice and goes on. One that has ended leaves (``leave``)."""

    HOLDS = "holds"
    #: Its grant has expired: the drafter has to be returned, and it waits at the ring's tail.
    PARKED = "parked"


def offer(state: SlotState, key: str, lane_rank: int, budget: int) -> tuple[Offer, SlotState]:
    """Offer the slot to ``key``, which is new to it. ``budget``: slices of a grant, as the setting reads now.

    Whether it may wait is a matter of the running grant's own budget: a changed setting holds from the next grant on.
    """
    if not state.pending:
        holder = Holder(key=key, lane_rank=lane_rank, slices=0, budget=budget, started=False, direct=True)
        return Offer.TAKES_SLOT, SlotState(holder)
    current = budget if state.holder is None else state.holder.budget
    if not backlog_admits(len(state.ring), current):
        return Offer.CLASSIC, state
    waiter = RingEntry(lane_rank=lane_rank, skips=0, key=key, started=False)
    return Offer.WAITS, replace(state, ring=(*state.ring, waiter))


def sliced(state: SlotState) -> tuple[SliceEnd, SlotState]:
    """The holder ran a slice, its slice 0 as a whole, a probe or a round, and has not ended with it.

    Raises ``ValueError`` if nobody holds the slot.
    """
    holder = state.holder
    if holder is None:
        raise ValueError("nobody holds the slot, so nobody can have run a slice: grant it first")
    slices = holder.slices + 1
    # Entries and a budget of 0 meet only after the setting became 0: they take turns until the ring is empty.
    if not holder.direct and grant_expired(slices, max(1, holder.budget), bool(state.ring)):
        parked = RingEntry(lane_rank=holder.lane_rank, skips=0, key=holder.key, started=True)
        return SliceEnd.PARKED, SlotState(None, (*state.ring, parked))
    return SliceEnd.HOLDS, replace(state, holder=replace(holder, slices=slices, started=True, direct=False))


def peek(state: SlotState) -> RingEntry | None:
    """The entry that the next grant decision takes; None if the ring is empty."""
    index = next_grant_index(state.ring)
    return None if index is None else state.ring[index]


def next_entry(state: SlotState) -> tuple[RingEntry | None, SlotState]:
    """One grant decision: the chosen entry, taken out of the ring, in which every other one was skipped once more.

    The skips grow whatever becomes of the chosen one, also if it turns out to be cancelled or declined. None if the
    ring is empty. Raises ``ValueError`` while the slot is taken.
    """
    _refuse_taken(state)
    index = next_grant_index(state.ring)
    if index is None:
        return None, state
    others = (*state.ring[:index], *state.ring[index + 1 :])
    return state.ring[index], SlotState(None, tuple(replace(one, skips=one.skips + 1) for one in others))


def grant(state: SlotState, entry: RingEntry, budget: int) -> SlotState:
    """``entry``, which ``next_entry`` took out, takes the slot. ``budget``: as the setting reads now.

    Raises ``ValueError`` while the slot is taken.
    """
    _refuse_taken(state)
    holder = Holder(
        key=entry.key, lane_rank=entry.lane_rank, slices=0, budget=budget, started=entry.started, direct=False
    )
    return replace(state, holder=holder)


def leave(state: SlotState, key: str) -> SlotState:
    """``key`` has ended, was cancelled or preempted: the slot and the ring without it, which is no grant decision.

    One that is in neither changes nothing, so that every sequence that ends may be told.
    """
    holder = None if state.holder is not None and state.holder.key == key else state.holder
    return SlotState(holder, tuple(entry for entry in state.ring if entry.key != key))


def _refuse_taken(state: SlotState) -> None:
    if state.holder is not None:
        raise ValueError(f"{state.holder.key} holds the slot: grant it once it is parked or has ended")
