"""Room for caches, and the ledger of those that wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.memory import (
    RESERVED_AFTER,
    Capacity,
    Deferral,
    Deferrals,
    Room,
    Verdict,
    admitted,
    deferred,
    forgotten,
    held_back,
    reserved_request,
    sequence_bytes,
)

CAP = 4


# Bytes


def test_a_sequence_is_given_whole_steps() -> None:
    assert sequence_bytes(0, 10, 256) == 0
    assert sequence_bytes(1, 10, 256) == sequence_bytes(256, 10, 256) == 2560
    assert sequence_bytes(257, 10, 256) == 5120


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 512))
def test_a_sequence_is_given_what_it_needs_and_less_than_a_step_more(
    tokens: int, bytes_per_token: int, step: int
) -> None:
    given_tokens = sequence_bytes(tokens, 1, step)
    assert tokens <= given_tokens < tokens + step
    assert sequence_bytes(tokens, bytes_per_token, step) == given_tokens * bytes_per_token


sizes = st.integers(0, 200)
rooms = st.builds(Room, budget=sizes, watermark=sizes, reserved=sizes, cached=sizes)


@given(rooms, sizes, st.booleans())
def test_room_is_given_only_within_the_budget_and_above_the_watermark(
    room: Room, bytes_: int, decoding: bool
) -> None:
    kept_free = room.watermark if decoding else 0
    assert room.fits(bytes_, decoding) == (room.reserved + bytes_ + kept_free <= room.budget)
    evicted = room.reclaim_for(bytes_, decoding)
    assert 0 <= evicted <= room.cached
    if room.fits(bytes_, decoding):
        after = replace(room, reserved=room.reserved + bytes_, cached=room.cached - evicted)
        assert after.reserved + after.cached + kept_free <= room.budget
        assert evicted == 0 or after.reserved + after.cached + kept_free == room.budget, "no more than needed"


@given(rooms, sizes)
def test_whatever_fits_the_empty_worker_fits_once_everything_has_ended(room: Room, bytes_: int) -> None:
    assert room.never_fits(bytes_) != replace(room, reserved=0).fits(bytes_, decoding=False)


def test_the_watermark_is_kept_only_while_rows_decode() -> None:
    room = Room(budget=100, watermark=30)
    assert room.fits(100, decoding=False)
    assert room.fits(70, decoding=True)
    assert not room.fits(71, decoding=True)


def test_a_lowered_budget_admits_nothing_and_gives_up_the_cache() -> None:
    room = Room(budget=50, reserved=60, cached=20)
    assert not room.fits(0, decoding=False)
    assert room.free(decoding=False) == -30
    assert room.reclaim_for(0, decoding=False) == 20


def capacity(budget: int = 100, reserved: int = 0, free_rows: int = 1) -> Capacity:
    room = Room(budget=budget, reserved=reserved)
    return Capacity(room=room, bytes_per_token=2, step=5, free_rows=free_rows, decoding=False)


@pytest.mark.parametrize(
    ("offered", "tokens", "verdict"),
    [
        (capacity(), 50, Verdict.ADMIT),
        (capacity(), 51, Verdict.NEVER_FITS),
        (capacity(reserved=1), 50, Verdict.DEFER_NO_ROOM),
        (capacity(free_rows=0), 50, Verdict.DEFER_NO_ROW),
        (capacity(free_rows=-2), 50, Verdict.DEFER_NO_ROW),
        (capacity(reserved=1, free_rows=0), 50, Verdict.DEFER_NO_ROOM),
        (capacity(reserved=999, free_rows=0), 0, Verdict.ADMIT),
        (capacity(reserved=999, free_rows=0), 51, Verdict.NEVER_FITS),
    ],
)
def test_the_verdict_names_what_is_missing(offered: Capacity, tokens: int, verdict: Verdict) -> None:
    assert offered.verdict(tokens) is verdict


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Room(budget=-1),
        lambda: Room(budget=1, cached=-1),
        lambda: Capacity(room=Room(budget=1), bytes_per_token=-1, step=1, free_rows=1, decoding=False),
        lambda: Capacity(room=Room(budget=1), bytes_per_token=1, step=0, free_rows=1, decoding=False),
    ],
)
def test_an_impossible_worker_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        wrong()  # type: ignore[operator]


# The ledger


def test_a_request_is_deferred_once_and_keeps_its_place_and_count() -> None:
    ledger = deferred((), "a", 1, 10)
    ledger = deferred(ledger, "b", 1, 10)
    ledger = admitted(ledger, "x", 0)
    assert deferred(ledger, "a", 1, 20) == (Deferral("a", 1, 20, passes=1), Deferral("b", 1, 10, passes=1))


def test_whoever_is_admitted_passes_those_deferred_before_it_only() -> None:
    ledger = (Deferral("a", 1, 10), Deferral("b", 1, 10), Deferral("c", 1, 10))
    assert admitted(ledger, "b", 1) == (Deferral("a", 1, 10, passes=1), Deferral("c", 1, 10))


def test_after_four_passes_room_is_kept_for_the_oldest() -> None:
    ledger: Deferrals = (Deferral("a", 1, 10), Deferral("b", 1, 10))
    for number in range(RESERVED_AFTER):
        assert reserved_request(ledger) is None
        assert not held_back(ledger, "x", 2)
        ledger = admitted(ledger, f"x{number}", 2)
    reserved = reserved_request(ledger)
    assert reserved is not None
    assert reserved.generation == "a"
    assert not held_back(ledger, "a", 1)
    assert held_back(ledger, "b", 1), "its own lane waits, other long waiters too"
    assert held_back(ledger, "x", 2), "a lower lane waits"


def test_four_of_higher_lanes_may_still_pass_the_reserved_request() -> None:
    ledger: Deferrals = (Deferral("a", 1, 10, passes=RESERVED_AFTER),)
    for number in range(CAP):
        assert not held_back(ledger, "high", 0)
        ledger = admitted(ledger, f"high{number}", 0)
    assert held_back(ledger, "high", 0)
    assert not held_back(ledger, "a", 1)


def test_the_next_oldest_is_reserved_once_the_first_is_gone_and_lets_four_pass_itself() -> None:
    ledger = (Deferral("a", 1, 10, passes=9, higher_passes=CAP), Deferral("b", 1, 10, passes=6))
    for gone in (admitted(ledger, "a", 1), forgotten(ledger, {"b", "x"})):
        assert reserved_request(gone) == Deferral("b", 1, 10, passes=6)
        assert not held_back(gone, "high", 0)


@pytest.mark.slow
@given(st.data())
def test_no_more_than_the_stated_number_are_admitted_past_a_deferred_request(data: st.DataObject) -> None:
    """Whoever is admitted, as long as the ledger lets it; those deferred fit whenever it is worst."""
    ledger: Deferrals = ()
    lanes: dict[str, int] = {}
    bounds: dict[str, int] = {}
    past: dict[str, int] = {}
    for step in range(60):
        if data.draw(st.booleans(), label="defer"):
            name = f"d{step}"
            lanes[name] = data.draw(st.integers(0, 3), label="lane")
            bounds[name] = RESERVED_AFTER + (len(ledger) + 1) * CAP + len(ledger)
            past[name] = 0
            ledger = deferred(ledger, name, lanes[name], 1)
        waiting = [one.generation for one in ledger]
        chosen = data.draw(st.sampled_from([*waiting, *(f"new{rank}" for rank in range(4))]), label="admit")
        lane = lanes[chosen] if chosen in lanes else int(chosen[-1])
        if held_back(ledger, chosen, lane, CAP):
            continue
        ledger = admitted(ledger, chosen, lane)
        for one in ledger:
            past[one.generation] += 1
            assert past[one.generation] <= bounds[one.generation]
        passes = [one.passes for one in ledger]
        assert passes == sorted(passes, reverse=True), "an older deferral was passed no less often"
        assert all(one.higher_passes <= CAP for one in ledger)
