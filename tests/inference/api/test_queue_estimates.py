"""How long a waiting generation may still have to wait, from readings of the queue's counter of claims."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.api.queue_estimates import WINDOW_S, ClaimRates

MODEL = "m"


def rates(*readings: tuple[float, int]) -> ClaimRates:
    """After the given readings of one model's counter, each at its time."""
    made = ClaimRates()
    for at, claims in readings:
        made.observe(MODEL, claims, at)
    return made


@pytest.mark.parametrize(
    "readings",
    [[], [(0.0, 5)], [(0.0, 5), (10.0, 5)], [(0.0, 5), (0.1, 9)]],
    ids=["none", "one", "a queue that stands still", "two at once"],
)
def test_nothing_is_told_while_nothing_is_known(readings: list[tuple[float, int]]) -> None:
    assert rates(*readings).wait_s(MODEL, 1, 10.0) is None
    assert rates(*readings).wait_s("another", 1, 10.0) is None


def test_the_wait_is_the_place_over_the_pace() -> None:
    # 20 claims in 10 s.
    known = rates((0.0, 100), (10.0, 120))
    assert known.wait_s(MODEL, 1, 10.0) == pytest.approx(0.5)
    assert known.wait_s(MODEL, 8, 10.0) == pytest.approx(4.0)


def test_a_queue_that_stops_lengthens_the_wait() -> None:
    known = rates((0.0, 0), (10.0, 20), (40.0, 20))
    assert known.wait_s(MODEL, 1, 40.0) == pytest.approx(2.0)


def test_only_the_last_minute_counts() -> None:
    known = rates((0.0, 0), (1.0, 1000), (WINDOW_S + 1.5, 1000), (WINDOW_S + 11.5, 1010))
    assert known.wait_s(MODEL, 1, WINDOW_S + 11.5) == pytest.approx(1.0)


def test_counting_begins_anew_when_the_store_was_emptied() -> None:
    known = rates((0.0, 500), (10.0, 600), (20.0, 3))
    assert known.wait_s(MODEL, 1, 20.0) is None
    known.observe(MODEL, 13, 30.0)
    assert known.wait_s(MODEL, 1, 30.0) == pytest.approx(1.0)


def test_models_do_not_mix() -> None:
    known = rates((0.0, 0), (10.0, 10))
    known.observe("other", 0, 0.0)
    known.observe("other", 100, 10.0)
    assert known.wait_s(MODEL, 1, 10.0) == pytest.approx(1.0)
    assert known.wait_s("other", 1, 10.0) == pytest.approx(0.1)


@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 90.0, allow_nan=False), st.integers(0, 50)), min_size=1, max_size=40
    ),
    position=st.integers(1, 1000),
)
def test_a_wait_is_never_negative_and_grows_with_the_place(
    steps: list[tuple[float, int]], position: int
) -> None:
    known, now, claims = ClaimRates(), 0.0, 0
    for pause, claimed in steps:
        now, claims = now + pause, claims + claimed
        known.observe(MODEL, claims, now)
        wait = known.wait_s(MODEL, position, now)
        if wait is not None:
            assert wait >= 0
            further = known.wait_s(MODEL, position + 1, now)
            assert further is not None
            assert further >= wait


def test_readings_from_many_threads_leave_a_whole_account() -> None:
    known = ClaimRates()

    def read(offset: int) -> None:
        for step in range(200):
            known.observe(MODEL, step * 10, float(step))
            known.wait_s(MODEL, offset, float(step))

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known.observe(MODEL, 10_000, 1000.0)
    known.observe(MODEL, 10_010, 1010.0)
    assert known.wait_s(MODEL, 2, 1010.0) == pytest.approx(2.0)
