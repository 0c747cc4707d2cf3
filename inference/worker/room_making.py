"""Who has to make room for whom, of what this worker runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    too_large: dict[int, int] = {}  # the least bytes, by lane, for which there can be no room
    for candidate in candidates:
        lane, bytes_ = candidate.lane_rank, candidate.bytes
        if lane in too_large and bytes_ >= too_large[lane]:
            continue
        preemption = choose_victims(Requester(lane, bytes_), victims, capacity)
        if preemption is not None:
            return candidate, preemption
        too_large[lane] = bytes_
    return None


def still_needed(requester: Requester, planned: Sequence[Victim], capacity: Capacity) -> Preemption:
    """Who of those that were to leave for ``requester`` has to, in the ``capacity`` that there is now without it.

    Fewer than planned where others have ended meanwhile. All, where not even that suffices any more, as after a budget
    was lowered: the requester has been claimed by then.
    """
    preemption = choose_victims(requester, planned, capacity)
    if preemption is not None:
        return preemption
    room = capacity.room.without(victim.bytes for victim in planned)
    return Preemption(
        tuple(victim.key for victim in planned), room.reclaim_for(requester.bytes, capacity.decoding)
    )


def victims_of(
    roster: Roster, slot: SpeculativeSlot, holdings: Holdings, among: Mapping[str, int] | None = None
) -> list[Victim]:
    """All that run, or those of them ``among`` these (epochs by generation), as preemption sees them.

    Not one that is another worker's by now: nothing is held for it that it could give.
    """
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
        if holdings.runs(sequence.key, sequence.epoch)
        and (among is None or among.get(sequence.key) == sequence.epoch)
    ]
