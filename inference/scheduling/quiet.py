"""Prompt work while nothing streams: ticks of more than a chunk, and prompts that wait together end together.

A chunk is small for the sake of streams. In a *quiet* time, in which nothing produces, a small one only costs: every
forward pass reads all weights, however few tokens it runs. And the first prompt that becomes a stream ends the quiet:
all others are run beside it then, with a decode tick after each small chunk. So a quiet tick may run more, and a
prompt that is down to its *tail* is held back for one round of turns at most, while the others come down to theirs:
they end in one tick, and decode together from their first token on.

Units are ticks and tokens, as in ``tick``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inference.scheduling.lanes import pick_lane
from inference.scheduling.prefill import (
    Hold,
    ParkedPrompt,
    PrefillLedger,
    in_turn,
    packed,
    padded_tokens,
    pick_prefill,
)
from inference.scheduling.tick import Action, PrefillLimits

#: The shortest tail that is worth a row of the tick in which prompts end together.
SHORTEST_TAIL: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """What the next prompt tick would run.

    ``indices``: the prompts that share it. ``tokens``: the most that it runs of each. ``padded``: what it runs in all,
    shorter rows padded to the longest. ``held``: how many prompts could end and wait for others. ``ledger``: to be kept
    only if the tick ran.
    """

    indices: tuple[int, ...]
    tokens: int
    padded: int
    held: int
    ledger: PrefillLedger


def plan_prompts(
    parked: Sequence[ParkedPrompt],
    ledger: PrefillLedger,
    limits: PrefillLimits,
    *,
    producing: bool,
    last: Action,
    cap: int = 4,
) -> PromptPlan:
    """The prompts that share the next prompt tick, and how much of them; ``parked`` is in admission order.

    ``producing``: as in ``TickState``. ``last``: what the tick before this one did. Beside producing streams, and in
    the first tick after idling, it is what ``pick_prefill`` says, of one chunk at most: what is sent together comes one
    after the other, and is to be seen before the first of it has run far ahead. Else it is what ``pick_quiet`` says.

    So a newcomer, or a cancel, waits for at most one tick of ``limits.quiet_tokens`` before it is seen.
    """
    tokens = limits.tokens(producing=producing or last is Action.IDLE)
    if tokens > limits.chunk_tokens:
        return pick_quiet(parked, ledger, limits.chunk_tokens, tokens, cap)
    indices, after = pick_prefill(parked, ledger, tokens, cap)
    return _plan(parked, indices, tokens, after)


def pick_quiet(
    parked: Sequence[ParkedPrompt],
    ledger: PrefillLedger,
    chunk_tokens: int,
    quiet_tokens: int,
    cap: int = 4,
) -> PromptPlan:
    """The plan for a prompt tick of ``quiet_tokens`` while nothing streams.

    A lane is chosen by ``pick_lane``. Each of its K prompts may leave a tail of ``quiet_tokens / K``. One that has more
    to run is given *turns*, alone and round-robin, that bring it down to its tail. Those that are down to it are
    *ready*, and so is a newcomer that fits one chunk: ready ones end together, in admission order, while rows × longest
    remainder stays within ``quiet_tokens``. Turns and ends alternate while both are there and nothing is held.

    Ready prompts are held while at least half of the others are one turn away from being ready, for at most as many
    turns as there are others when that begins, and never once a newcomer fits one chunk. So nobody is held for longer
    than a round, and every other tick of the lane at least is the turn of one that waits for it.
    """
    rank, skips = pick_lane({prompt.lane_rank for prompt in parked}, ledger.skips, cap)
    if rank is None:
        return _plan(parked, (), 0, PrefillLedger(skips=skips, short_last=ledger.short_last))
    lane = {prompt.order: index for index, prompt in enumerate(parked) if prompt.lane_rank == rank}
    hold = ledger.holds.get(rank)
    tail = max(SHORTEST_TAIL, quiet_tokens // len(lane)) if hold is None else hold.tail
    over = {
        order: parked[index].remaining - _tail_of(parked[index], tail, chunk_tokens, quiet_tokens)
        for order, index in lane.items()
    }
    fresh = any(parked[index].is_short_newcomer(chunk_tokens) for index in lane.values())
    ready = [
        index
        for order, index in lane.items()
        if over[order] <= 0 or parked[index].is_short_newcomer(chunk_tokens)
    ]
    rotation = in_turn(parked, ledger)
    others = [order for order in rotation if order in lane and lane[order] not in ready]
    holds = {
        waiting: other for waiting, other in ledger.holds.items() if waiting in skips and waiting != rank
    }

    may_end = bool(ready) and not (others and rank in ledger.short_last)
    turns = 0
    if (
        may_end
        and others
        and not fresh
        and 2 * sum(over[order] <= quiet_tokens for order in others) >= len(others)
    ):
        turns = len(others) if hold is None else hold.turns
    if may_end and not turns:
        chosen = packed(parked, ready, quiet_tokens)
        longest = max(parked[index].remaining for index in chosen)
        return _plan(
            parked, chosen, longest, PrefillLedger(skips, ledger.short_last | {rank}, tuple(rotation), holds)
        )
    if turns:
        holds[rank] = Hold(tail, turns - 1)
    rotation.remove(others[0])
    rotation.append(others[0])
    after = PrefillLedger(skips, ledger.short_last - {rank}, tuple(rotation), holds)
    tokens = min(quiet_tokens, over[others[0]])
    return _plan(parked, (lane[others[0]],), tokens, after, held=len(ready) if turns else 0)


def _tail_of(prompt: ParkedPrompt, tail: int, chunk_tokens: int, quiet_tokens: int) -> int:
    return min(tail, chunk_tokens if prompt.last_chunk_apart else quiet_tokens)


def _plan(
    parked: Sequence[ParkedPrompt],
    indices: tuple[int, ...],
    tokens: int,
    ledger: PrefillLedger,
    held: int = 0,
) -> PromptPlan:
    padded = padded_tokens(parked, indices, tokens)
    return PromptPlan(indices=indices, tokens=tokens, padded=padded, held=held, ledger=ledger)
