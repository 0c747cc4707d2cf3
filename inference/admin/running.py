"""What a worker does with each generation that runs: that it runs says the database, the rest its worker's heartbeat.

A heartbeat is up to a second old, and what it tells of may have ended since. What the database knows to have ended is
taken out of it, so that a page lists whatever it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import msgspec

from inference.messages import Heartbeat, SlotHolder, SlotWaiter
from inference.models import Generation, GenerationState


class Doing(StrEnum):
    """What is done with a generation that runs."""

    WRITING = "writing"
    READING = "reading its prompt"
    #: No worker tells of it: it was just claimed or preempted, is about to be settled, or its worker died.
    NOTHING = "in no slot"


@dataclass(frozen=True, slots=True)
class RunningNow:
    """A generation that runs, and what is done with it."""

    generation: Generation
    doing: Doing


def told_by(beat: Heartbeat) -> dict[UUID, Doing]:
    """The generations that the heartbeat names; nothing for a worker that has not ticked yet."""
    told = beat.scheduler
    if told is None:
        return {}
    doing = {row.generation: Doing.WRITING for row in told.rows}
    doing |= {row.generation: Doing.READING for row in told.parked}
    if told.slot is not None:
        holders = [told.slot.holder] if told.slot.holder is not None else []
        at_slot: list[SlotHolder | SlotWaiter] = [*holders, *told.slot.waiting]
        doing |= {one.generation: Doing.WRITING if one.tokens else Doing.READING for one in at_slot}
    return {UUID(hex=generation): done for generation, done in doing.items()}


def still_running(beats: Iterable[Heartbeat]) -> set[UUID]:
    """Those of the generations that ``beats`` name which have not ended since. One query, none where none is named."""
    named = [generation for beat in beats for generation in told_by(beat)]
    running = Generation.objects.filter(id__in=named, state=GenerationState.RUNNING)
    return set(running.values_list("id", flat=True))


def without_ended(beat: Heartbeat, running: Collection[UUID]) -> Heartbeat:
    """The heartbeat, its slots taken only by what is among ``running``, and by what it counts without naming it."""
    told = beat.scheduler
    if told is None:
        return beat
    taken = Counter(doing for generation, doing in told_by(beat).items() if generation in running)
    return msgspec.structs.replace(
        beat,
        decoding=taken[Doing.WRITING] + told.decoding - len(told.rows),
        prefilling=taken[Doing.READING] + told.prefills - len(told.parked),
    )
