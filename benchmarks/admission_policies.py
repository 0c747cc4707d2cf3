"""Which policy a run of the admission bench is for, and whether the worker's counters confirm that it ran. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.counters import Counters
from inference.scheduling.tick import interval_for

#: Of a prompt's tokens, the share that must have been counted: how long the template makes it is not exactly known.
_PROMPT_SHARE = 0.9
#: How far the interval that a worker tells may be from that of the run's mean costs: it goes by running medians.
_TARGET_FACTOR = 2


@dataclass(frozen=True)
class Policy:
    """One arm: a fixed ``interval`` (0 runs no prompt beside streams), or a ``target`` that the worker follows."""

    chunk: int
    interval: int | None = None
    target: float | None = None

    @property
    def name(self) -> str:
        return f"target {self.target:g}" if self.interval is None else str(self.interval)

    def contradiction(self, ran: Counters, prompt_tokens: int) -> str | None:
        """What of ``ran``, counted while the prompt waited and streams ran, this policy cannot have done."""
        if self.interval == 0:
            if ran.prefill_ticks:
                return f"{ran.prefill_ticks:.0f} prompt ticks ran beside streams, and interval 0 allows none"
            return None
        if ran.prefill_tokens < _PROMPT_SHARE * prompt_tokens:
            return f"the worker counted {ran.prefill_tokens:.0f} prompt tokens of {prompt_tokens}"
        if self.interval is None:
            return self._target_contradiction(ran)
        least = self.interval * (-(-prompt_tokens // self.chunk) - 1)
        if ran.decode_ticks < least:
            return f"interval {self.interval} asks for {least} decode ticks, and {ran.decode_ticks:.0f} ran"
        return None

    def _target_contradiction(self, ran: Counters) -> str | None:
        if self.target is None or not ran.decode_ticks or not ran.prefill_ticks:
            return "no decode ticks ran beside prompt ticks"
        decode_ms = 1000 * ran.decode_seconds / ran.decode_ticks
        chunk_ms = 1000 * ran.prefill_seconds / ran.prefill_ticks
        needed = interval_for(self.target, decode_ms, chunk_ms, 1)
        if not needed / _TARGET_FACTOR <= ran.interval <= needed * _TARGET_FACTOR:
            return (
                f"at {decode_ms:.0f} ms a decode tick and {chunk_ms:.0f} ms a chunk, a target of {self.target:g} "
                f"needs an interval of {needed}, and the worker went by {ran.interval:.0f}"
            )
        return None
