"""Room for caches, and the ledger of those that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
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
    batch_bytes,
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
several = st.lists(sizes, max_size=5).map(tuple)
rooms = st.builds(Room, budget=sizes.map(lambda size: 4 * size), watermark=sizes, given=several, cached=sizes)


def batch(sequences: Sequence[int]) -> int:
    """Bytes of the array in which these are rows: every row is as long as the longest."""
    rows = [bytes_ for bytes_ in sequences if bytes_ > 0]
    return sum(max(rows) for _ in rows)


def test_one_long_sequence_makes_every_row_beside_it_as_long() -> None:
    assert batch_bytes([64_000, *[1_000] * 7]) == 8 * 64_000
    assert batch_bytes([]) == 0
    assert batch_bytes([7]) == 7
    assert batch_bytes([7, 0, 0]) == 7, "one that has only to be ended is in no batch"


@given(rooms, sizes, st.booleans())
def test_room_is_given_only_within_the_budget_and_above_the_watermark(
    room: Room, bytes_: int, decoding: bool
) -> None:
    kept_free = room.watermark if decoding else 0
    assert room.reserved == batch(room.given)
    assert room.fits(bytes_, decoding) == (batch((*room.given, bytes_)) + kept_free <= room.budget)
    evicted = room.reclaim_for(bytes_, decoding)
    assert 0 <= evicted <= room.cached
    if room.fits(bytes_, decoding):
        after = replace(room, given=(*room.given, bytes_), cached=room.cached - evicted)
        assert after.reserved + after.cached + kept_free <= room.budget
        assert evicted == 0 or after.reserved + after.cached + kept_free == room.budget, "no more than needed"


@given(rooms, sizes)
def test_whatever_fits_the_empty_worker_fits_once_everything_has_ended(room: Room, bytes_: int) -> None:
    assert room.never_fits(bytes_) != room.without(room.given).fits(bytes_, decoding=False)


@given(rooms, st.data())
def test_whoever_leaves_is_gone_and_nobody_else(room: Room, data: st.DataObject) -> None:
    left = list(data.draw(st.permutations(room.given)))
    leaving = [left.pop() for _ in range(data.draw(st.integers(0, len(left))))]
    assert sorted(room.without(leaving).given) == sorted(left)
    assert replace(room.without(leaving), given=room.given) == room


@given(st.integers(0, 60), st.integers(0, 20), st.data())
def test_whoever_joins_and_leaves_whenever_the_batch_stays_within_the_budget(
    steps: int, kept_steps: int, data: st.DataObject
) -> None:
    """Each row as long as its sequence is by now, and padded to the longest; the prefix cache beside it gives way."""
    room = Room(budget=steps * 5, watermark=kept_steps)
    running: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        decoding = data.draw(st.booleans())
        if running and data.draw(st.booleans()):
            running.remove(data.draw(st.sampled_from(running)))
        tokens = data.draw(st.integers(1, 40))
        offered = Capacity(
            room=replace(room, given=tuple(bytes_ for _, bytes_ in running)),
            bytes_per_token=1,
            step=5,
            free_rows=1,
            decoding=decoding,
        )
        if offered.verdict(tokens) is Verdict.ADMIT:
            running.append((tokens, offered.bytes_of(tokens)))
        grown = [data.draw(st.integers(0, tokens)) for tokens, _ in running]
        rounded = [sequence_bytes(tokens, 1, 5) for tokens in grown]
        assert len(running) * max(rounded, default=0) <= room.budget


def test_the_watermark_is_kept_only_while_rows_decode() -> None:
    room = Room(budget=100, watermark=30)
    assert room.fits(100, decoding=False)
    assert room.fits(70, decoding=True)
    assert not room.fits(71, decoding=True)


def test_a_lowered_budget_admits_nothing_and_gives_up_the_cache() -> None:
    room = Room(budget=50, given=(30, 20), cached=20)
    assert not room.fits(0, decoding=False)
    assert room.free(decoding=False) == -30
    assert room.reclaim_for(0, decoding=False) == 20


def capacity(
    budget: int = 100, given: tuple[int, ...] = (), free_rows: int = 1, elsewhere: int | None = 0
) -> Capacity:
    return Capacity(
        room=Room(budget=budget, given=given),
        bytes_per_token=2,
        step=5,
        free_rows=free_rows,
        decoding=False,
        longest_elsewhere=elsewhere,
    )


@pytest.mark.parametrize(
    ("offered", "tokens", "verdict"),
    [
        (capacity(), 50, Verdict.ADMIT),
        (capacity(), 51, Verdict.NEVER_FITS),
        (capacity(given=(1,)), 25, Verdict.ADMIT),
        (capacity(given=(1,)), 26, Verdict.DEFER_NO_ROOM),
        (capacity(given=(60,)), 1, Verdict.DEFER_NO_ROOM),
        (capacity(free_rows=0), 50, Verdict.DEFER_NO_ROW),
        (capacity(free_rows=-2), 50, Verdict.DEFER_NO_ROW),
        (capacity(given=(60,), free_rows=0), 50, Verdict.DEFER_NO_ROOM),
        (capacity(given=(999,), free_rows=0), 0, Verdict.ADMIT),
        (capacity(given=(999,), free_rows=0), 51, Verdict.NEVER_FITS),
        (capacity(elsewhere=60), 60, Verdict.FITS_ELSEWHERE),
        (capacity(elsewhere=60), 61, Verdict.NEVER_FITS),
        (capacity(elsewhere=None), 10**6, Verdict.FITS_ELSEWHERE),
        (capacity(elsewhere=None), 50, Verdict.ADMIT),
    ],
)
def test_the_verdict_names_what_is_missing(offered: Capacity, tokens: int, verdict: Verdict) -> None:
    assert offered.verdict(tokens) is verdict


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Room(budget=-1),
        lambda: Room(budget=1, cached=-1),
        lambda: Room(budget=1, given=(1, -1)),
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
