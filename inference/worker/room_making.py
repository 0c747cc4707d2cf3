"""Who has to make room for whom, of what this worker runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inference.scheduling.claiming import Candidate
from inference.scheduling.memory import Capacity
from inference.scheduling.preemption import Preemption, Requester, Victim, choose_victims
from inference.worker.holdings import Holdings
from inference.worker.roster import Roster
from inference.worker.slot import SpeculativeSlot


def room_for(
    candidates: Iterable[Candidate], capacity: Capacity, victims: Sequence[Victim]
) -> tuple[Candidate, Preemption] | None:
    """The first candidate for which preemption makes room, and who has to go; None if there is none."""
    for candidate in candidates:
        preemption = _preemption(candidate, victims, capacity)
        if preemption is not None:
            return candidate, preemption
    return None


def _preemption(candidate: Candidate, victims: Sequence[Victim], capacity: Capacity) -> Preemption | None:
    return choose_victims(
        Requester(candidate.lane_rank, candidate.bytes),
        victims,
        capacity.room.free(capacity.decoding),
        capacity.free_rows,
        capacity.room.cached,
    )


def victims_of(roster: Roster, slot: SpeculativeSlot, holdings: Holdings) -> list[Victim]:
    """All that run, as preemption sees them."""
    return [
        Victim(
            key=sequence.key,
            lane_rank=sequence.task.lane_rank,
            bytes=holdings.bytes_of(sequence.key),
            generated=len(sequence.emitted),
            order=sequence.order,
            preempted=sequence.preemptions,
            occupation=slot.occupation_of(sequence),
        )
        for sequence in roster
    ]
