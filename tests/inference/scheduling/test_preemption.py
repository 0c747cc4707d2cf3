"""Who gives way to a higher lane: by example, and against every set of victims there is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.scheduling.memory import Capacity, Room, batch_bytes
from inference.scheduling.preemption import (
    MOST_PREEMPTIONS,
    Occupation,
    Preemption,
    Requester,
    Victim,
    choose_victims,
)
from tests.inference.scheduling.asked_room import AskedRoom

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
    budget: int | None = None,
    free_rows: int = 0,
    cached: int = 0,
    beside: Sequence[int] = (),
) -> Preemption | None:
    """Of a worker whose budget is what all take together, if none is given. ``beside``: bytes of others that run."""
    given = (*(one.bytes for one in victims), *beside)
    room = Room(budget=batch_bytes(given) if budget is None else budget, given=given, cached=cached)
    capacity = Capacity(room=room, bytes_per_token=1, step=1, free_rows=free_rows, decoding=False)
    return choose_victims(Requester(lane, need), victims, capacity)


def test_f1_a_high_request_takes_the_place_of_the_lowest_runner() -> None:
    runners = [victim("normal", lane=1), victim("low", lane=2), victim("high", lane=0)]
    assert preempt(runners) == Preemption(("low",), 0)


def test_equals_and_higher_lanes_never_give_way() -> None:
    assert preempt([victim("equal", lane=1), victim("higher", lane=0)], lane=1) is None


def test_the_fewest_tokens_and_then_the_newest_admission_give_way_first() -> None:
    runners = [victim("far", generated=9), victim("older", generated=2), victim("newer", generated=2)]
    assert preempt(runners) == Preemption(("newer",), 0)


def test_nobody_is_preempted_when_there_is_room() -> None:
    assert preempt([victim("a")], budget=20, free_rows=1) == Preemption((), 0)


def test_cold_cache_goes_before_anyone_is_preempted() -> None:
    assert preempt([victim("a")], budget=20, free_rows=1, cached=7) == Preemption((), 7)


def test_no_more_cache_is_evicted_than_the_victims_leave_missing() -> None:
    assert preempt([victim("a", bytes_=8)], budget=18, cached=10) == Preemption(("a",), 2)


def test_nobody_is_preempted_in_vain() -> None:
    assert preempt([victim("a"), victim("b")], need=31, budget=30, cached=10) is None
    assert preempt([victim("a")], free_rows=-1) is None
    assert preempt([], need=0, budget=100) is None
    assert preempt([victim("a")], need=11, budget=20, beside=[10]) is None, "the other's row grows with it"


def test_for_one_that_is_longer_than_all_it_counts_how_many_leave_and_not_how_long_they_are() -> None:
    runners = [victim("short", generated=1, bytes_=1), victim("long", generated=2, bytes_=10)]
    assert preempt([*runners, victim("other", generated=3)], need=15, budget=45) == Preemption(("short",), 0)
    assert preempt([*runners, victim("other", generated=3)], need=20, budget=45) == Preemption(
        ("short", "long"), 0
    )


def test_one_that_makes_all_rows_long_goes_before_two_of_a_lower_lane() -> None:
    """Where there is less than what runs was given, as once rows decode beside which some is kept free."""
    runners = [victim("s1", lane=2), victim("s2", lane=2), victim("large", lane=1, bytes_=20)]
    assert preempt(runners, budget=40) == Preemption(("large",), 0)


def test_one_that_was_given_nothing_stays_and_of_those_that_would_do_the_preferred_one_leaves() -> None:
    runners = [
        victim("nothing", bytes_=0, generated=1),
        victim("a", bytes_=1, generated=2),
        victim("b", bytes_=2, generated=3),
    ]
    assert preempt(runners, need=5, budget=10) == Preemption(("a",), 0)
    assert preempt(runners, need=5, budget=15) == Preemption(("nothing",), 0)


def test_rows_and_bytes_are_both_made_up_for() -> None:
    runners = [
        victim("a", bytes_=1, generated=1),
        victim("b", bytes_=2, generated=2),
        victim("c", bytes_=30, generated=3),
    ]
    assert preempt(runners, need=5, budget=60, free_rows=-1) == Preemption(("a", "b"), 0)
    assert preempt(runners, need=5, budget=10, free_rows=-1) == Preemption(("a", "c"), 0)


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
        preempted=st.sampled_from([0, 0, MOST_PREEMPTIONS - 1, MOST_PREEMPTIONS]),
        occupation=st.sampled_from([*Occupation, *[Occupation.DECODING] * 5]),
    ),
    max_size=7,
)


def preference(one: Victim) -> tuple[int, int, int]:
    return (-one.lane_rank, one.generated, -one.order)


@settings(max_examples=300)
@given(
    victims,
    st.lists(st.integers(0, 12), max_size=2),
    st.integers(0, 1),
    st.integers(0, 16),
    st.integers(0, 20),
    st.integers(-1, 2),
    st.integers(0, 9),
    st.booleans(),
    st.data(),
)
def test_it_is_the_preferred_one_of_the_smallest_sets_that_suffice(
    running: list[Victim],
    beside: list[int],
    lane: int,
    need: int,
    watermark: int,
    free_rows: int,
    cached: int,
    decoding: bool,
    data: st.DataObject,
) -> None:
    """Against an oracle that looks at every set, and at the batch that each leaves. The budget is about what suffices
    once some of them have left."""
    named = [replace(one, key=str(one.order)) for one in running]
    may_give_way = [
        one
        for one in named
        if one.lane_rank > lane
        and one.preempted < MOST_PREEMPTIONS
        and one.occupation is not Occupation.SLOT_IN_ROUND
    ]

    def held(gone: Sequence[Victim]) -> int:
        """What the batch takes with the requester in it, and what is kept free."""
        stay = [one.bytes for one in named if one not in gone]
        rows = [bytes_ for bytes_ in (*stay, *beside, need) if bytes_]
        return len(rows) * max(rows, default=0) + (watermark if decoding else 0)

    some = data.draw(st.sets(st.sampled_from(may_give_way))) if may_give_way else set()
    budget = max(0, held(list(some)) + data.draw(st.integers(-1, 3)))
    sufficient = [
        sorted(group, key=preference)
        for size in range(len(may_give_way) + 1)
        for group in itertools.combinations(may_give_way, size)
        if held(group) <= budget and free_rows + size >= 1
    ]
    room = Room(
        budget=budget,
        watermark=watermark,
        given=(*beside, *(one.bytes for one in named)),
        cached=cached,
    )
    capacity = Capacity(room=room, bytes_per_token=1, step=1, free_rows=free_rows, decoding=decoding)
    answer = choose_victims(Requester(lane, need), named, capacity)
    if not sufficient:
        assert answer is None
        return
    best = min(sufficient, key=lambda group: (len(group), [preference(one) for one in group]))
    assert answer is not None
    assert answer.victims == tuple(one.key for one in best)
    assert answer.reclaim == min(cached, max(0, held(best) + cached - budget))
    if free_rows >= 1 and held(()) <= budget:
        assert not answer.victims, "the cache alone suffices"


@settings(max_examples=300)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=100),
    st.integers(0, 60),
    st.integers(-100, 2),
    st.floats(0, 1.2),
)
# All long ones must leave, and no short one that stands between two of them.
@example([1, 30] * 32, 1, 1, 33 / batch_bytes([30] * 65))
def test_how_often_is_asked_what_fits_grows_with_the_logarithm_of_the_victims(
    given_bytes: list[int], need: int, free_rows: int, share: float
) -> None:
    """Once if all of them do not suffice. Each of them was given something, as sequences are. The budget is a ``share``
    of what they take with the requester."""
    named = [replace(victim("", bytes_=bytes_), key=str(number)) for number, bytes_ in enumerate(given_bytes)]
    budget = round(share * batch_bytes((*given_bytes, need)))
    room = AskedRoom(budget=budget, given=tuple(given_bytes))
    capacity = Capacity(room=room, bytes_per_token=1, step=1, free_rows=free_rows, decoding=False)
    AskedRoom.asked = 0
    answer = choose_victims(Requester(0, need), named, capacity)
    if answer is None:
        assert AskedRoom.asked <= 1
    else:
        assert 1 <= AskedRoom.asked <= 2 * len(named).bit_length() + 2
