"""The tick thread: one model action a turn, decided by ``inference.scheduling``, published before the next."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import redis
import structlog

from inference.dispatch import claims
from inference.dispatch.claims import Claim
from inference.messages import CancelReason, End, LogEntry
from inference.models import RunOutcome
from inference.scheduler_settings import SchedulerSettings
from inference.scheduling.claiming import Candidate
from inference.scheduling.faults import BackendHealth, Work, backend_suspected, is_cause, suspicion_after
from inference.scheduling.preemption import Requester
from inference.scheduling.prefill import PrefillLedger
from inference.scheduling.quiet import PromptPlan, plan_prompts
from inference.scheduling.tick import Action, TickDecision, TickState, decide_tick, is_producing
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvMemory
from inference.worker.metrics import Fault, Stage, WorkerMetrics
from inference.worker.outbox import Outbox
from inference.worker.pace import Pace
from inference.worker.progress import Progress
from inference.worker.requests import (
    Admit,
    Cancel,
    Drain,
    Drop,
    PlanRoom,
    Publish,
    Reconfigure,
    Request,
    RoomPlan,
    Rule,
    UseDrafter,
)
from inference.worker.room_making import room_for, still_needed, victims_of
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence, failed_end, too_large
from inference.worker.slot import SpeculativeSlot
from inference.worker.speculation_profile import SpeculationProfile
from inference.worker.terms import Terms
from inference.worker.tick_account import TickAccount
from inference.worker.timeline import RunTimeline

if TYPE_CHECKING:
    from inference.engine.engine import Engine, StepResult

_log = structlog.get_logger(__name__)

#: Longest rest of an idle loop before it says that it is well.
_REST_S: Final = 0.5
#: Owners that fell silent with a generation before it is taken for the cause.
_MOST_LAPSES: Final = 5


class LoopEnd(StrEnum):
    """Why the loop returned."""

    DRAINED = "drained"
    BACKEND_FAILED = "backend_failed"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A decision and what it was made of, the padded prompt tokens it runs, and what a prefill would run of whom."""

    state: TickState
    decision: TickDecision
    prompt_tokens: int
    prompts: PromptPlan
    chosen: Sequence[RunningSequence]


class TickLoop:
    """Runs every admitted generation, tick by tick. All methods but ``ask`` belong to the engine's thread.

    It waits for Valkey once a tick, to publish, and for nothing else.
    """

    def __init__(
        self,
        engine: Engine,
        client: redis.Redis,
        holdings: Holdings,
        outbox: Outbox,
        metrics: WorkerMetrics,
        progress: Progress,
        memory: KvMemory,
        settings: SchedulerSettings,
        profile: SpeculationProfile,
    ) -> None:
        self._engine = engine
        self._client = client
        self._holdings = holdings
        self._outbox = outbox
        self._metrics = metrics
        self._progress = progress
        self._memory = memory
        self.roster: Final = Roster(engine)
        self._pace = pace = Pace()
        self._slot = SpeculativeSlot(engine, self.roster, metrics, pace, profile, settings.speculation)
        self._terms = Terms(settings, pace)
        self._account = TickAccount(
            engine, self.roster, self._slot, holdings, memory, metrics, pace, self._terms
        )
        self.board: Final = self._account.board
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._admissions = 0
        self._last = TickDecision(Action.IDLE, 0, speculative_yielded=False, slice_prompt_last=False)
        self._ledger = PrefillLedger()
        self._health = BackendHealth()
        self._deadline: float | None = None

    @property
    def batch_cost(self) -> float | None:
        """What one more row adds to a decode tick, as a share of a tick of one row, as measured."""
        return self._pace.batch_cost

    def ask(self, request: Request) -> None:
        """Have it carried out before the next tick. For any thread."""
        self._requests.put(request)

    def run(self) -> LoopEnd:
        """Tick until drained, or until the backend has failed too often."""
        while not self._health.given_up:
            if self._drained():
                return LoopEnd.DRAINED
            if self.turn() is Action.IDLE:
                self._rest()
        _log.error("backend_given_up", prompts=self._health.prompts, tokens=self._health.tokens)
        return LoopEnd.BACKEND_FAILED

    def turn(self) -> Action:
        """Carry out requests, then one tick: decide, act, publish."""
        while not self._requests.empty():
            self._carry_out(self._requests.get_nowait())
        plan = self._decide()
        while plan.decision.action is Action.SPECULATE and not self._slot.promote():
            plan = self._decide()
        self._last = decision = self._terms.charged(plan.state, plan.decision)
        self._owe(plan, decision)
        self.board.begin(decision, self._terms.limits)
        rows, started = self.roster.decoding_rows, time.monotonic()
        match decision.action:
            case Action.PREFILL:
                self._ledger = plan.prompts.ledger
                self._prefill(plan.chosen, plan.prompts, started)
            case Action.DECODE:
                self._decode(self.roster.decoding, started)
            case Action.SPECULATE:
                self._speculate(started)
        self._account.enter(decision, rows, plan.prompt_tokens, time.monotonic() - started)
        if self._outbox or decision.action is not Action.IDLE:
            self._publish()
        self._progress.mark()
        return decision.action

    def hand_back(self) -> None:
        """Give everything back to the queue, first in line: another worker goes on where the logs end."""
        while not self._requests.empty():
            request = self._requests.get_nowait()
            if isinstance(request, Admit):
                self._requeue(request.claim.task.generation, request.claim.epoch, begun=False)
                timeline = RunTimeline(request.claim, request.claimed_at)
                self._outbox.report(timeline.left(RunOutcome.REQUEUED))
            elif isinstance(request, PlanRoom):
                request.answer.set_result(None)
        for sequence in self.roster:
            self._leave(sequence, RunOutcome.REQUEUED)
            self._requeue(sequence.key, sequence.epoch, cached=sequence.cached_tokens)

    def _drained(self) -> bool:
        if self._deadline is None or self._outbox:
            return False
        return not self.roster or time.monotonic() > self._deadline

    def _decide(self) -> _Plan:
        self.roster.look_up_prefixes()
        limits, settings = self._terms.limits, self._terms.settings
        self._slot.offer(limits)
        waiting, parked = self.roster.parked, self.roster.parked_prompts(settings.speculation.drafts)
        rows, slice_pending = self.roster.decoding_rows, self._slot.state.pending
        in_slice = self._slot.prompt_tokens(limits.chunk_tokens)
        prompts = plan_prompts(
            parked,
            self._ledger,
            limits,
            producing=is_producing(rows, slice_pending, in_slice),
            last=self._last.action,
            cap=settings.lane_floor,
        )
        state = TickState(
            decoding=rows,
            prefills=len(parked),
            next_prefill_tokens=prompts.padded,
            speculative_pending=slice_pending,
            speculative_prompt_tokens=in_slice,
            limits=limits,
            prefill_debt=self._terms.open_debt(self._last),
            speculative_yielded=self._last.speculative_yielded,
            slice_prompt_last=self._last.slice_prompt_last,
            prefill_gave_way=self._last.prefill_gave_way,
        )
        decision = decide_tick(state)
        prompt_tokens = {Action.PREFILL: prompts.padded, Action.SPECULATE: in_slice}.get(decision.action, 0)
        return _Plan(state, decision, prompt_tokens, prompts, [waiting[index] for index in prompts.indices])

    def _owe(self, plan: _Plan, decision: TickDecision) -> None:
        owed = decision.prefill_debt - plan.state.prefill_debt
        if owed > 0:
            debtor = plan.chosen[0] if decision.action is Action.PREFILL else self._slot.holder
            self._metrics.prefill(debtor.task.lane).debt.add(owed)

    # The model's actions

    def _prefill(self, sequences: Sequence[RunningSequence], prompts: PromptPlan, started: float) -> None:
        keys = [sequence.key for sequence in sequences]
        lane = self._metrics.prefill(sequences[0].task.lane)  # they are all of one
        lane.grants.add()
        lane.chunks.add(len(keys))
        lane.tokens.add(prompts.padded)
        lane.held.add(prompts.held)
        self._step(Work.PROMPTS, sequences, lambda: self._engine.prefill(keys, prompts.tokens), started)

    def _decode(self, sequences: Sequence[RunningSequence], started: float) -> None:
        more = not all(sequence.ends_with_next for sequence in sequences)
        self._step(Work.TOKENS, sequences, lambda: self._engine.decode(more=more), started)

    def _step(
        self,
        work: Work,
        sequences: Sequence[RunningSequence],
        act: Callable[[], StepResult],
        started: float,
    ) -> None:
        """One action for ``sequences``: each gets its token, its progress or its fault, and none another's."""
        prompts = [sequence for sequence in sequences if self.roster.is_parked(sequence)]
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 (whatever it is, no generation may end the others)
            self._step_failed(work, sequences, error)
            return
        if backend_suspected(len(sequences), len(result.faults)):
            self._step_failed(work, sequences, next(iter(result.faults.values())))
            return
        for key, fault in result.faults.items():
            self._fail(self.roster[key], Fault.SEQUENCE, fault)
        self._health = self._health.worked(work)
        now = time.monotonic()
        for sequence in prompts:
            if sequence.key not in result.faults:
                done, total = self.roster.progress(sequence)
                self._outbox.progress(sequence, done, total)
                if cached := self.roster.begin(sequence):
                    sequence.timeline.cache_hit(started, cached)
                sequence.timeline.chunk(started, now, done, total, beside=len(sequences) - 1)
        for key, token in result.tokens:
            self._take(self.roster.produced(key), [token], now)

    def _speculate(self, started: float) -> None:
        """One slice of whoever holds the slot."""
        sequence, chunk_tokens = self._slot.holder, self._terms.limits.chunk_tokens
        if self.roster.is_parked(sequence):
            self._step(Work.PROMPTS, [sequence], lambda: self._slot.run_prompt(chunk_tokens), started)
        else:
            self._round(sequence)
        if self.roster.find(sequence.key) is sequence:
            self._slot.end_slice()

    def _round(self, sequence: RunningSequence) -> None:
        try:
            result = self._slot.run_round()
        except Exception as error:  # noqa: BLE001 (whatever it is, no generation may end the others)
            self._step_failed(Work.TOKENS, [sequence], error)
            return
        if result.fault is not None:
            self._step_failed(Work.TOKENS, [sequence], result.fault)
            return
        self._health = self._health.worked(Work.TOKENS)
        self._take(sequence, result.tokens, time.monotonic(), result.proposed, result.accepted)

    def _step_failed(self, work: Work, sequences: Sequence[RunningSequence], fault: Exception) -> None:
        self._health = self._health.failed(work)
        self._metrics.faults(Fault.BACKEND).add()
        _log.error("step_failed", generations=[sequence.key for sequence in sequences], exc_info=fault)
        for sequence in sequences:
            self._recover(sequence, len(sequences), fault)

    def _take(
        self,
        sequence: RunningSequence,
        tokens: Sequence[int],
        now: float,
        proposed: int = 0,
        accepted: int = 0,
    ) -> None:
        """The tokens of one tick, some of which were drafted."""
        had, had_accepted = len(sequence.emitted), sequence.accepted
        try:
            entries = sequence.commit(tokens, proposed, accepted)
        except Exception as fault:  # noqa: BLE001 (whatever it is, it costs this generation only)
            self._fail(sequence, Fault.TEXT, fault)
            return
        taken = len(sequence.emitted) - had
        if proposed:
            self._slot.kept(sequence, proposed, sequence.accepted - had_accepted)
        lane = self._metrics.lane(sequence.task.lane)
        lane.generated_tokens.add(taken)
        since_last = sequence.timed(now, taken)
        if since_last is not None:
            for _ in range(taken):
                lane.inter_token.observe(since_last / taken)
        elif not sequence.resumed_from:
            lane.time_to_first_token.observe(max(0.0, time.time() - sequence.task.accepted_at))
        if isinstance(entries[-1], End):
            self._engine.learn_from(sequence.key, len(sequence.emitted))
            self._remove(sequence)
        self._outbox.send(sequence, entries)

    def _publish(self) -> None:
        outcome = self._outbox.publish()
        for key in outcome.refused:
            sequence = self.roster.find(key)
            if sequence is not None:
                self._lose(key, sequence.epoch)
        if outcome.cancelled:
            self.ask(Cancel(outcome.cancelled))

    # Requests

    def _rest(self) -> None:
        """Sleep until something is asked for."""
        try:
            self._carry_out(self._requests.get(timeout=_REST_S))
        except queue.Empty:
            return

    def _carry_out(self, request: Request) -> None:
        match request:
            case Admit(claim, fits, claimed_at, instead_of):
                self._admit(claim, fits, claimed_at, instead_of)
            case PlanRoom(candidates, answer):
                self._plan_room(candidates, answer)
            case Drop(epochs):
                for key, epoch in epochs.items():
                    self._lose(key, epoch)
            case Cancel(reasons):
                self._cancel(reasons)
            case Reconfigure(settings):
                self._terms.reconfigure(settings)
                self._slot.reconfigure(settings.speculation)
            case UseDrafter(factory):
                self._engine.set_drafter(factory)
            case Rule(verdict):
                self._slot.rule(verdict)
            case Publish(prefixes):
                self._engine.publish(prefixes)
            case Drain(grace_s):
                self._deadline = time.monotonic() + grace_s

    def _admit(self, claim: Claim, fits: bool, claimed_at: float, instead_of: Mapping[str, int]) -> None:
        task, key = claim.task, claim.task.generation
        earlier = self.roster.find(key)
        if earlier is not None:  # its lease had lapsed, and it was this worker that claimed it again
            self._leave(earlier, RunOutcome.LOST)
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
            if fits:
                entries = self._first_entries(sequence, claim)
            else:
                entries = sequence.fail(0, too_large(task.cost, self._memory.longest_anywhere()))
            if not (entries and isinstance(entries[-1], End)):
                if instead_of:
                    self._preempt(claim, instead_of)
                self.roster.admit(sequence)
                self.board.admitted()
        except Exception:  # noqa: BLE001 (whatever it is, it costs this generation only)
            self._metrics.faults(Fault.ADMISSION).add()
            _log.exception("generation_not_admitted", generation=key)
            self._outbox.end(task, failed_end(claim), RunTimeline(claim, claimed_at).left(RunOutcome.FAILED))
        else:
            self._outbox.send(sequence, entries)

    def _first_entries(self, sequence: RunningSequence, claim: Claim) -> list[LogEntry]:
        """What is to be logged before the model is asked for anything: mostly nothing, or an end."""
        if claim.lapses >= _MOST_LAPSES:
            _log.error("generation_given_up", generation=sequence.key, lapses=claim.lapses)
            return [failed_end(claim)]
        entries = sequence.replay()
        if claim.cancel is not None and not entries:
            self._metrics.cancellations(Stage.CLAIMED, claim.cancel, claim.task.lane).add()
            return sequence.cancel(claim.cancel, len(claim.task.prompt) if sequence.emitted else 0)
        return entries

    def _cancel(self, reasons: Mapping[str, CancelReason]) -> None:
        for key, reason in reasons.items():
            sequence = self.roster.find(key)
            if sequence is None:  # it has ended meanwhile, or is being claimed: the next answer tells again
                continue
            self._metrics.cancellations(self._slot.stage_of(sequence), reason, sequence.task.lane).add()
            prompt_tokens = self.roster.prompt_tokens_run(sequence)
            self._remove(sequence)
            self._outbox.send(sequence, sequence.cancel(reason, prompt_tokens))

    def _plan_room(self, candidates: Sequence[Candidate], answer: Future[RoomPlan | None]) -> None:
        """Say for which candidate first room can be made, and who would have to leave. Nobody does."""
        self._free_what_ended()
        victims = victims_of(self.roster, self._slot, self._holdings)
        found = room_for(candidates, self._memory.capacity(), victims)
        if found is None:
            answer.set_result(None)
            return
        candidate, preemption = found
        epochs = {key: self.roster[key].epoch for key in preemption.victims}
        answer.set_result(RoomPlan(candidate.head.generation, epochs))

    def _preempt(self, claim: Claim, instead_of: Mapping[str, int]) -> None:
        """Have those leave in whose room ``claim`` is about to run, as far as it still needs that."""
        self._free_what_ended()
        key = claim.task.generation
        preemption = still_needed(
            Requester(claim.task.lane_rank, self._holdings.bytes_of(key)),
            victims_of(self.roster, self._slot, self._holdings, among=instead_of),
            self._memory.capacity(leaving={key: claim.epoch}),
        )
        for victim in preemption.victims:
            sequence = self.roster[victim]
            self._metrics.preemptions(sequence.task.lane).add()
            self._leave(sequence, RunOutcome.PREEMPTED)
            self._requeue(victim, sequence.epoch, preempted=True, cached=sequence.cached_tokens)
        self._engine.evict(preemption.reclaim, spare={claim.task.tenant})

    def _free_what_ended(self) -> None:
        """What has ended in this turn, as by a cancel, gives its room back when its end is published."""
        if self._outbox:
            self._publish()

    # What ends a sequence without an end of its own

    def _fail(self, sequence: RunningSequence, kind: Fault, fault: Exception) -> None:
        self._metrics.faults(kind).add()
        _log.error("generation_failed", generation=sequence.key, fault=kind.value, exc_info=fault)
        prompt_tokens = self.roster.prompt_tokens_run(sequence)
        self._remove(sequence)
        self._outbox.send(sequence, sequence.fail(prompt_tokens))

    def _recover(self, sequence: RunningSequence, ran: int, fault: Exception) -> None:
        """A step of ``ran`` sequences failed, and nobody knows for whom: all go back to the queue, but not for ever."""
        suspicion = suspicion_after(sequence.suspicion, ran)
        if is_cause(suspicion):
            self._fail(sequence, Fault.SEQUENCE, fault)
            return
        self._leave(sequence, RunOutcome.REQUEUED, reason=Fault.BACKEND.value)
        added = suspicion - sequence.suspicion
        self._requeue(sequence.key, sequence.epoch, suspicion=added, cached=sequence.cached_tokens)

    def _leave(self, sequence: RunningSequence, outcome: RunOutcome, **details: str) -> None:
        """Take it out of the engine although it has not ended, and say how the run was over."""
        self._remove(sequence)
        self._outbox.report(sequence.timeline.left(outcome, **details))

    def _remove(self, sequence: RunningSequence) -> None:
        self._slot.leave(sequence)
        self.roster.leave(sequence)

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

    def _lose(self, key: str, epoch: int) -> None:
        """It is another worker's now: forget it, silently."""
        sequence = self.roster.find(key)
        if sequence is not None and sequence.epoch == epoch:
            self._leave(sequence, RunOutcome.LOST)
        self._holdings.release(key, epoch)
