"""Lanes with a floor: the order, the ledger, and the bound on every lane's wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.lanes import pick_lane


def test_nothing_waiting_serves_nothing_and_forgets_all_skips() -> None:
    assert pick_lane([], {0: 3, 1: 9}) == (None, {})


def test_the_highest_lane_is_served_while_none_is_overdue() -> None:
    assert pick_lane([2, 0, 1], {1: 3, 2: 3}) == (0, {0: 0, 1: 4, 2: 4})


def test_a_lane_skipped_cap_times_goes_first() -> None:
    assert pick_lane([0, 1, 2], {1: 3, 2: 4}) == (2, {0: 1, 1: 4, 2: 0})


def test_the_most_skipped_goes_first_among_overdue_lanes() -> None:
    assert pick_lane([0, 1, 2], {1: 4, 2: 5}) == (2, {0: 1, 1: 5, 2: 0})


def test_the_higher_lane_wins_among_equally_skipped_ones() -> None:
    assert pick_lane([0, 1, 2], {1: 5, 2: 5}) == (1, {0: 1, 1: 0, 2: 6})


def test_a_lane_with_nothing_waiting_loses_its_skips() -> None:
    chosen, skips = pick_lane([0, 2], {1: 4, 2: 1})
    assert chosen == 0
    assert skips.get(1, 0) == 0


def test_repeated_ranks_count_once() -> None:
    assert pick_lane([1, 1, 0, 0], {}) == (0, {0: 0, 1: 1})


def test_two_lanes_contending_for_ever_share_four_to_one() -> None:
    skips: dict[int, int] = {}
    served = []
    for _ in range(10):
        rank, skips = pick_lane([0, 1], skips)
        served.append(rank)
    assert served == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


waitings = st.lists(st.sets(st.integers(0, 5)), max_size=40)


@given(history=waitings, lanes=st.integers(1, 6), cap=st.integers(1, 6))
def test_each_of_the_lanes_always_contending_is_served_in_every_window(
    history: list[set[int]], lanes: int, cap: int
) -> None:
    """The bound of the rule, from every state that any history can leave behind."""
    skips: dict[int, int] = {}
    for waiting in history:
        _, skips = pick_lane(waiting & set(range(lanes)), skips, cap)
    window = cap + lanes - 1
    served = []
    for _ in range(4 * window):
        rank, skips = pick_lane(range(lanes), skips, cap)
        served.append(rank)
    for start in range(len(served) - window + 1):
        assert set(range(lanes)) == set(served[start : start + window])


@given(history=waitings, lane=st.integers(0, 5), cap=st.integers(1, 6), data=st.data())
def test_a_lane_that_goes_on_waiting_is_served_within_the_bound_whatever_the_others_do(
    history: list[set[int]], lane: int, cap: int, data: st.DataObject
) -> None:
    skips: dict[int, int] = {}
    for waiting in history:
        _, skips = pick_lane(waiting, skips, cap)
    for _ in range(cap + 6 - 1):
        others = data.draw(st.sets(st.integers(0, 5)))
        rank, skips = pick_lane(others | {lane}, skips, cap)
        if rank == lane:
            return
    pytest.fail("the lane was passed over for longer than the bound")


@given(
    waiting=st.sets(st.integers(0, 5), min_size=1),
    skips=st.dictionaries(st.integers(0, 5), st.integers(0, 9)),
)
def test_decision_and_ledger_agree(waiting: set[int], skips: dict[int, int]) -> None:
    rank, after = pick_lane(waiting, skips)
    assert rank in waiting
    assert after.keys() == waiting
    assert after[rank] == 0
    assert all(after[other] == skips.get(other, 0) + 1 for other in waiting - {rank})
