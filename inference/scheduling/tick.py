"""What one tick does: the rule that keeps prompts from stalling streams and streams from starving prompts.

Prompt work of ``t`` padded tokens next to a producing stream makes a *debt* of ``t × interval``. While
debt is open, no prompt runs next to producing streams; each decode tick pays ``chunk_tokens`` for every
waiting prompt. A full chunk thus costs exactly ``interval`` decode ticks, a short prompt hardly any, and
the first prompt after a quiet while runs at once.

Units are ticks and tokens, never seconds, so that a bound means the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

#: Decode ticks for a full chunk until a machine has measured its own: the knee on an M1 Ultra.
DEFAULT_INTERVAL = 16
DEFAULT_CHUNK_TOKENS = 512
LONGEST_INTERVAL = 4096
SMALLEST_CHUNK, LARGEST_CHUNK = 16, 4096
#: Most of a prompt tick while nothing streams, in chunks and in tokens. Beyond so many tokens reading the weights is a
#: small part of a forward pass, and a larger one would only let newcomers wait.
QUIET_CHUNKS, QUIET_TOKENS = 4, 256


class Action(StrEnum):
    """The one model action of a tick."""

    PREFILL = "prefill"
    DECODE = "decode"
    SPECULATE = "speculate"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """How much prompt work a tick may do, and what it costs.

    ``chunk_tokens``: most padded prompt tokens of one tick. ``interval``: decode ticks that a full chunk
    leaves to producing streams; 0 switches prefill next to streams off, so that streams starve prompts.
    ``quiet_tokens``: most padded prompt tokens of one tick while nothing produces; where it is smaller, a chunk.
    """

    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    interval: int = DEFAULT_INTERVAL
    quiet_tokens: int = 0

    def __post_init__(self) -> None:
        if self.chunk_tokens < 1:
            raise ValueError(f"chunk_tokens must be at least 1, not {self.chunk_tokens}")
        if self.interval < 0:
            raise ValueError(f"interval must not be negative, but is {self.interval}")
        if self.quiet_tokens < 0:
            raise ValueError(f"quiet_tokens must not be negative, but is {self.quiet_tokens}")

    def tokens(self, *, producing: bool) -> int:
        """Most padded prompt tokens of a prefill tick, beside producing streams or while nothing produces."""
        return self.chunk_tokens if producing else max(self.chunk_tokens, self.quiet_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TickState:
    """All that a tick is decided from. The defaults are an idle scheduler's.

    ``decoding``: rows in the decode batch. ``prefills``: admitted sequences whose prompt is not finished, the
    slot's holder and its waiters not counted. ``next_prefill_tokens``: padded tokens that the next
    prefill tick would run, 0 without prefills. ``speculative_pending``: the slot is taken or its backlog is not
    empty. ``speculative_prompt_tokens``: padded prompt tokens of the next slice if it is a slice 0, 0 if it
    is a round. The last four fields are the previous decision's. ``prefill_gave_way``: a prompt that could have run
    gave way to a slice 0 that did not run either; neither has run since.
    """

    decoding: int = 0
    prefills: int = 0
    next_prefill_tokens: int = 0
    speculative_pending: bool = False
    speculative_prompt_tokens: int = 0
    limits: PrefillLimits = PrefillLimits()
    prefill_debt: int = 0
    speculative_yielded: bool = False
    slice_prompt_last: bool = False
    prefill_gave_way: bool = False

    def __post_init__(self) -> None:
        if self.decoding < 0 or self.prefills < 0 or self.prefill_debt < 0:
            raise ValueError(f"decoding, prefills and prefill_debt must not be negative: {self}")
        most = self.limits.tokens(producing=self.producing)
        if not (self.prefills > 0) <= self.next_prefill_tokens <= most * (self.prefills > 0):
            raise ValueError(
                f"next_prefill_tokens must be 1 … chunk_tokens (quiet_tokens while nothing produces), and 0 without "
                f"prefills: {self}"
            )
        if not 0 <= self.speculative_prompt_tokens <= self.limits.chunk_tokens * self.speculative_pending:
            raise ValueError(
                f"speculative_prompt_tokens must be 0 … chunk_tokens, and 0 without a slice: {self}"
            )

    @property
    def producing(self) -> bool:
        """Whether somebody streams: rows decode, or the pending slice is a round."""
        return is_producing(self.decoding, self.speculative_pending, self.speculative_prompt_tokens)


@dataclass(frozen=True, slots=True)
class TickDecision:
    """The action, and the counters to give the next tick: never one without the other."""

    action: Action
    prefill_debt: int
    speculative_yielded: bool
    slice_prompt_last: bool
    prefill_gave_way: bool = False


def decide_tick(state: TickState) -> TickDecision:
    """Choose the tick's action. Exactly one, whatever contends; IDLE only when nothing is to be done.

    While K prompts wait and ``interval`` exceeds 0, whatever comes and goes beside them, a PREFILL comes in any
    ``4 × (⌈interval / K⌉ + 1)`` ticks: twice the ``⌈interval / K⌉ + 1`` without a slot job, because slices take turns
    with all else, and twice that, because slices 0 take turns with prompts. A prompt gives way to a slice 0 once: if
    that does not run at once, because a slice ran last, the prompt does not give way again before one of them has run.
    Without this memory, waiters that leave before their slice 0 would hold prompts up for ever.
    """
    limits, prompt_slice, producing = state.limits, state.speculative_prompt_tokens > 0, state.producing
    round_pending = state.speculative_pending and not prompt_slice
    clear = limits.interval > 0 and state.prefill_debt == 0
    both_wait = state.prefills > 0 and prompt_slice
    gives_way = both_wait and clear and producing and not state.slice_prompt_last

    prefill_ready = state.prefills > 0 and (
        not producing or (clear and (state.prefill_gave_way or not gives_way))
    )
    slice_ready = state.speculative_pending and (
        round_pending
        or state.decoding == 0
        or limits.interval == 0
        or (clear and not (both_wait and state.slice_prompt_last))
    )
    if slice_ready and not (state.speculative_yielded and (prefill_ready or state.decoding > 0)):
        action = Action.SPECULATE
    elif prefill_ready:
        action = Action.PREFILL
    elif state.decoding > 0:
        action = Action.DECODE
    else:
        action = Action.IDLE

    yielded, prompt_last = state.speculative_yielded, state.slice_prompt_last
    if action is not Action.IDLE:
        yielded = action is Action.SPECULATE
    if action is Action.PREFILL:
        prompt_last = False
    elif action is Action.SPECULATE and prompt_slice:
        prompt_last = True
    ran_prompt = action is Action.PREFILL or (action is Action.SPECULATE and prompt_slice)
    gave_way = state.prefills > 0 and not ran_prompt and (gives_way or state.prefill_gave_way)
    return TickDecision(action, _debt_after(state, action, producing), yielded, prompt_last, gave_way)


def _debt_after(state: TickState, action: Action, producing: bool) -> int:
    prompt_slice = state.speculative_prompt_tokens > 0
    if not producing or action is Action.IDLE:
        return 0
    if action is Action.PREFILL:
        return state.prefill_debt + state.next_prefill_tokens * state.limits.interval
    if action is Action.SPECULATE and prompt_slice:
        return state.prefill_debt + state.speculative_prompt_tokens * state.limits.interval
    if action is Action.SPECULATE and state.decoding > 0:
        return state.prefill_debt
    waiting = state.prefills + prompt_slice
    return max(0, state.prefill_debt - state.limits.chunk_tokens * max(1, waiting))


def debt_in(debt: int, before: PrefillLimits, after: PrefillLimits) -> int:
    """A debt that was made by the limits ``before``, for limits that changed while it was open.

    It is paid a chunk at a time, so it is told in chunks of the new size: what was ``n`` decode ticks stays ``n``. But
    no prompt waits for more than a full chunk costs by the limits ``after``, so that a shorter interval helps at once.
    """
    carried = -(-debt * after.chunk_tokens // before.chunk_tokens)
    return min(carried, after.chunk_tokens * after.interval) if after.interval else carried


def is_producing(decoding: int, speculative_pending: bool, speculative_prompt_tokens: int) -> bool:
    """Whether somebody streams, by these fields of a ``TickState``."""
    return decoding > 0 or (speculative_pending and not speculative_prompt_tokens)


def interval_for(target: float, decode_ms: float | None, chunk_ms: float | None, prefills: int) -> int:
    """The interval at which admitting ``prefills`` prompts at once slows streams ``target``-fold at most.

    ``decode_ms`` and ``chunk_ms`` are running medians of one decode tick and one full chunk; None while not
    measured, which gives ``DEFAULT_INTERVAL``. Raises ``ValueError`` unless ``target`` exceeds 1.
    """
    if not target > 1:
        raise ValueError(
            f"the target must exceed 1, because streams cannot be slowed {target}-fold by prompts"
        )
    if not decode_ms or not chunk_ms:
        return DEFAULT_INTERVAL
    ticks = prefills * (chunk_ms / decode_ms) / (target - 1)
    return math.ceil(min(max(ticks, 1), LONGEST_INTERVAL))


def chunk_for(stall_ms: float, ms_per_prompt_token: float | None) -> int:
    """The largest chunk, a power of two in 16 … 4096, that stalls streams ``stall_ms`` at most.

    Late chunks of a long prompt cost more than early ones: measure ``ms_per_prompt_token`` on those. None,
    while not measured, gives ``DEFAULT_CHUNK_TOKENS``. Where not even the smallest chunk fits, it is the
    answer. Raises ``ValueError`` unless ``stall_ms`` is positive.
    """
    if not stall_ms > 0:
        raise ValueError(f"the longest stall must be positive, not {stall_ms} ms")
    if not ms_per_prompt_token:
        return DEFAULT_CHUNK_TOKENS
    chunk = SMALLEST_CHUNK
    while chunk < LARGEST_CHUNK and chunk * 2 * ms_per_prompt_token <= stall_ms:
        chunk *= 2
    return chunk


def quiet_tokens_for(chunk_tokens: int, ms_per_prompt_token: float | None, quiet_tick_ms: float) -> int:
    """Most tokens of a prompt tick while nothing streams: a chunk, doubled as often as the bounds allow.

    They are ``QUIET_CHUNKS`` chunks, ``QUIET_TOKENS`` tokens, and ``quiet_tick_ms``: a newcomer, or a cancel, waits for
    such a tick before it is seen. ``ms_per_prompt_token``: what the last tick of a chunk or more took; None, while that
    is not measured, gives the chunk.
    """
    if ms_per_prompt_token is None:
        return chunk_tokens
    most, tokens = min(QUIET_CHUNKS * chunk_tokens, QUIET_TOKENS), chunk_tokens
    while tokens * 2 <= most and tokens * 2 * ms_per_prompt_token <= quiet_tick_ms:
        tokens *= 2
    return tokens
