"""Who has to make room for whom, of what this worker runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inference.scheduling.claiming import Candidate
from inference.scheduling.memory import Capacity
from inference.scheduling.preemption import Occupation, Preemption, Requester, Victim, choose_victims
from inference.worker.holdings import Holdings
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence


def room_for(
    candidates: Iterable[Candidate], capacity: Capacity, roster: Roster, holdings: Holdings
) -> tuple[Candidate, Preemption] | None:
    """The first candidate for which preemption makes room, and who has to go; None if there is none."""
    victims = [_victim(sequence, roster, holdings) for sequence in roster]
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


def _victim(sequence: RunningSequence, roster: Roster, holdings: Holdings) -> Victim:
    parked = roster.is_parked(sequence)
    return Victim(
        key=sequence.key,
        lane_rank=sequence.task.lane_rank,
        bytes=holdings.bytes_of(sequence.key),
        generated=len(sequence.emitted),
        order=sequence.order,
        preempted=sequence.preemptions,
        occupation=Occupation.PARKED_PREFILL if parked else Occupation.DECODING,
    )
