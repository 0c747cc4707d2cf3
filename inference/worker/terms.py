"""By which terms prompts and streams share the ticks, and when what follows the operator's targets is reckoned anew."""

from __future__ import annotations

from dataclasses import replace

from inference.scheduler_settings import SchedulerSettings
from inference.scheduling.tick import (
    PrefillLimits,
    TickDecision,
    TickState,
    chunk_for,
    debt_in,
    decide_tick,
    interval_for,
    quiet_tokens_for,
)
from inference.worker.pace import Pace


class Terms:
    """``limits`` are the next tick's, by ``settings`` and what was measured. Belongs to the tick thread.

    An interval that follows a target is reckoned when debt is made, which is all that it is for, and at no other time:
    streams are owed what a prompt costs them by what is known when it is run, and for as many prompts as wait then. A
    chunk that changes while debt is open changes what the debt is told in, and not how many ticks it is.
    """

    def __init__(self, settings: SchedulerSettings, pace: Pace) -> None:
        self.settings = settings
        self._pace = pace
        chunk = self._chunk()
        self.limits = self._debt_limits = self._limits(chunk, self._interval(chunk, waiting=1))

    def reconfigure(self, settings: SchedulerSettings) -> None:
        """Go by these from the next tick on."""
        followed, self.settings = self.settings.itl_target, settings
        chunk, interval = self._chunk(), self.limits.interval
        if followed is None or settings.itl_target != followed:
            interval = self._interval(chunk, waiting=1)
        self.limits = self._limits(chunk, interval)

    def open_debt(self, last: TickDecision) -> int:
        """What was owed after the ``last`` decision that was ``charged``, by the limits that hold now."""
        return debt_in(last.prefill_debt, self._debt_limits, self.limits)

    def charged(self, state: TickState, decision: TickDecision) -> TickDecision:
        """The decision that was made of ``state``, by the interval that holds now if it makes debt."""
        if decision.prefill_debt > state.prefill_debt and self.settings.itl_target is not None:
            waiting = state.prefills + (state.speculative_prompt_tokens > 0)
            self.limits = replace(self.limits, interval=self._interval(self.limits.chunk_tokens, waiting))
            decision = decide_tick(replace(state, limits=self.limits))
        self._debt_limits = self.limits
        return decision

    def prompt_ran(self) -> None:
        """The pace has learned from a prompt tick: the chunk and the quiet tick follow it, the interval does not."""
        self.limits = self._limits(self._chunk(), self.limits.interval)

    def _limits(self, chunk: int, interval: int) -> PrefillLimits:
        quiet = quiet_tokens_for(chunk, self._pace.full_chunk_token_ms, self.settings.quiet_tick_ms)
        return PrefillLimits(chunk_tokens=chunk, interval=interval, quiet_tokens=quiet)

    def _chunk(self) -> int:
        if self.settings.longest_stall_ms is None:
            return self.settings.limits.chunk_tokens
        return chunk_for(self.settings.longest_stall_ms, self._pace.dear_prompt_token_ms)

    def _interval(self, chunk: int, waiting: int) -> int:
        if self.settings.itl_target is None:
            return self.settings.limits.interval
        token_ms = self._pace.prompt_token_ms
        chunk_ms = None if token_ms is None else token_ms * chunk
        return interval_for(self.settings.itl_target, self._pace.decode_ms, chunk_ms, waiting)
