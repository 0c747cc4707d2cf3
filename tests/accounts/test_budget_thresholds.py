from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accounts.budget_thresholds import PERCENTS, newly_reached, reached, told_after_change

TOKENS = st.integers(0, 2**63 - 1)
LIMITS = st.one_of(st.none(), TOKENS)
TOLD = st.sampled_from([0, *PERCENTS])


@pytest.mark.parametrize(
    ("used", "limit", "percent"),
    [
        (0, 100, 0),
        (79, 100, 0),
        (80, 100, 80),
        (99, 100, 80),
        (100, 100, 100),
        (101, 100, 100),
        (1, 1, 100),
        (8, 11, 0),
        (9, 11, 80),
        (0, 0, 0),
        (5, 0, 0),
        (5, None, 0),
    ],
)
def test_the_highest_share_that_was_come_to(used: int, limit: int | None, percent: int) -> None:
    assert reached(used, limit) == percent


@given(TOKENS, TOKENS.filter(bool))
def test_a_share_is_reached_exactly_from_its_token_on(used: int, limit: int) -> None:
    for percent in PERCENTS:
        assert (reached(used, limit) >= percent) == (used >= -(-limit * percent // 100))


@given(st.lists(TOKENS, max_size=20), TOKENS)
def test_however_a_budget_is_used_up_each_share_is_told_once_in_order(uses: list[int], limit: int) -> None:
    told, said = 0, []
    for used in sorted(uses):
        percents = newly_reached(used, limit, told)
        said += percents
        told = max([told, *percents])
    assert said == [percent for percent in PERCENTS if percent <= reached(max(uses, default=0), limit)]


@given(TOLD, TOKENS, LIMITS, LIMITS)
def test_what_was_told_is_told_again_only_where_a_limit_was_raised_above_it(
    told: int, used: int, before: int | None, after: int | None
) -> None:
    kept = told_after_change(told, used, before, after)
    assert kept <= told
    if kept < told:
        assert after is None or (before is not None and after > before)
        assert reached(used, after) < told


@given(TOLD, TOKENS, TOKENS, TOKENS)
def test_raising_and_using_on_tells_again(told: int, used: int, before: int, after: int) -> None:
    assume(after > before)
    kept = told_after_change(told, used, before, after)
    for percent in PERCENTS:
        if percent <= told and used * 100 < after * percent:
            assert percent in newly_reached(after, after, kept)
