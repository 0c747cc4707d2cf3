"""How much a grant is: never less than what its budgets can let through, and never less for being cut into pieces."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.budget_windows import Period, window_at
from accounts.grant_sizes import needs_approval, size_of, together
from accounts.limits import Limits

budgets = st.one_of(st.none(), st.integers(0, 10_000))
limits_given = st.builds(
    Limits, tokens_per_day=budgets, tokens_per_week=budgets, tokens_per_month=budgets, concurrency=budgets
)
marks = st.one_of(st.none(), st.integers(0, 100_000))


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        (Limits(), None),
        (Limits(requests_per_minute=1, tokens_per_minute=1, concurrency=1), None),
        (Limits(tokens_per_day=100), 3_100),
        (Limits(tokens_per_week=100), 600),
        (Limits(tokens_per_month=100), 100),
        (Limits(tokens_per_day=100, tokens_per_week=400, tokens_per_month=5_000), 2_400),
        (Limits(tokens_per_day=0), 0),
    ],
)
def test_the_size_is_the_most_that_its_budgets_let_through_in_a_month(
    limits: Limits, size: int | None
) -> None:
    assert size_of(limits) == size


@pytest.mark.parametrize(
    ("above", "total", "needed"),
    [
        (None, None, False),
        (None, 10, False),
        (100, 100, False),
        (100, 101, True),
        (100, None, True),
        (0, 0, True),
        (0, None, True),
    ],
)
def test_a_second_operator_is_asked_above_the_mark_never_or_always(
    above: int | None, total: int | None, needed: bool
) -> None:
    assert needs_approval(above, total) is needed


@given(limits=limits_given, year=st.integers(2024, 2030), month=st.integers(1, 12))
def test_no_month_lets_more_through_than_the_size(limits: Limits, year: int, month: int) -> None:
    """Take all that the budgets have left, day after day, in windows as the ledger has them."""
    size = size_of(limits)
    if size is None:
        return
    used: dict[tuple[Period, datetime], int] = {}
    total = 0
    for number in range(calendar.monthrange(year, month)[1]):
        noon = datetime.combine(date(year, month, 1) + timedelta(days=number), time(12), UTC)
        windows = [(period, window_at(period, noon, ZoneInfo("UTC")).starts_at) for period in Period]
        left = [
            limit - used.get(window, 0)
            for window in windows
            if (limit := limits.of(window[0].limit_name)) is not None
        ]
        for window in windows:
            used[window] = used.get(window, 0) + min(left)
        total += min(left)
    assert total <= size


@given(limits=limits_given, more=st.lists(st.none() | st.integers(0, 10_000), min_size=3, max_size=3))
def test_a_wider_grant_is_never_the_smaller_one(limits: Limits, more: list[int | None]) -> None:
    names = ("tokens_per_day", "tokens_per_week", "tokens_per_month")
    wider = {
        name: None if extra is None or (limit := getattr(limits, name)) is None else limit + extra
        for name, extra in zip(names, more, strict=True)
    }
    assert _figure(size_of(Limits(**wider))) >= _figure(size_of(limits))


@given(above=marks, sizes=st.lists(budgets, max_size=5), another=budgets)
def test_with_one_more_grant_or_a_lower_mark_approval_is_needed_all_the_more(
    above: int | None, sizes: list[int | None], another: int | None
) -> None:
    needed = needs_approval(above, together(sizes))
    assert needs_approval(above, together([*sizes, another])) >= needed
    if above is not None:
        assert needs_approval(above // 2, together(sizes)) >= needed
        assert needs_approval(0, together(sizes))


@given(above=st.integers(1, 100_000), grants=st.lists(limits_given, min_size=1, max_size=8))
def test_however_a_grant_is_cut_no_more_than_the_mark_gets_by_without_a_second_operator(
    above: int, grants: list[Limits]
) -> None:
    """One after the other, as an operator would who wants to be asked by nobody: requested ones count as well."""
    sizes: list[int | None] = []
    alone: list[int | None] = []
    for limits in grants:
        sizes.append(size_of(limits))
        if not needs_approval(above, together(sizes)):
            alone.append(size_of(limits))
    assert _figure(together(alone)) <= above


def _figure(size: int | None) -> float:
    return float("inf") if size is None else size
