"""The tick against an adversary: who decodes and what the slot's next slice is, chosen anew before every tick.

What may be chosen is finite, so the worst of all choices is computed and not drawn.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import pytest

from inference.scheduling.slot import SlotState, grant, leave, next_entry, offer, peek, sliced
from inference.scheduling.tick import Action, PrefillLimits, TickDecision, TickState, decide_tick

CHUNK = 2
#: What is pending at the slot: nothing, a round, or a slice 0 of so many tokens.
NOTHING, ROUND = None, 0
SLICES = (NOTHING, ROUND, *range(1, CHUNK + 1))


def state_after(
    last: TickDecision,
    limits: PrefillLimits,
    decoding: int,
    prefills: int,
    chunk: int,
    next_slice: int | None,
) -> TickState:
    return TickState(
        decoding=decoding,
        prefills=prefills,
        next_prefill_tokens=chunk if prefills else 0,
        speculative_pending=next_slice is not None,
        speculative_prompt_tokens=next_slice or 0,
        limits=limits,
        prefill_debt=last.prefill_debt,
        speculative_yielded=last.speculative_yielded,
        slice_prompt_last=last.slice_prompt_last,
        prefill_gave_way=last.prefill_gave_way,
    )


@dataclass
class Adversary:
    """Chooses from what is given, to put ``wanted`` off."""

    wanted: Action
    limits: PrefillLimits
    decoding: tuple[int, ...]
    prefills: tuple[int, ...]
    slices: tuple[int | None, ...]
    known: dict[TickDecision, int] = field(default_factory=dict)
    open: set[TickDecision] = field(default_factory=set)

    def longest_wait(self, last: TickDecision) -> int:
        """Ticks until the wanted action has run, that one counted."""
        if last in self.known:
            return self.known[last]
        assert last not in self.open, f"{self.wanted} starves: {last} comes back without it"
        self.open.add(last)
        waits = [0]
        choices = itertools.product(self.decoding, self.prefills, (1, CHUNK), self.slices)
        for decoding, prefills, chunk, next_slice in choices:
            decision = decide_tick(state_after(last, self.limits, decoding, prefills, chunk, next_slice))
            waits.append(1 if decision.action is self.wanted else 1 + self.longest_wait(decision))
        self.open.remove(last)
        self.known[last] = max(waits)
        return self.known[last]


def just_ran(action: Action, limits: PrefillLimits) -> list[TickDecision]:
    """All that a tick of this kind may leave behind."""
    most = limits.interval * CHUNK
    return [
        TickDecision(action, debt, action is Action.SPECULATE, prompt_last, gave_way)
        for debt, prompt_last, gave_way in itertools.product(range(most + 1), (False, True), (False, True))
        if not (action is Action.PREFILL and (prompt_last or gave_way))
    ]


@pytest.mark.parametrize("interval", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_no_choice_holds_waiting_prompts_up_longer_than_is_stated(waiting: int, interval: int) -> None:
    limits = PrefillLimits(CHUNK, interval)
    adversary = Adversary(Action.PREFILL, limits, (0, 1), (waiting, waiting + 1), SLICES)
    bound = 4 * (math.ceil(interval / waiting) + 1)
    assert max(map(adversary.longest_wait, just_ran(Action.PREFILL, limits))) == bound, "reached, not passed"


@pytest.mark.parametrize("interval", [0, 1, 2, 3, 4, 7])
def test_no_choice_holds_a_row_up_for_more_than_three_ticks_or_the_slot_longer_than_is_stated(
    interval: int,
) -> None:
    limits = PrefillLimits(CHUNK, interval)
    row = Adversary(Action.DECODE, limits, (1,), (0, 1, 2), SLICES)
    assert max(map(row.longest_wait, just_ran(Action.DECODE, limits))) == (4 if interval else 2)
    slot = Adversary(Action.SPECULATE, limits, (0, 1), (0, 1, 2), SLICES[1:])
    assert max(map(slot.longest_wait, just_ran(Action.SPECULATE, limits))) <= 2 * interval + 2


@pytest.mark.parametrize("budget", [1, 2, 8])
def test_waiters_that_leave_before_their_slice_0_do_not_hold_a_prompt_up(budget: int) -> None:
    """With the real slot, beside one stream: at a grant of one slice a round and a leaving waiter take turns."""
    limits, last = PrefillLimits(8, 4), TickDecision(Action.IDLE, 0, False, False)
    slot, waiters = offer(SlotState(), "job", 1, budget)[1], itertools.count()
    actions: list[Action] = []
    for _ in range(400):
        if not last.speculative_yielded:
            for key in slot.keys:
                slot = slot if key == "job" else leave(slot, key)
            slot = offer(slot, f"waiter {next(waiters)}", 1, budget)[1] if actions else slot
        front = slot.holder or peek(slot)
        assert front is not None
        last = decide_tick(state_after(last, limits, 1, 1, 8, ROUND if front.started else 8))
        actions.append(last.action)
        if last.action is Action.SPECULATE:
            if slot.holder is None:
                entry, slot = next_entry(slot)
                assert entry is not None
                slot = grant(slot, entry, budget)
            slot = sliced(slot)[1]
    bound = 4 * (limits.interval + 1)
    windows = (actions[start : start + bound] for start in range(len(actions) - bound))
    assert all(Action.PREFILL in window for window in windows)
