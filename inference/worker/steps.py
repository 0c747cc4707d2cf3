"""The model's actions: what a tick runs, for whom, and who gets what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inference.messages import End
from inference.scheduling.faults import BackendHealth, Work, backend_suspected
from inference.scheduling.quiet import PromptPlan
from inference.worker.departures import Departures
from inference.worker.metrics import Fault, WorkerMetrics
from inference.worker.outbox import Outbox
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence
from inference.worker.slot import SpeculativeSlot

if TYPE_CHECKING:
    from inference.engine.engine import Engine, StepResult


class Steps:
    """Runs the model's actions, and gives each sequence its tokens or its fault. Belongs to the tick thread.

    What there is to say of an action is in the outbox when it returns. ``started`` is when it began, in monotonic
    seconds. Each tells whether it went as planned: nothing failed, and nothing was run again. How long another took
    says nothing of its work.
    """

    def __init__(
        self,
        engine: Engine,
        roster: Roster,
        slot: SpeculativeSlot,
        outbox: Outbox,
        metrics: WorkerMetrics,
        departures: Departures,
    ) -> None:
        self._engine = engine
        self._roster = roster
        self._slot = slot
        self._outbox = outbox
        self._metrics = metrics
        self._departures = departures
        self._health = BackendHealth()

    @property
    def health(self) -> BackendHealth:
        """What the steps so far say of the backend."""
        return self._health

    def prefill(self, sequences: Sequence[RunningSequence], prompts: PromptPlan, started: float) -> bool:
        """Run of the prompts of ``sequences`` what was planned."""
        keys = [sequence.key for sequence in sequences]
        lane = self._metrics.prefill(sequences[0].task.lane)  # they are all of one
        lane.grants.add()
        lane.chunks.add(len(keys))
        lane.tokens.add(prompts.padded)
        lane.held.add(prompts.held)
        return self._step(
            Work.PROMPTS, sequences, lambda: self._engine.prefill(keys, prompts.tokens), started
        )

    def decode(self, started: float) -> bool:
        """One token for every row that decodes."""
        sequences = self._roster.decoding
        more = not all(sequence.ends_with_next for sequence in sequences)
        return self._step(Work.TOKENS, sequences, lambda: self._engine.decode(more=more), started)

    def speculate(self, chunk_tokens: int, started: float) -> bool:
        """One slice of whoever holds the slot: a round, or at most ``chunk_tokens`` of its prompt."""
        sequence = self._slot.holder
        if self._roster.is_parked(sequence):
            as_planned = self._step(
                Work.PROMPTS, [sequence], lambda: self._slot.run_prompt(chunk_tokens), started
            )
        else:
            as_planned = self._round(sequence)
        if self._roster.find(sequence.key) is sequence:
            self._slot.end_slice()
        return as_planned

    def _step(
        self,
        work: Work,
        sequences: Sequence[RunningSequence],
        act: Callable[[], StepResult],
        started: float,
    ) -> bool:
        """One action for ``sequences``: each gets its token, its progress or its fault, and none another's."""
        prompts = [sequence for sequence in sequences if self._roster.is_parked(sequence)]
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 (whatever it is, no generation may end the others)
            self._step_failed(work, sequences, error)
            return False
        if backend_suspected(len(sequences), len(result.faults)):
            self._step_failed(work, sequences, next(iter(result.faults.values())))
            return False
        for key, fault in result.faults.items():
            self._departures.fail(self._roster[key], Fault.SEQUENCE, fault)
        self._health = self._health.worked(work, len(result.tokens))
        now = time.monotonic()
        for sequence in prompts:
            if sequence.key not in result.faults:
                done, total = self._roster.progress(sequence)
                self._outbox.progress(sequence, done, total)
                if cached := self._roster.begin(sequence):
                    sequence.timeline.cache_hit(started, cached)
                sequence.timeline.chunk(started, now, done, total, beside=len(sequences) - 1)
        for key, token in result.tokens:
            self._take(self._roster.produced(key), [token], now)
        return not (result.faults or result.rerun)

    def _round(self, sequence: RunningSequence) -> bool:
        try:
            result = self._slot.run_round()
        except Exception as error:  # noqa: BLE001 (whatever it is, no generation may end the others)
            self._step_failed(Work.TOKENS, [sequence], error)
            return False
        if result.fault is not None:
            self._step_failed(Work.TOKENS, [sequence], result.fault)
            return False
        self._health = self._health.worked(Work.TOKENS, len(result.tokens))
        self._take(sequence, result.tokens, time.monotonic(), result.proposed, result.accepted)
        return not result.rerun

    def _step_failed(self, work: Work, sequences: Sequence[RunningSequence], fault: Exception) -> None:
        self._health = self._health.failed(work)
        self._departures.step_failed(sequences, fault)

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
            self._departures.fail(sequence, Fault.TEXT, fault)
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
            self._departures.remove(sequence)
        self._outbox.send(sequence, entries)
