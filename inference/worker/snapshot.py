"""What the tick thread has before it, for others to see: written a few times a second, read with each heartbeat."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec.structs import asdict

from inference.messages import DecodingRow, ParkedRow, SchedulerFigures, SchedulerSnapshot, SlotSnapshot
from inference.scheduling.tick import Action, PrefillLimits, TickDecision
from inference.worker.roster import Roster
from inference.worker.sequences import RunningSequence

#: Ticks that are remembered: what fits on a screen side by side.
_TICKS: Final = 120
#: Rows and parked prompts that are told each: a heartbeat stays small however many slots there are.
_ROWS: Final = 64
_LEAST_AGE_S: Final = 0.25


class SnapshotBoard:
    """Holds the tick thread's latest snapshot. Only that thread writes, and what it has written does not change."""

    def __init__(
        self,
        roster: Roster,
        figures: Callable[[], SchedulerFigures] = SchedulerFigures,
        slot: Callable[[], SlotSnapshot | None] = lambda: None,
    ) -> None:
        """``figures`` and ``slot`` are asked on the tick thread, with each snapshot and not with each tick."""
        #: For any thread. None before the first tick.
        self.latest: SchedulerSnapshot | None = None
        self._roster = roster
        self._figures = figures
        self._slot = slot
        self._recent: deque[tuple[str, float]] = deque(maxlen=_TICKS)
        self._shown_at = 0.0
        self._untold = False

    def show(self, decision: TickDecision, limits: PrefillLimits, seconds: float) -> None:
        """Note a tick that took ``seconds``. Draws a snapshot if the last one is old, or if there will be no next soon.

        Idle turns in a row are one: what the ticks before did stays to be seen.
        """
        idle = decision.action is Action.IDLE
        letter = decision.action.value[0]
        if not (idle and self._recent and self._recent[-1][0] == letter):
            self._recent.append((letter, 0.0 if idle else seconds * 1000))
        now = time.monotonic()
        if idle or now - self._shown_at >= _LEAST_AGE_S:
            self._shown_at = now
            self._show(decision.prefill_debt, limits)

    def admitted(self) -> None:
        """Somebody has come since the last snapshot."""
        self._untold = True

    def begin(self, decision: TickDecision, limits: PrefillLimits) -> None:
        """Before a tick, which may be long: draw a snapshot if the last one does not tell of all who are admitted."""
        if self._untold:
            self._show(decision.prefill_debt, limits)

    def _show(self, debt: int, limits: PrefillLimits) -> None:
        self._untold = False
        self.latest = self._draw(debt, limits)

    def _draw(self, debt: int, limits: PrefillLimits) -> SchedulerSnapshot:
        return SchedulerSnapshot(
            at=time.time(),
            decoding=self._roster.decoding_rows,
            prefills=self._roster.prefills,
            rows=[_decoding(sequence) for sequence in self._roster.decoding[:_ROWS]],
            parked=[self._parked(sequence) for sequence in self._roster.parked[:_ROWS]],
            debt=debt,
            chunk=limits.chunk_tokens,
            interval=limits.interval,
            recent="".join(letter for letter, _ in self._recent),
            recent_ms=[round(ms, 1) for _, ms in self._recent],
            slot=self._slot(),
            **asdict(self._figures()),
        )

    def _parked(self, sequence: RunningSequence) -> ParkedRow:
        done, total = self._roster.progress(sequence)
        return ParkedRow(
            generation=sequence.key,
            tenant=sequence.task.tenant,
            lane=sequence.task.lane,
            done=done,
            total=total,
            since=sequence.task.accepted_at,
        )


def _decoding(sequence: RunningSequence) -> DecodingRow:
    return DecodingRow(
        generation=sequence.key,
        tenant=sequence.task.tenant,
        lane=sequence.task.lane,
        tokens=len(sequence.emitted),
        max_tokens=sequence.task.max_tokens,
        since=sequence.first_token_at or sequence.task.accepted_at,
    )
