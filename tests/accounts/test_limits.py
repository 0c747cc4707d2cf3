"""What a limit lets through, and which of several is told when one does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.limits import BUDGETS, RATES, LimitName, Limits, LimitState, shortage

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOON, LATER = NOW + timedelta(minutes=1), NOW + timedelta(days=1)

names = st.sampled_from(LimitName)
amounts = st.integers(0, 200)


def _state(
    name: LimitName = LimitName.TOKENS_PER_DAY, limit: int = 100, used: int = 0, **fields: object
) -> LimitState:
    return LimitState(name=name, limit=limit, used=used, **fields)  # type: ignore[arg-type]


def test_every_limit_is_a_budget_a_rate_or_the_concurrency() -> None:
    kinds = [(name.is_budget, name.is_rate, name is LimitName.CONCURRENCY) for name in LimitName]
    assert all(sum(kind) == 1 for kind in kinds)
    assert {name for name in LimitName if name.counts_tokens} == {*BUDGETS, LimitName.TOKENS_PER_MINUTE}
    assert set(RATES) == {LimitName.REQUESTS_PER_MINUTE, LimitName.TOKENS_PER_MINUTE}


def test_limits_are_found_by_their_names_and_unset_ones_are_none() -> None:
    values = {name: number for number, name in enumerate(LimitName)}
    limits = Limits(**{name.value: number for name, number in values.items()})
    assert {name: limits.of(name) for name in LimitName} == values
    assert all(Limits().of(name) is None for name in LimitName)


@given(name=names, limit=amounts, used=amounts, tokens=st.integers(1, 200))
def test_a_request_is_let_through_exactly_if_the_limit_holds_afterwards(
    name: LimitName, limit: int, used: int, tokens: int
) -> None:
    state = _state(name, limit, used)
    afterwards = used + (tokens if name.counts_tokens else 1)
    assert state.allows(tokens) == (afterwards <= limit)
    assert state.never_allows(tokens) == (not _state(name, limit, 0).allows(tokens))
    assert not (state.never_allows(tokens) and state.allows(tokens))


@given(name=names, limit=amounts, used=amounts)
def test_what_is_left_is_never_below_nothing(name: LimitName, limit: int, used: int) -> None:
    state = _state(name, limit, used)
    assert state.remaining == (0 if state.over else limit - used)
    assert state.over == (used > limit)


@pytest.mark.parametrize("name", LimitName)
def test_a_limit_of_none_at_all_lets_nothing_through_ever(name: LimitName) -> None:
    assert not _state(name, 0).allows(1)
    assert _state(name, 0).never_allows(1)
    assert not _state(name, 0).over


def test_a_request_that_fits_in_all_limits_is_short_of_none() -> None:
    assert shortage([], 10**9) is None
    assert shortage([_state(limit=10), _state(LimitName.CONCURRENCY, 1)], 10) is None


def test_the_limit_that_resets_last_is_told() -> None:
    soon = _state(LimitName.TOKENS_PER_MINUTE, used=95, resets_at=LATER, fits_at=SOON)
    later = _state(LimitName.TOKENS_PER_DAY, used=95, resets_at=LATER)
    busy = _state(LimitName.CONCURRENCY, limit=1, used=1)
    assert shortage([soon, busy, later], 10) is later
    assert shortage([busy, soon], 10) is soon
    assert shortage([busy], 10) is busy


def test_a_limit_that_no_waiting_helps_is_told_before_all_others() -> None:
    hopeless = _state(LimitName.TOKENS_PER_MINUTE, limit=9, resets_at=NOW)
    assert shortage([_state(used=95, resets_at=LATER), hopeless], 10) is hopeless


@given(st.lists(st.tuples(names, amounts, amounts)), st.integers(1, 200))
def test_what_is_told_to_be_short_is(limits: list[tuple[LimitName, int, int]], tokens: int) -> None:
    states = [_state(*limit) for limit in limits]
    short = shortage(states, tokens)
    if short is None:
        assert all(state.allows(tokens) for state in states)
    else:
        assert not short.allows(tokens)
