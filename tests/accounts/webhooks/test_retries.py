from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from accounts.webhooks.retries import MOST_ATTEMPTS, wait_after
from accounts.webhooks.sending import LONGEST_ATTEMPT_S

DRAWS = st.floats(0, 1)


@given(st.integers(1, MOST_ATTEMPTS - 2), DRAWS, DRAWS)
def test_waits_grow_whatever_is_drawn_until_they_are_longest(attempt: int, one: float, other: float) -> None:
    longest = timedelta(hours=12)
    assert wait_after(attempt, one) < wait_after(attempt + 1, other) or wait_after(attempt + 1, 0.5) == (
        wait_after(attempt, 0.5)
    )
    assert wait_after(attempt + 1, other) <= longest


@given(st.integers(1, 100), DRAWS)
def test_the_next_attempt_is_never_due_before_the_one_before_it_is_over(attempt: int, draw: float) -> None:
    assert wait_after(attempt, draw) > timedelta(seconds=LONGEST_ATTEMPT_S)


def test_all_attempts_are_spread_over_about_a_day() -> None:
    assert [wait_after(n, 0.5).total_seconds() for n in range(1, MOST_ATTEMPTS)] == [
        10,
        60,
        360,
        2160,
        12960,
        36000,
        36000,
    ]
    for draw in (0.0, 1.0):
        total = sum((wait_after(n, draw) for n in range(1, MOST_ATTEMPTS)), timedelta())
        assert timedelta(hours=19) < total < timedelta(hours=30)


def test_what_failed_together_does_not_come_again_together() -> None:
    assert wait_after(3, 0.0) < wait_after(3, 0.5) < wait_after(3, 1.0)
