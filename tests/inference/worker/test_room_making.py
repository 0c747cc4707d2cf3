"""For which of those that wait room is made: against asking for each of them, and what it costs where there is none."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.claiming import Candidate
from inference.scheduling.fair_share import Head
from inference.scheduling.memory import Capacity, Verdict
from inference.scheduling.preemption import Requester, Victim, choose_victims
from inference.worker.room_making import room_for
from tests.inference.scheduling.asked_room import AskedRoom

_arrivals = itertools.count(1)


def candidate(lane: int, bytes_: int) -> Candidate:
    arrival = next(_arrivals)
    head = Head(
        tenant=str(arrival),
        generation=str(arrival),
        arrival=arrival,
        tokens=bytes_,
        cost=bytes_,
        weight=1,
        finish=0,
        joined=False,
    )
    return Candidate(lane_rank=lane, head=head, bytes=bytes_, verdict=Verdict.DEFER_NO_ROOM)


def running(lane: int, bytes_: int) -> Victim:
    order = next(_arrivals)
    return Victim(key=str(order), lane_rank=lane, bytes=bytes_, generated=0, order=order, preempted=0)


def full(victims: list[Victim], budget: int) -> Capacity:
    """Of a worker that has so many bytes, and no row left."""
    room = AskedRoom(budget=budget, given=tuple(victim.bytes for victim in victims))
    return Capacity(room=room, bytes_per_token=1, step=1, free_rows=0, decoding=False)


@given(
    st.lists(st.builds(candidate, st.integers(0, 2), st.integers(1, 12)), max_size=8),
    st.lists(st.builds(running, st.integers(0, 3), st.integers(1, 12)), max_size=5),
    st.integers(0, 60),
)
def test_it_is_the_first_for_whom_victims_can_be_chosen(
    candidates: list[Candidate], victims: list[Victim], budget: int
) -> None:
    capacity = full(victims, budget)
    answers = (
        (one, choose_victims(Requester(one.lane_rank, one.bytes), victims, capacity)) for one in candidates
    )
    first = next((answer for answer in answers if answer[1] is not None), None)
    assert room_for(candidates, capacity, victims) == first


def test_where_a_smaller_one_of_the_lane_has_found_no_room_a_larger_one_does_not_look() -> None:
    runners = [running(0, 10), *(running(2, 10) for _ in range(20))]
    capacity = full(runners, budget=210)  # beside the high one there is room for 105
    larger = [candidate(1, 150) for _ in range(100)]
    waiting = [candidate(1, 120), *larger, candidate(0, 130), candidate(1, 110)]
    AskedRoom.asked = 0
    assert room_for(waiting, capacity, runners) is None
    assert AskedRoom.asked == 3
