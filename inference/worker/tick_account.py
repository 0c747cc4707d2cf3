"""What each tick took and left: for the metrics, the board and the terms of the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inference.messages import SchedulerFigures
from inference.scheduling.tick import Action, TickDecision
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvMemory
from inference.worker.metrics import WorkerMetrics
from inference.worker.pace import Pace
from inference.worker.roster import Roster
from inference.worker.slot import SpeculativeSlot
from inference.worker.snapshot import SnapshotBoard
from inference.worker.terms import Terms

if TYPE_CHECKING:
    from inference.engine.engine import Engine


class TickAccount:
    """The tick thread's own books."""

    def __init__(
        self,
        engine: Engine,
        roster: Roster,
        slot: SpeculativeSlot,
        holdings: Holdings,
        memory: KvMemory,
        metrics: WorkerMetrics,
        pace: Pace,
        terms: Terms,
    ) -> None:
        self._engine = engine
        self._roster = roster
        self._slot = slot
        self._holdings = holdings
        self._memory = memory
        self._metrics = metrics
        self._pace = pace
        self._terms = terms
        self.board: Final = SnapshotBoard(roster, self._figures, slot.snapshot)

    def enter(
        self, decision: TickDecision, rows: int, prompt_tokens: int, seconds: float, *, as_planned: bool
    ) -> None:
        """Count a tick that took ``seconds``, and learn from it if it went ``as_planned``.

        ``rows`` decoded beside it, or in it; ``prompt_tokens``, padded, were run in it, as prefill or as a slice 0.
        """
        self._metrics.ticks[decision.action].add()
        self._metrics.tick_seconds[decision.action].add(seconds)
        self._metrics.prefill_debt.set(decision.prefill_debt)
        if not as_planned:
            self._pace.disturbed()
        elif decision.action is Action.DECODE:
            self._pace.decoded(rows, seconds)
        elif prompt_tokens:
            self._pace.prefilled(prompt_tokens, seconds, self._terms.limits.chunk_tokens)
            self._terms.prompt_ran()
        limits = self._terms.limits
        self._metrics.chunk_tokens.set(limits.chunk_tokens)
        self._metrics.quiet_tokens.set(limits.tokens(producing=False))
        self._metrics.interval.set(limits.interval)
        self._enter_memory()
        self._slot.account()
        self.board.show(decision, limits, seconds)

    def _enter_memory(self) -> None:
        reserved, requesters = self._holdings.reserved_since()
        self._memory.decoding = self._roster.decoding_rows
        self._engine.set_prefix_budget(self._memory.cache_budget(reserved), spare=requesters)
        self._memory.cached = self._engine.prefix_cache_bytes
        metrics, counted = self._metrics, self._engine.prefix_counters
        metrics.kv_reserved.set(reserved)
        metrics.kv_budget.set(self._memory.budget.total)
        metrics.prefix_cache.set(self._memory.cached)
        metrics.prefix_lookups.set(counted.lookups)
        metrics.prefix_hits.set(counted.hits)
        metrics.prefix_hit_tokens.set(counted.hit_tokens)
        metrics.prefix_evictions.set(counted.evictions)

    def _figures(self) -> SchedulerFigures:
        token_ms, budget = self._pace.prompt_token_ms, self._memory.budget
        return SchedulerFigures(
            decode_ms=self._pace.decode_ms,
            chunk_ms=None if token_ms is None else token_ms * self._terms.limits.chunk_tokens,
            kv_reserved=self._holdings.occupied()[1],
            kv_budget=budget.total,
            kv_watermark=budget.watermark,
            kv_cached=self._memory.cached,
            kv_cache_budget=budget.prefix_cache,
            lane_floor=self._terms.settings.lane_floor,
            preemption=self._terms.settings.preemption,
        )
