"""Who gives way to a higher lane: by example, and against every set of victims there is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.preemption import (
    MOST_PREEMPTIONS,
    Occupation,
    Preemption,
    Requester,
    Victim,
    choose_victims,
)

_orders = itertools.count(1)


def victim(
    key: str,
    *,
    lane: int = 2,
    bytes_: int = 10,
    generated: int = 0,
    preempted: int = 0,
    occupation: Occupation = Occupation.DECODING,
) -> Victim:
    return Victim(
        key=key,
        lane_rank=lane,
        bytes=bytes_,
        generated=generated,
        order=next(_orders),
        preempted=preempted,
        occupation=occupation,
    )


def preempt(
    victims: Sequence[Victim],
    *,
    need: int = 10,
    lane: int = 0,
    free_bytes: int = 0,
    free_rows: int = 0,
    reclaimable: int = 0,
) -> Preemption | None:
    return choose_victims(Requester(lane, need), victims, free_bytes, free_rows, reclaimable)


def test_f1_a_high_request_takes_the_place_of_the_lowest_runner() -> None:
    runners = [victim("normal", lane=1), victim("low", lane=2), victim("high", lane=0)]
    assert preempt(runners) == Preemption(("low",), 0)


def test_equals_and_higher_lanes_never_give_way() -> None:
    assert preempt([victim("equal", lane=1), victim("higher", lane=0)], lane=1) is None


def test_the_fewest_tokens_and_then_the_newest_admission_give_way_first() -> None:
    runners = [victim("far", generated=9), victim("older", generated=2), victim("newer", generated=2)]
    assert preempt(runners) == Preemption(("newer",), 0)


def test_nobody_is_preempted_when_there_is_room() -> None:
    assert preempt([victim("a")], free_bytes=10, free_rows=1) == Preemption((), 0)


def test_cold_cache_goes_before_anyone_is_preempted() -> None:
    assert preempt([victim("a")], free_bytes=3, free_rows=1, reclaimable=7) == Preemption((), 7)


def test_no_more_cache_is_evicted_than_the_victims_leave_missing() -> None:
    assert preempt([victim("a", bytes_=8)], reclaimable=10) == Preemption(("a",), 2)


def test_nobody_is_preempted_in_vain() -> None:
    assert preempt([victim("a"), victim("b")], need=31, reclaimable=10) is None
    assert preempt([victim("a")], free_rows=-1) is None
    assert preempt([], need=0, free_rows=0, free_bytes=100) is None


def test_one_large_victim_goes_before_two_small_ones_of_a_lower_lane() -> None:
    runners = [victim("s1", lane=2), victim("s2", lane=2), victim("large", lane=1, bytes_=20)]
    assert preempt(runners, need=20) == Preemption(("large",), 0)


def test_rows_and_bytes_are_both_made_up_for() -> None:
    runners = [victim("a", bytes_=1, generated=1), victim("b", bytes_=2, generated=2), victim("c", bytes_=30)]
    assert preempt(runners, need=5, free_rows=-1) == Preemption(("c", "a"), 0)


def test_a_sequence_is_preempted_twice_at_most() -> None:
    assert preempt([victim("a", preempted=MOST_PREEMPTIONS - 1)]) == Preemption(("a",), 0)
    assert preempt([victim("a", preempted=MOST_PREEMPTIONS)]) is None


@pytest.mark.parametrize("occupation", Occupation)
def test_all_but_a_running_round_can_give_way(occupation: Occupation) -> None:
    chosen = preempt([victim("a", occupation=occupation)])
    assert (chosen is None) == (occupation is Occupation.SLOT_IN_ROUND)


victims = st.lists(
    st.builds(
        victim,
        st.just(""),
        lane=st.integers(0, 3),
        bytes_=st.integers(0, 12),
        generated=st.integers(0, 2),
        preempted=st.integers(0, MOST_PREEMPTIONS),
        occupation=st.sampled_from(Occupation),
    ),
    max_size=7,
)


def preference(one: Victim) -> tuple[int, int, int]:
    return (-one.lane_rank, one.generated, -one.order)


@given(
    victims, st.integers(0, 3), st.integers(0, 40), st.integers(-9, 15), st.integers(-2, 2), st.integers(0, 9)
)
def test_it_is_the_preferred_one_of_the_smallest_sets_that_suffice(
    running: list[Victim], lane: int, need: int, free_bytes: int, free_rows: int, reclaimable: int
) -> None:
    """Against an oracle that looks at every set."""
    named = [replace(one, key=str(one.order)) for one in running]
    may_give_way = [
        one
        for one in named
        if one.lane_rank > lane
        and one.preempted < MOST_PREEMPTIONS
        and one.occupation is not Occupation.SLOT_IN_ROUND
    ]
    sufficient = [
        sorted(group, key=preference)
        for size in range(len(may_give_way) + 1)
        for group in itertools.combinations(may_give_way, size)
        if free_bytes + reclaimable + sum(one.bytes for one in group) >= need and free_rows + size >= 1
    ]
    answer = choose_victims(Requester(lane, need), named, free_bytes, free_rows, reclaimable)
    if not sufficient:
        assert answer is None
        return
    best = min(sufficient, key=lambda group: (len(group), [preference(one) for one in group]))
    assert answer is not None
    assert answer.victims == tuple(one.key for one in best)
    missing = need - free_bytes - sum(one.bytes for one in best)
    assert answer.reclaim == max(0, missing) <= reclaimable
    if free_rows >= 1 and need - free_bytes <= reclaimable:
        assert not answer.victims, "the cache alone suffices"
