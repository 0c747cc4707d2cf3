"""The draft length: within its bounds, and where acceptance and cost lead it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.draft_length import DraftLength, first_length, limited, next_length

#: Rounds after which what is no longer true has faded.
SETTLED = 60

most_tokens = st.integers(1, 16)
token_costs = st.floats(0, 3)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[int, int]:
    proposed = draw(st.integers(0, 16))
    return proposed, draw(st.integers(0, proposed))


@given(most_tokens, st.lists(st.tuples(rounds(), token_costs), max_size=60))
def test_it_never_leaves_its_bounds(most: int, history: list[tuple[tuple[int, int], float]]) -> None:
    state = first_length(most)
    for (proposed, accepted), token_cost in history:
        assert 1 <= state.length <= most
        state = next_length(state, proposed=proposed, accepted=accepted, token_cost=token_cost)
        assert 0 <= state.acceptance <= 1
    assert 1 <= state.length <= most


@given(most_tokens, most_tokens, st.floats(0.01, 0.3))
def test_another_bound_holds_at_once_and_forgets_nothing(most: int, later: int, token_cost: float) -> None:
    state = all_accepted(first_length(most), token_cost)
    changed = limited(state, later, token_cost)
    assert (changed.length, changed.most, changed.acceptance) == (later, later, state.acceptance)


def all_accepted(state: DraftLength, token_cost: float) -> DraftLength:
    for _ in range(SETTLED):
        state = next_length(state, proposed=state.length, accepted=state.length, token_cost=token_cost)
    return state


def none_accepted(state: DraftLength, token_cost: float) -> DraftLength:
    for _ in range(SETTLED):
        state = next_length(state, proposed=state.length, accepted=0, token_cost=token_cost)
    return state


@given(most_tokens, st.floats(0, 0.3))
def test_full_acceptance_leads_to_the_most_if_tokens_are_cheap(most: int, token_cost: float) -> None:
    assert all_accepted(first_length(most), token_cost).length == most


@given(most_tokens, st.floats(0.01, 3))
def test_no_acceptance_leads_to_one(most: int, token_cost: float) -> None:
    assert none_accepted(first_length(most), token_cost).length == 1


@given(most_tokens, st.floats(0.01, 0.3))
def test_it_comes_back_from_either_end(most: int, token_cost: float) -> None:
    """A text that turns from free prose to a copy and back is followed."""
    low = none_accepted(all_accepted(first_length(most), token_cost), token_cost)
    assert low.length == 1
    assert all_accepted(low, token_cost).length == most


@given(most_tokens, st.floats(1.01, 5))
def test_tokens_dearer_than_a_step_are_drafted_one_at_a_time(most: int, token_cost: float) -> None:
    assert all_accepted(first_length(most, token_cost), token_cost).length == 1


@given(most_tokens, st.lists(rounds(), max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_dearer_tokens_never_make_longer_drafts(
    most: int, history: list[tuple[int, int]], cost: float, more: float
) -> None:
    cheap, dear = first_length(most, cost), first_length(most, cost + more)
    for proposed, accepted in history:
        cheap = next_length(cheap, proposed=proposed, accepted=accepted, token_cost=cost)
        dear = next_length(dear, proposed=proposed, accepted=accepted, token_cost=cost + more)
        assert dear.length <= cheap.length


def test_a_round_without_a_guess_says_nothing() -> None:
    state = next_length(first_length(4), proposed=4, accepted=3)
    assert next_length(state, proposed=0, accepted=0) == state


def test_what_came_after_a_refused_token_says_nothing() -> None:
    state = first_length(16)
    assert next_length(state, proposed=2, accepted=1) == next_length(state, proposed=9, accepted=1)


def tokens_per_step(acceptance: float, length: int, token_cost: float) -> float:
    return sum(acceptance**position for position in range(length + 1)) / (1 + token_cost * length)


@pytest.mark.parametrize("token_cost", [0.03, 0.1, 0.2])
@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.5, 0.7, 0.9, 0.98])
def test_it_yields_nearly_what_the_best_fixed_length_would(acceptance: float, token_cost: float) -> None:
    """Tokens of the same chance each, drawn with a fixed seed: within a twentieth of the best length's rate."""
    draw = random.Random(acceptance * 1000 + token_cost)
    state, rates = first_length(8, token_cost), []
    for _ in range(600):
        rates.append(tokens_per_step(acceptance, state.length, token_cost))
        accepted = 0
        while accepted < state.length and draw.random() < acceptance:
            accepted += 1
        state = next_length(state, proposed=state.length, accepted=accepted, token_cost=token_cost)
    best = max(tokens_per_step(acceptance, length, token_cost) for length in range(1, 9))
    assert sum(rates) / len(rates) >= 0.95 * best


@pytest.mark.parametrize(("proposed", "accepted"), [(2, 3), (0, 1), (2, -1), (-1, -1)])
def test_an_impossible_round_is_refused(proposed: int, accepted: int) -> None:
    with pytest.raises(ValueError, match="cannot have been accepted"):
        next_length(first_length(4), proposed=proposed, accepted=accepted)


@pytest.mark.parametrize("token_cost", [-0.1, math.nan, math.inf])
def test_a_cost_that_cannot_have_been_measured_is_refused(token_cost: float) -> None:
    with pytest.raises(ValueError, match="token_cost"):
        first_length(4, token_cost)
    with pytest.raises(ValueError, match="token_cost"):
        next_length(first_length(4), proposed=1, accepted=1, token_cost=token_cost)


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        first_length(0)
