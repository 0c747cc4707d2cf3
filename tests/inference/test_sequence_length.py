"""F15, S10: how long an answer may be, whatever the numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.memory import Capacity, Room, Verdict
from inference.sequence_length import Bound, TooLong, answer_tokens

tokens = st.integers(1, 200)


def outcome(prompt: int, asked: int | None, **limits: int | None) -> int | TooLong:
    try:
        return answer_tokens(prompt, asked, **limits)  # type: ignore[arg-type]
    except TooLong as refusal:
        return refusal


@given(
    prompt=st.integers(0, 200),
    asked=st.none() | tokens,
    default=tokens,
    context=tokens,
    memory=st.none() | tokens,
)
def test_what_fits_is_given_in_full_and_what_does_not_is_refused_with_both_numbers(
    prompt: int, asked: int | None, default: int, context: int, memory: int | None
) -> None:
    longest = context if memory is None else min(context, memory)
    need = prompt + (asked or 1)
    answer = outcome(prompt, asked, default=default, context=context, memory=memory)
    if isinstance(answer, TooLong):
        assert need > longest
        assert answer.need == need
        assert answer.most == (context if answer.bound is Bound.CONTEXT else memory)
        assert (answer.bound is Bound.CONTEXT) == (need > context), "no memory helps what exceeds the context"
        assert str(need) in str(answer)
    else:
        assert need <= longest
        assert 1 <= answer <= longest - prompt
        assert answer == (min(default, longest - prompt) if asked is None else asked)


@given(
    budget=st.integers(0, 3000),
    bytes_per_token=st.integers(1, 9),
    step=st.integers(1, 16),
    need=st.integers(2, 400),
)
def test_f15_what_the_door_refuses_is_exactly_what_no_claim_could_ever_admit(
    budget: int, bytes_per_token: int, step: int, need: int
) -> None:
    """The door counts in tokens what the worker told it once, and claims in bytes."""
    capacity = Capacity(
        room=Room(budget=budget), bytes_per_token=bytes_per_token, step=step, free_rows=1, decoding=False
    )
    told = budget // (bytes_per_token * step) * step
    answer = outcome(1, need - 1, default=1, context=1000, memory=told)
    assert isinstance(answer, TooLong) == (capacity.verdict(need) is Verdict.NEVER_FITS)
    if isinstance(answer, TooLong):
        assert (answer.bound, answer.need, answer.most) == (Bound.MEMORY, need, told)


@given(
    budgets=st.tuples(st.integers(0, 3000), st.integers(0, 3000)),
    bytes_per_token=st.integers(1, 9),
    step=st.integers(1, 16),
    need=st.integers(1, 400),
)
def test_of_two_workers_the_smaller_leaves_to_the_larger_exactly_what_that_one_can_hold(
    budgets: tuple[int, int], bytes_per_token: int, step: int, need: int
) -> None:
    """And the door lets in exactly what one of them can hold."""
    told = [budget // (bytes_per_token * step) * step for budget in budgets]
    here, there = (
        Capacity(
            room=Room(budget=budget),
            bytes_per_token=bytes_per_token,
            step=step,
            free_rows=1,
            decoding=False,
            longest_elsewhere=other,
        ).verdict(need)
        for budget, other in zip(budgets, reversed(told), strict=True)
    )
    assert (here is Verdict.FITS_ELSEWHERE) == (need > told[0] and there is Verdict.ADMIT)
    assert (here is Verdict.NEVER_FITS) == (there is Verdict.NEVER_FITS) == (need > max(told))


@pytest.mark.parametrize("memory", [None, 100])
def test_a_prompt_that_leaves_no_room_for_a_single_token_is_refused(memory: int | None) -> None:
    assert answer_tokens(99, None, default=50, context=100, memory=memory) == 1
    with pytest.raises(TooLong):
        answer_tokens(100, None, default=50, context=100, memory=memory)
