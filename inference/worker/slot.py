"""The speculative slot at work: engine, roster and books follow what ``scheduling.slot`` decides."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inference.messages import SlotSnapshot
from inference.models import DrafterKind
from inference.scheduler_settings import SpeculationSettings
from inference.scheduling import slot
from inference.scheduling.draft_length import (
    DEFAULT_TOKEN_COST,
    DraftLength,
    first_length,
    limited,
    next_length,
)
from inference.scheduling.preemption import Occupation
from inference.scheduling.slot import Holder, Offer, RingEntry, SliceEnd, SlotState
from inference.scheduling.speculation import UNMEASURED_BATCH_COST, DeclineReason, SpeculationMode, Verdict
from inference.scheduling.tick import PrefillLimits
from inference.worker.metrics import Stage, WorkerMetrics
from inference.worker.pace import Pace
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence
from inference.worker.slot_books import SlotBooks
from inference.worker.speculation_profile import SpeculationProfile

if TYPE_CHECKING:
    from inference.engine.engine import Engine, RoundResult, StepResult


@dataclass(slots=True)
class _Job:
    """One that holds the slot or waits for it, and how much it has drafted at a time."""

    sequence: RunningSequence
    length: DraftLength


class SpeculativeSlot:
    """Who speculates, and for how long. Belongs to the tick thread.

    What one tick does is one slice: a prompt's last chunk, or a round. All else here is bookkeeping between two ticks.
    """

    def __init__(
        self,
        engine: Engine,
        roster: Roster,
        metrics: WorkerMetrics,
        pace: Pace,
        profile: SpeculationProfile,
        settings: SpeculationSettings,
    ) -> None:
        self.state = SlotState()
        self.profile: Final = profile
        self._engine = engine
        self._roster = roster
        self._pace = pace
        self._settings = settings
        self._jobs: dict[str, _Job] = {}
        self._held_last: str | None = None
        self._books = SlotBooks(metrics)
        self._books.configured(settings)

    @property
    def holder(self) -> RunningSequence:
        """Whose slice is next. Raises ``RuntimeError`` if nobody holds the slot."""
        return self._jobs[self._holder.key].sequence

    def reconfigure(self, settings: SpeculationSettings) -> None:
        """Go by these from the next grant on, by their draft length from the next round on.

        Who holds the slot or waits for it stays.
        """
        self._settings = settings
        self.profile.reconfigure(settings)
        self._books.configured(settings)
        for job in self._jobs.values():
            job.length = limited(job.length, settings.draft_tokens, self._token_cost())

    def rule(self, verdict: Verdict | None) -> None:
        """Go by this verdict from now on; with None, speculation is to be measured."""
        self.profile.rule(verdict)

    # Before a tick is decided

    def offer(self, limits: PrefillLimits) -> None:
        """Offer the slot, once each, to the prompts that are down to their last chunk."""
        for sequence in self._roster.parked:
            if sequence.slot_offered or self._engine.remaining(sequence.key) > limits.chunk_tokens:
                continue
            sequence.slot_offered = True
            sharing, companions = len(self.state.keys) + 1, self._companions(sequence, limits)
            reason = self._declined(sequence, sharing, companions)
            if reason is None:
                reason = self._enter(sequence)
            if reason is not None:
                self._books.declined(sequence, reason)

    def prompt_tokens(self, chunk_tokens: int) -> int:
        """Prompt tokens that the next slice would run; 0 if it is a round, or there is none."""
        next_: Holder | RingEntry | None = self.state.holder or slot.peek(self.state)
        return 0 if next_ is None else min(self._engine.remaining(next_.key), chunk_tokens)

    # A slice

    def promote(self) -> bool:
        """See to it that somebody holds the slot. False: whose turn it was cannot, and the tick is to be decided again.

        That one is elsewhere by then. Whether the next one's slice may be run now is not what was decided.
        """
        if self.state.holder is not None:
            return True
        entry, self.state = slot.next_entry(self.state)
        if entry is None:
            return False
        sequence = self._jobs[entry.key].sequence
        reason = self._cannot_resume(sequence) if entry.started else self._cannot_begin(sequence)
        if reason is not None:
            self._to_classic(sequence, reason)
            return False
        self.state = slot.grant(self.state, entry, self._settings.grant_rounds)
        self._granted(sequence)
        return True

    def run_prompt(self, chunk_tokens: int) -> StepResult:
        """The holder's last chunk, with which its first token comes; a chunk, if chunks have become smaller."""
        return self._engine.slice_zero(self._holder.key, chunk_tokens)

    def run_round(self) -> RoundResult:
        """One round of the holder: no more is drafted than its answer may still have."""
        job = self._jobs[self._holder.key]
        sequence = job.sequence
        left = sequence.task.max_tokens - len(sequence.emitted)
        probe = self.profile.wants_probe(sequence.key)
        started = time.perf_counter()
        result = self._engine.speculate(sequence.key, 0 if probe else min(job.length.length, left - 1))
        ms = (time.perf_counter() - started) * 1000
        if result.fault is None:
            if not result.rerun:
                self.profile.ran(sequence.key, ms, result.accepted, result.proposed)
                self._pace.speculated(result.proposed, ms)
            job.length = next_length(
                job.length,
                proposed=result.proposed,
                accepted=result.accepted,
                token_cost=self._token_cost(),
            )
            self._books.ran(sequence, result, job.length.length)
        return result

    def kept(self, sequence: RunningSequence, proposed: int, accepted: int) -> None:
        """Of the ``proposed`` drafted tokens of its round, ``accepted`` became part of its answer."""
        self._books.kept(sequence, proposed, accepted)

    def end_slice(self) -> None:
        """The holder has run a slice and goes on: in the slot, at the ring's tail, or in the batch."""
        sequence = self.holder
        if self._roster.is_parked(sequence):
            return
        end, self.state = slot.sliced(self.state)
        if end is SliceEnd.PARKED:
            self._engine.return_drafter(sequence.key)
            self._books.parked(sequence)
            return
        reason = self._cannot_go_on(sequence)
        if reason is not None:
            self.state = slot.leave(self.state, sequence.key)
            self._to_classic(sequence, reason)

    # Leaving

    def leave(self, sequence: RunningSequence) -> None:
        """It has ended, or is taken out: whoever is not here is not missed."""
        if sequence.key not in self._jobs:
            return
        self.state = slot.leave(self.state, sequence.key)
        self._engine.return_drafter(sequence.key)
        self._forget(sequence)

    # What others see

    def stage_of(self, sequence: RunningSequence) -> Stage:
        """How far a sequence has come, at the slot or elsewhere."""
        if not self._roster.is_at_slot(sequence):
            return Stage.PREFILLING if self._roster.is_parked(sequence) else Stage.DECODING
        if self._holds(sequence):
            return Stage.SPECULATING
        return Stage.WAITING if self._roster.is_parked(sequence) else Stage.PARKED

    def occupation_of(self, sequence: RunningSequence) -> Occupation:
        """What a sequence does with its cache, between two ticks."""
        match self.stage_of(sequence):
            case Stage.DECODING:
                return Occupation.DECODING
            case Stage.SPECULATING:
                return Occupation.SLOT_BETWEEN_ROUNDS
            case Stage.PARKED:
                return Occupation.PARKED_JOB
            case _:
                return Occupation.PARKED_PREFILL

    def account(self) -> None:
        """Tell the metrics how things stand. Once a tick."""
        self._books.stand(self.state, self.profile, self._engine.drafter.reloads)

    def snapshot(self) -> SlotSnapshot | None:
        """The slot as it is now; None if the model is to have no drafter."""
        sequences = {key: job.sequence for key, job in self._jobs.items()}
        return self._books.snapshot(
            self.state,
            sequences,
            self._settings,
            self.profile,
            drafter=self._engine.drafter,
            prompt_next=self.prompt_tokens(1) > 0,
        )

    # Why not

    def _declined(self, sequence: RunningSequence, sharing: int, companions: int = 0) -> DeclineReason | None:
        """Why a sequence whose last chunk is to be run should not speculate, with ``sharing`` at the slot then.

        ``companions``: rows that the batch is about to get, besides those that it has.
        """
        unwanted = self._unwanted()
        if unwanted is not None:
            return unwanted
        if not sequence.task.speculation:
            return DeclineReason.FORBIDDEN_BY_ENTITLEMENT
        if sequence.suspicion:
            return DeclineReason.SUSPECTED
        if not self._engine.drafter.available:
            return DeclineReason.DRAFTER_UNAVAILABLE
        if self._engine.cannot_speculate(sequence.key) is not None:
            return DeclineReason.CACHES_CANNOT_BE_CUT
        return self._weighed(sharing, companions)

    def _companions(self, sequence: RunningSequence, limits: PrefillLimits) -> int:
        """Prompts that end in the same tick as this one (``scheduling.quiet``) if it does not take the slot.

        Once it streams, they are run in small chunks beside it.
        """
        quiet = limits.tokens(producing=False)
        if quiet == limits.chunk_tokens or self._roster.decoding_rows or self.state.pending:
            return 0
        within = limits.chunk_tokens + quiet
        others = (other for other in self._roster.parked if other is not sequence)
        return sum(self._engine.remaining(other.key) <= within for other in others)

    def _unwanted(self) -> DeclineReason | None:
        """Why, by the settings, there is no drafter to be had; None: there should be one."""
        if self._settings.drafter is DrafterKind.NONE:
            return DeclineReason.NO_DRAFTER
        return DeclineReason.FORCED_OFF if self._settings.mode is SpeculationMode.OFF else None

    def _weighed(self, sharing: int, companions: int = 0) -> DeclineReason | None:
        cost = self._pace.batch_cost
        return self.profile.declined(
            decoding_rows=self._roster.decoding_rows + companions,
            sharing=sharing,
            batch_cost=UNMEASURED_BATCH_COST if cost is None else cost,
        )

    def _cannot_begin(self, sequence: RunningSequence) -> DeclineReason | None:
        return self._declined(sequence, sharing=len(self.state.ring) + 1)

    def _cannot_resume(self, sequence: RunningSequence) -> DeclineReason | None:
        """A parked job is not asked again whether it pays."""
        if not self._engine.take_drafter(sequence.key):
            return self._unwanted() or DeclineReason.DRAFTER_UNAVAILABLE
        return None

    def _cannot_go_on(self, sequence: RunningSequence) -> DeclineReason | None:
        """Why the holder is better off in the batch from here on. A verdict is not looked at, the load is."""
        if self._engine.drafter.holder != sequence.key and not self._engine.take_drafter(sequence.key):
            return self._unwanted() or DeclineReason.DRAFTER_UNAVAILABLE
        if self._engine.cannot_speculate(sequence.key) is not None:
            return DeclineReason.CACHES_CANNOT_BE_CUT
        reason = self._weighed(len(self.state.keys))
        return reason if reason is DeclineReason.BATCH_IS_BETTER else None

    # Bookkeeping

    @property
    def _holder(self) -> Holder:
        if self.state.holder is None:
            raise RuntimeError("nobody holds the slot: promote first")
        return self.state.holder

    def _holds(self, sequence: RunningSequence) -> bool:
        return self.state.holder is not None and self.state.holder.key == sequence.key

    def _enter(self, sequence: RunningSequence) -> DeclineReason | None:
        offered, self.state = slot.offer(
            self.state, sequence.key, sequence.task.lane_rank, self._settings.grant_rounds
        )
        if offered is Offer.CLASSIC:
            return DeclineReason.BACKLOG_FULL
        self._roster.to_slot(sequence)
        self._jobs[sequence.key] = _Job(
            sequence, first_length(self._settings.draft_tokens, self._token_cost())
        )
        if offered is Offer.TAKES_SLOT:
            self._granted(sequence)
        else:
            self._books.waits(sequence)
        return None

    def _granted(self, sequence: RunningSequence) -> None:
        rotated = self._held_last != sequence.key and self._held_last in self._jobs
        self._held_last = sequence.key
        self._books.granted(sequence, rotated=rotated)

    def _to_classic(self, sequence: RunningSequence, reason: DeclineReason) -> None:
        self._books.left(sequence, reason)
        self._forget(sequence)
        self._roster.to_classic(sequence)

    def _forget(self, sequence: RunningSequence) -> None:
        del self._jobs[sequence.key]
        self.profile.left(sequence.key)

    def _token_cost(self) -> float:
        cost = self._pace.token_cost
        return DEFAULT_TOKEN_COST if cost is None else cost
