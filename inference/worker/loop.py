"""The tick thread: one model action a turn, decided by ``inference.scheduling``, published before the next."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import redis
import structlog

from inference.scheduler_settings import SchedulerSettings
from inference.scheduling.prefill import PrefillLedger
from inference.scheduling.quiet import PromptPlan, plan_prompts
from inference.scheduling.tick import Action, TickDecision, TickState, decide_tick, is_producing
from inference.worker.arrivals import Arrivals
from inference.worker.departures import Departures
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvMemory
from inference.worker.metrics import WorkerMetrics
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
    Rule,
    UseDrafter,
)
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence
from inference.worker.slot import SpeculativeSlot
from inference.worker.speculation_profile import SpeculationProfile
from inference.worker.steps import Steps
from inference.worker.terms import Terms
from inference.worker.tick_account import TickAccount

if TYPE_CHECKING:
    from inference.engine.engine import Engine

_log = structlog.get_logger(__name__)

#: Longest rest of an idle loop before it says that it is well.
_REST_S: Final = 0.5


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

    It waits for Valkey once a tick, to publish, and once for each generation that it gives back; for nothing else.
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
        self._outbox = outbox
        self._metrics = metrics
        self._progress = progress
        self.roster: Final = Roster(engine)
        self._pace = pace = Pace()
        self._slot = SpeculativeSlot(engine, self.roster, metrics, pace, profile, settings.speculation)
        self._terms = Terms(settings, pace)
        self._account = TickAccount(
            engine, self.roster, self._slot, holdings, memory, metrics, pace, self._terms
        )
        self.board: Final = self._account.board
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._departures = Departures(
            client, self.roster, self._slot, holdings, outbox, metrics, self._requests.put
        )
        self._arrivals = Arrivals(
            engine,
            self.roster,
            self._slot,
            holdings,
            memory,
            outbox,
            metrics,
            self.board,
            self._departures,
        )
        self._steps = Steps(engine, self.roster, self._slot, outbox, metrics, self._departures)
        self._last = TickDecision(Action.IDLE, 0, speculative_yielded=False, slice_prompt_last=False)
        self._ledger = PrefillLedger()
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
        while not self._steps.health.given_up:
            if self._drained():
                return LoopEnd.DRAINED
            if self.turn() is Action.IDLE:
                self._rest()
        health = self._steps.health
        _log.error("backend_given_up", prompts=health.prompts, tokens=health.tokens)
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
        self._engine.set_rerun_tokens(self._terms.limits.chunk_tokens)
        rows, started, as_planned = self.roster.decoding_rows, time.monotonic(), True
        match decision.action:
            case Action.PREFILL:
                self._ledger = plan.prompts.ledger
                as_planned = self._steps.prefill(plan.chosen, plan.prompts, started)
            case Action.DECODE:
                as_planned = self._steps.decode(started)
            case Action.SPECULATE:
                as_planned = self._steps.speculate(self._terms.limits.chunk_tokens, started)
        seconds = time.monotonic() - started
        self._account.enter(decision, rows, plan.prompt_tokens, seconds, as_planned=as_planned)
        if self._outbox or decision.action is not Action.IDLE:
            self._departures.heed(self._outbox.publish())
        self._progress.mark()
        return decision.action

    def hand_back(self) -> None:
        """Give everything back to the queue, first in line: another worker goes on where the logs end."""
        while not self._requests.empty():
            request = self._requests.get_nowait()
            if isinstance(request, Admit):
                self._departures.turn_away(request.claim, request.claimed_at)
            elif isinstance(request, PlanRoom):
                request.answer.set_result(None)
        for sequence in self.roster:
            self._departures.hand_back(sequence)

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
                self._arrivals.admit(claim, fits, claimed_at, instead_of)
            case PlanRoom(candidates, answer):
                answer.set_result(self._arrivals.plan_room(candidates))
            case Drop(epochs):
                for key, epoch in epochs.items():
                    self._departures.lose(key, epoch)
            case Cancel(reasons):
                self._departures.cancel(reasons)
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
