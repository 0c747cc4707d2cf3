"""Which generation a worker claims next: lanes, tenants and room in one choice.

The order is that of ``pick_lane`` and, inside the lane, of ``fair_share``. What comes first in it and does not fit is
deferred: it stays where it is, its lane keeps its skips and its tenant its tag, and what its tenant queued behind it
waits with it. Then the next in the order is tried, of the same lane as long as there is one. Whoever is admitted past a
deferred request is counted in the worker's ledger (``memory``), which bounds how many that may be.

What can never fit here and fits another worker is left to that one. It keeps its place, its lane its skips and its
tenant its tag as if it were deferred, and the next in the order is tried; but it is in no ledger of this worker's:
there is no room here to be kept for it, and nobody is preempted for it.

A missing *row* is different: whoever has bytes and only lacks a row is next for the first row, and nobody is
tried after it. So the lanes' floor holds for rows too: a higher lane that could free one by preemption cannot take it
from a lower one whose turn it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from inference.scheduling import fair_share, memory
from inference.scheduling.fair_share import Head, Service
from inference.scheduling.lanes import pick_lane, skips_after
from inference.scheduling.memory import Capacity, Deferrals, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneQueue:
    """A lane in which something waits: how often it was passed over, its virtual time, and each tenant's head."""

    skips: int
    virtual_time: int
    heads: Collection[Head]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A head that was tried. ``bytes``: what its cache is given; 0 if it needs none, or without a capacity."""

    lane_rank: int
    head: Head
    bytes: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Who is claimed, and what of the queue changes with it: the tags of its lane, and the skips of all waiting lanes.

    The candidate's verdict is ``ADMIT``, or ``NEVER_FITS`` for one that is claimed only to be ended.
    """

    candidate: Candidate
    service: Service
    skips: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChoice:
    """The choice, and the worker's next ledger.

    ``grant``: None if nothing waits or nothing that waits is admitted; then nothing of the queue changes.
    ``deferred``: those tried first that lack nothing but bytes or a row, in the order in which they were. The first of
    them for which ``choose_victims`` has an answer may be given room by preemption.
    """

    grant: Grant | None
    deferrals: Deferrals
    deferred: tuple[Candidate, ...]


def choose_claim(
    lanes: Mapping[int, LaneQueue],
    *,
    capacity: Capacity | None = None,
    deferrals: Deferrals = (),
    promised: str | None = None,
    cap: int = 4,
) -> ClaimChoice:
    """Choose among the heads of ``lanes``, by rank.

    ``capacity``: what the worker can take on; None: anything. ``deferrals``: its ledger after the previous choice.
    ``promised``: the generation for which room is to be made by preemption, and ``capacity`` is what there is once it
    is made. Nobody else is tried: what that room is taken from goes on where it is if the promised one is not there any
    more. It counts as a grant to its lane. ``cap``: of the lanes' floor, and of the higher lanes that may pass the
    reserved request.
    """
    waiting = {
        head.generation
        for lane in lanes.values()
        for head in lane.heads
        if capacity is None or not capacity.is_left_to_others(head.tokens)
    }
    ledger = memory.forgotten(deferrals, waiting)
    lacking: dict[str, Candidate] = {}
    for rank, head, skips in _in_turn(lanes, promised, cap):
        candidate = _tried(rank, head, capacity, ledger, cap)
        match candidate.verdict:
            case Verdict.ADMIT | Verdict.NEVER_FITS:
                if head.tokens > 0 and candidate.verdict is Verdict.ADMIT:
                    ledger = memory.admitted(ledger, head.generation, rank)
                else:  # it takes no room, so it is admitted past nobody
                    ledger = memory.forgotten(ledger, waiting - {head.generation})
                service = fair_share.service_of(head, lanes[rank].heads, lanes[rank].virtual_time)
                grant = Grant(candidate=candidate, service=service, skips=skips)
                return ClaimChoice(grant=grant, deferrals=ledger, deferred=_admissible(lacking, ledger, cap))
            case Verdict.DEFER_NO_ROOM:
                ledger = memory.deferred(ledger, head.generation, rank, candidate.bytes)
                lacking[head.generation] = candidate
            case Verdict.DEFER_NO_ROW:
                lacking[head.generation] = candidate
                break
            case Verdict.HOLD_FOR_RESERVED | Verdict.FITS_ELSEWHERE:
                pass
    return ClaimChoice(grant=None, deferrals=ledger, deferred=_admissible(lacking, ledger, cap))


def _in_turn(
    lanes: Mapping[int, LaneQueue], promised: str | None, cap: int
) -> Iterator[tuple[int, Head, dict[int, int]]]:
    """Every head, first in turn first, or the promised one; with its lane and all skips once it was served."""
    skips = {rank: lane.skips for rank, lane in lanes.items() if lane.heads}
    if promised is not None:
        for rank in skips:
            for head in lanes[rank].heads:
                if head.generation == promised:
                    yield rank, head, skips_after(rank, skips.keys(), skips)
        return
    contending = set(skips)
    chosen, after = pick_lane(contending, skips, cap)
    while chosen is not None:
        for head in fair_share.in_order(lanes[chosen].heads, lanes[chosen].virtual_time):
            yield chosen, head, skips | after
        contending.remove(chosen)
        chosen, after = pick_lane(contending, skips, cap)


def _tried(rank: int, head: Head, capacity: Capacity | None, deferrals: Deferrals, cap: int) -> Candidate:
    if capacity is None:
        return Candidate(lane_rank=rank, head=head, bytes=0, verdict=Verdict.ADMIT)
    verdict = capacity.verdict(head.tokens)
    needs_room = head.tokens > 0 and verdict not in (Verdict.NEVER_FITS, Verdict.FITS_ELSEWHERE)
    if needs_room and memory.held_back(deferrals, head.generation, rank, cap):
        verdict = Verdict.HOLD_FOR_RESERVED
    return Candidate(lane_rank=rank, head=head, bytes=capacity.bytes_of(head.tokens), verdict=verdict)


def _admissible(lacking: Mapping[str, Candidate], deferrals: Deferrals, cap: int) -> tuple[Candidate, ...]:
    """Those that would be admitted had they room: the grant itself may have made another the reserved request."""
    return tuple(
        candidate
        for generation, candidate in lacking.items()
        if not memory.held_back(deferrals, generation, candidate.lane_rank, cap)
    )
