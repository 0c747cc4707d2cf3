"""How a sequence is taken out before its own end: failed, cancelled, preempted, handed back to the queue, or lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import redis
import structlog

from inference.dispatch import claims
from inference.dispatch.claims import Claim
from inference.dispatch.publishing import PublishOutcome
from inference.messages import CancelReason
from inference.models import RunOutcome
from inference.scheduling.faults import is_cause, suspicion_after
from inference.worker.holdings import Holdings
from inference.worker.metrics import Fault, WorkerMetrics
from inference.worker.outbox import Outbox
from inference.worker.requests import Cancel
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence
from inference.worker.slot import SpeculativeSlot
from inference.worker.timeline import RunTimeline

_log = structlog.get_logger(__name__)


class Departures:
    """Takes sequences out of slot, roster and engine, and sees to what becomes of them. Belongs to the tick thread.

    Some end then, and their end goes to the outbox. The others go on elsewhere, where their logs end: they go back to
    the queue, or are another worker's already.
    """

    def __init__(
        self,
        client: redis.Redis,
        roster: Roster,
        slot: SpeculativeSlot,
        holdings: Holdings,
        outbox: Outbox,
        metrics: WorkerMetrics,
        ask: Callable[[Cancel], object],
    ) -> None:
        """``ask``: have a request carried out before the next tick."""
        self._client = client
        self._roster = roster
        self._slot = slot
        self._holdings = holdings
        self._outbox = outbox
        self._metrics = metrics
        self._ask = ask

    def remove(self, sequence: RunningSequence) -> None:
        """Take it out of the engine, for whatever reason, and say nothing."""
        self._slot.leave(sequence)
        self._roster.leave(sequence)

    def leave(self, sequence: RunningSequence, outcome: RunOutcome, **details: str) -> None:
        """Take it out of the engine although it has not ended, and say how the run was over."""
        self.remove(sequence)
        self._outbox.report(sequence.timeline.left(outcome, **details))

    # With an end

    def cancel(self, reasons: Mapping[str, CancelReason]) -> None:
        """End those of them that run."""
        for key, reason in reasons.items():
            sequence = self._roster.find(key)
            if sequence is None:  # it has ended meanwhile, or is being claimed: the next answer tells again
                continue
            self._metrics.cancellations(self._slot.stage_of(sequence), reason, sequence.task.lane).add()
            prompt_tokens = self._roster.prompt_tokens_run(sequence)
            self.remove(sequence)
            self._outbox.send(sequence, sequence.cancel(reason, prompt_tokens))

    def fail(self, sequence: RunningSequence, kind: Fault, fault: Exception) -> None:
        """End it because of a fault of its own."""
        self._metrics.faults(kind).add()
        _log.error("generation_failed", generation=sequence.key, fault=kind.value, exc_info=fault)
        prompt_tokens = self._roster.prompt_tokens_run(sequence)
        self.remove(sequence)
        self._outbox.send(sequence, sequence.fail(prompt_tokens))

    # Back to the queue

    def step_failed(self, sequences: Sequence[RunningSequence], fault: Exception) -> None:
        """A step failed for all of its ``sequences``, and nobody knows for whom: all go back, but not for ever."""
        self._metrics.faults(Fault.BACKEND).add()
        _log.error("step_failed", generations=[sequence.key for sequence in sequences], exc_info=fault)
        for sequence in sequences:
            self._recover(sequence, len(sequences), fault)

    def preempt(self, sequence: RunningSequence) -> None:
        """It makes room for another one."""
        self._metrics.preemptions(sequence.task.lane).add()
        self.leave(sequence, RunOutcome.PREEMPTED)
        self._requeue(sequence.key, sequence.epoch, preempted=True, cached=sequence.cached_tokens)

    def hand_back(self, sequence: RunningSequence) -> None:
        """Another worker is to go on with it."""
        self.leave(sequence, RunOutcome.REQUEUED)
        self._requeue(sequence.key, sequence.epoch, cached=sequence.cached_tokens)

    def turn_away(self, claim: Claim, claimed_at: float) -> None:
        """Hand a claim back that was never admitted."""
        self._requeue(claim.task.generation, claim.epoch, begun=False)
        timeline = RunTimeline(claim, claimed_at)
        self._outbox.report(timeline.left(RunOutcome.REQUEUED))

    # To another worker

    def lose(self, key: str, epoch: int) -> None:
        """It is another worker's now: forget it, silently."""
        sequence = self._roster.find(key)
        if sequence is not None and sequence.epoch == epoch:
            self.leave(sequence, RunOutcome.LOST)
        self._holdings.release(key, epoch)

    def heed(self, outcome: PublishOutcome) -> None:
        """What publishing has told: whoever was refused is lost, and who was cancelled ends before the next tick."""
        for key in outcome.refused:
            sequence = self._roster.find(key)
            if sequence is not None:
                self.lose(key, sequence.epoch)
        if outcome.cancelled:
            self._ask(Cancel(outcome.cancelled))

    def _recover(self, sequence: RunningSequence, ran: int, fault: Exception) -> None:
        """A step of ``ran`` sequences failed, of which this was one."""
        suspicion = suspicion_after(sequence.suspicion, ran)
        if is_cause(suspicion):
            self.fail(sequence, Fault.SEQUENCE, fault)
            return
        self.leave(sequence, RunOutcome.REQUEUED, reason=Fault.BACKEND.value)
        added = suspicion - sequence.suspicion
        self._requeue(sequence.key, sequence.epoch, suspicion=added, cached=sequence.cached_tokens)

    def _requeue(
        self,
        key: str,
        epoch: int,
        *,
        preempted: bool = False,
        suspicion: int = 0,
        begun: bool = True,
        cached: int | None = None,
    ) -> None:
        self._holdings.release(key, epoch)
        self._metrics.requeues.add()
        try:
            claims.requeue(
                self._client,
                key,
                epoch,
                preempted=preempted,
                suspicion=suspicion,
                begun=begun,
                cached=cached,
            )
        except redis.RedisError as error:
            _log.warning("requeue_left_to_lease", generation=key, error=str(error))
