"""How a claimed generation comes to run: admitted, in others' room if need be, or ended at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from inference.dispatch.claims import Claim
from inference.messages import End, LogEntry
from inference.models import RunOutcome
from inference.scheduling.claiming import Candidate
from inference.scheduling.preemption import Requester
from inference.worker.departures import Departures
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvMemory
from inference.worker.metrics import Fault, Stage, WorkerMetrics
from inference.worker.outbox import Outbox
from inference.worker.requests import RoomPlan
from inference.worker.room_making import room_for, still_needed, victims_of
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence, failed_end, too_large
from inference.worker.slot import SpeculativeSlot
from inference.worker.snapshot import SnapshotBoard
from inference.worker.timeline import RunTimeline

if TYPE_CHECKING:
    from inference.engine.engine import Engine

_log = structlog.get_logger(__name__)

#: Owners that fell silent with a generation before it is taken for the cause.
_MOST_LAPSES: Final = 5


class Arrivals:
    """Puts claimed generations into the engine, and makes the room that they were promised. Belongs to the tick thread.

    An arrival that fails costs its own generation and no other.
    """

    def __init__(
        self,
        engine: Engine,
        roster: Roster,
        slot: SpeculativeSlot,
        holdings: Holdings,
        memory: KvMemory,
        outbox: Outbox,
        metrics: WorkerMetrics,
        board: SnapshotBoard,
        departures: Departures,
    ) -> None:
        self._engine = engine
        self._roster = roster
        self._slot = slot
        self._holdings = holdings
        self._memory = memory
        self._outbox = outbox
        self._metrics = metrics
        self._board = board
        self._departures = departures
        self._admissions = 0

    def admit(self, claim: Claim, fits: bool, claimed_at: float, instead_of: Mapping[str, int]) -> None:
        """Run it, or end it: see ``requests.Admit``."""
        task, key = claim.task, claim.task.generation
        earlier = self._roster.find(key)
        if earlier is not None:  # its lease had lapsed, and it was this worker that claimed it again
            self._departures.leave(earlier, RunOutcome.LOST)
        if not self._holdings.holds(key, claim.epoch):
            self._outbox.report(RunTimeline(claim, claimed_at).left(RunOutcome.LOST))
            return
        if instead_of:
            self._holdings.take_room(key, claim.epoch)
        self._admissions += 1
        try:
            sequence = RunningSequence(claim, self._admissions, self._engine.tokenizer, claimed_at)
            if claim.is_first:
                wait_s = max(0.0, time.time() - task.accepted_at)
                self._metrics.lane(task.lane).queue_wait.observe(wait_s)
            entries = self._first_entries(sequence, claim, fits)
            if not (entries and isinstance(entries[-1], End)):
                if instead_of:
                    self._preempt(claim, instead_of)
                self._roster.admit(sequence)
                self._board.admitted()
        except Exception:  # noqa: BLE001 (whatever it is, it costs this generation only)
            self._metrics.faults(Fault.ADMISSION).add()
            _log.exception("generation_not_admitted", generation=key)
            self._outbox.end(task, failed_end(claim), RunTimeline(claim, claimed_at).left(RunOutcome.FAILED))
        else:
            self._outbox.send(sequence, entries)

    def plan_room(self, candidates: Sequence[Candidate]) -> RoomPlan | None:
        """For which candidate first room can be made, and who would have to leave. Nobody does."""
        self._free_what_ended()
        victims = victims_of(self._roster, self._slot, self._holdings)
        found = room_for(candidates, self._memory.capacity(), victims)
        if found is None:
            return None
        candidate, preemption = found
        epochs = {key: self._roster[key].epoch for key in preemption.victims}
        return RoomPlan(candidate.head.generation, epochs)

    def _first_entries(self, sequence: RunningSequence, claim: Claim, fits: bool) -> list[LogEntry]:
        """What is to be logged before the model is asked for anything: mostly nothing, or an end."""
        if claim.lapses >= _MOST_LAPSES:
            _log.error("generation_given_up", generation=sequence.key, lapses=claim.lapses)
            return [failed_end(claim)]
        entries = sequence.replay()
        if entries and isinstance(entries[-1], End):
            return entries
        if claim.cancel is not None:
            self._metrics.cancellations(Stage.CLAIMED, claim.cancel, claim.task.lane).add()
            return [*entries, *sequence.cancel(claim.cancel, _prompt_tokens_run(sequence))]
        if not fits:
            failure = too_large(claim.task.cost, self._memory.longest_anywhere())
            return [*entries, *sequence.fail(_prompt_tokens_run(sequence), failure)]
        return entries

    def _preempt(self, claim: Claim, instead_of: Mapping[str, int]) -> None:
        """Have those leave in whose room ``claim`` is about to run, as far as it still needs that."""
        self._free_what_ended()
        key = claim.task.generation
        preemption = still_needed(
            Requester(claim.task.lane_rank, self._holdings.bytes_of(key)),
            victims_of(self._roster, self._slot, self._holdings, among=instead_of),
            self._memory.capacity(leaving={key: claim.epoch}),
        )
        for victim in preemption.victims:
            self._departures.preempt(self._roster[victim])
        self._engine.evict(preemption.reclaim, spare={claim.task.tenant})

    def _free_what_ended(self) -> None:
        """What has ended in this turn, as by a cancel, gives its room back when its end is published."""
        if self._outbox:
            self._departures.heed(self._outbox.publish())


def _prompt_tokens_run(sequence: RunningSequence) -> int:
    """What its earlier owners ran of the prompt, as far as its log tells: all of it, if anything was produced."""
    return len(sequence.task.prompt) if sequence.emitted else 0
