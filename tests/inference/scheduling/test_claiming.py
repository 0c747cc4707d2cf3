"""Which generation is claimed: the order of lanes and tenants, and what a lack of room changes in it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling import fair_share
from inference.scheduling.claiming import ClaimChoice, LaneQueue, choose_claim
from inference.scheduling.fair_share import Head
from inference.scheduling.lanes import pick_lane
from inference.scheduling.memory import (
    RESERVED_AFTER,
    Capacity,
    Deferral,
    Deferrals,
    Room,
    Verdict,
    forgotten,
    held_back,
)
from tests.inference.scheduling.asked_room import AskedRoom

CAP = 4
_arrivals = itertools.count(1)


def head(generation: str, tokens: int = 10, *, finish: int = 0, joined: bool = False) -> Head:
    """A head of the tenant that its first letter names."""
    return Head(
        tenant=generation[0],
        generation=generation,
        arrival=next(_arrivals),
        tokens=tokens,
        cost=tokens,
        weight=1,
        finish=finish,
        joined=joined,
    )


def lane(*heads: Head, skips: int = 0, virtual_time: int = 0) -> LaneQueue:
    return LaneQueue(skips=skips, virtual_time=virtual_time, heads=heads)


def offer(
    budget: int = 100,
    kept_free: int = 0,
    free_rows: int = 8,
    given: tuple[int, ...] = (),
    elsewhere: int | None = 0,
) -> Capacity:
    """A byte a token."""
    room = Room(budget=budget, watermark=kept_free, given=given)
    return Capacity(
        room=room,
        bytes_per_token=1,
        step=1,
        free_rows=free_rows,
        decoding=True,
        longest_elsewhere=elsewhere,
    )


def claimed(choice: ClaimChoice) -> str | None:
    return choice.grant.candidate.head.generation if choice.grant else None


def lacking(choice: ClaimChoice) -> list[tuple[str, Verdict]]:
    return [(one.head.generation, one.verdict) for one in choice.deferred]


def test_nothing_waiting_claims_nothing() -> None:
    assert choose_claim({}) == ClaimChoice(grant=None, deferrals=(), deferred=())
    assert choose_claim({1: lane()}).grant is None


def test_without_a_capacity_anything_is_taken_on() -> None:
    choice = choose_claim({1: lane(head("a1", 10**12))})
    assert claimed(choice) == "a1"


def test_what_does_not_fit_is_deferred_and_the_next_of_its_lane_is_claimed() -> None:
    large, small = head("a1", 50, finish=1, joined=True), head("b1", 10, finish=2)
    choice = choose_claim({1: lane(large, small, skips=3, virtual_time=1)}, capacity=offer(kept_free=60))
    assert claimed(choice) == "b1"
    assert lacking(choice) == [("a1", Verdict.DEFER_NO_ROOM)]
    assert choice.deferrals == (Deferral("a1", 1, 50, passes=1),)


def test_a_deferred_tenant_keeps_its_place_when_another_is_served() -> None:
    """Also one that has just come to wait: else each service of others would push it back."""
    large, small = head("a1", 50, joined=True), head("b1", 10, finish=70)
    choice = choose_claim({1: lane(large, small, virtual_time=20)}, capacity=offer(kept_free=60))
    assert choice.grant is not None
    service = choice.grant.service
    assert service.virtual_time == 70
    assert service.finishes == {"a": 20, "b": 70 + fair_share.charge(10, 1)}


def test_beside_a_long_sequence_a_short_one_takes_as_much_and_makes_the_others_wait() -> None:
    """So does a long one that comes to short ones: their rows grow with it."""
    waiting = {1: lane(head("a1", 10)), 2: lane(head("b1", 40))}
    assert claimed(choose_claim(waiting, capacity=offer(given=(50,)))) == "a1"
    beside_long = choose_claim(waiting, capacity=offer(given=(50, 10)))
    beside_short = choose_claim(waiting, capacity=offer(given=(10, 10)))
    assert lacking(beside_long) == [("a1", Verdict.DEFER_NO_ROOM), ("b1", Verdict.DEFER_NO_ROOM)]
    assert claimed(beside_short) == "a1"
    assert lacking(choose_claim({2: waiting[2]}, capacity=offer(given=(10, 10)))) == [
        ("b1", Verdict.DEFER_NO_ROOM)
    ]


def test_what_a_tenant_queued_behind_its_deferred_head_waits_with_it() -> None:
    choice = choose_claim({1: lane(head("a1", 50))}, capacity=offer(kept_free=60))
    assert choice.grant is None
    assert [one.generation for one in choice.deferrals] == ["a1"]


def test_another_lane_is_claimed_when_nothing_of_the_first_fits_and_the_first_keeps_its_skips() -> None:
    lanes = {
        0: lane(head("a1", 50), skips=2),
        1: lane(head("b1", 10), skips=1),
        2: lane(head("c1", 10), skips=1),
    }
    choice = choose_claim(lanes, capacity=offer(kept_free=60))
    assert claimed(choice) == "b1"
    assert choice.grant is not None
    assert choice.grant.skips == {0: 2, 1: 0, 2: 2}


def test_an_overdue_lane_that_does_not_fit_stays_overdue() -> None:
    lanes = {0: lane(head("a1", 10)), 2: lane(head("c1", 50), skips=CAP)}
    choice = choose_claim(lanes, capacity=offer(kept_free=60))
    assert claimed(choice) == "a1"
    assert choice.grant is not None
    assert choice.grant.skips == {0: 0, 2: CAP}
    again = choose_claim(lanes, capacity=offer(), deferrals=choice.deferrals)
    assert claimed(again) == "c1"


def test_nobody_is_tried_after_one_that_only_lacks_a_row() -> None:
    """So a higher lane cannot preempt its way past a lower one whose turn it is."""
    lanes = {0: lane(head("a1", 10)), 2: lane(head("c1", 10), skips=CAP)}
    choice = choose_claim(lanes, capacity=offer(free_rows=0))
    assert choice.grant is None
    assert lacking(choice) == [("c1", Verdict.DEFER_NO_ROW)]
    assert choice.deferrals == (), "nobody can be admitted past it"


def test_one_that_lacks_bytes_lets_a_higher_lane_ask_for_room() -> None:
    lanes = {0: lane(head("a1", 70)), 2: lane(head("c1", 80), skips=CAP)}
    choice = choose_claim(lanes, capacity=offer(kept_free=60))
    assert lacking(choice) == [("c1", Verdict.DEFER_NO_ROOM), ("a1", Verdict.DEFER_NO_ROOM)]


def test_the_promised_generation_takes_the_room_that_is_made_for_it_and_nobody_else_does() -> None:
    lanes = {0: lane(head("a1", 70), skips=1), 2: lane(head("b1", 80), head("c1", 10), skips=CAP)}
    choice = choose_claim(lanes, capacity=offer(), promised="a1")
    assert claimed(choice) == "a1"
    assert choice.grant is not None
    assert choice.grant.skips == {0: 0, 2: CAP + 1}
    gone = choose_claim(lanes, capacity=offer(), promised="gone")
    assert (gone.grant, gone.deferred) == (None, ())


def test_inside_its_lane_too_and_the_tags_of_those_before_it_stay() -> None:
    first, promised = head("a1", 10, joined=True), head("b1", 10, finish=9)
    choice = choose_claim({1: lane(first, promised, virtual_time=3)}, capacity=offer(), promised="b1")
    assert choice.grant is not None
    assert choice.grant.service.tenant == "b"
    assert choice.grant.service.finishes["a"] == 3


def test_a_promise_does_not_break_a_reservation_and_is_deferred_where_its_room_is_not_enough() -> None:
    lanes = {1: lane(head("a1", 70), head("b1", 10))}
    kept = (Deferral("a1", 1, 70, passes=RESERVED_AFTER),)
    choice = choose_claim(lanes, capacity=offer(kept_free=60), deferrals=kept, promised="b1")
    assert choice.grant is None
    assert (choice.deferred, choice.deferrals) == ((), kept)
    choice = choose_claim(lanes, capacity=offer(kept_free=60), promised="a1")
    assert lacking(choice) == [("a1", Verdict.DEFER_NO_ROOM)]


def test_what_can_never_fit_is_claimed_to_be_ended_and_passes_nobody() -> None:
    lanes = {0: lane(head("a1", 101)), 1: lane(head("b1", 50))}
    waiting = (Deferral("b1", 1, 50, passes=RESERVED_AFTER),)
    choice = choose_claim(lanes, capacity=offer(kept_free=60, free_rows=0), deferrals=waiting)
    assert choice.grant is not None
    assert choice.grant.candidate.verdict is Verdict.NEVER_FITS
    assert choice.deferrals == waiting


def test_what_fits_now_is_asked_of_those_that_are_tried_and_of_no_others() -> None:
    large = [head(f"a{number}", 50, finish=number) for number in range(3)]
    small = [head(f"b{number}", 10, finish=10 + number) for number in range(50)]
    waiting = [replace(one, tenant=one.generation) for one in (*large, *small)]
    capacity = replace(offer(elsewhere=200), room=AskedRoom(budget=100, watermark=60))
    AskedRoom.asked = 0
    choice = choose_claim({1: lane(*waiting), 2: lane(head("c1", 150))}, capacity=capacity)
    assert claimed(choice) == "b0"
    assert AskedRoom.asked == len(large) + 1


def test_what_only_another_worker_can_hold_is_left_to_it_and_holds_nobody_up() -> None:
    """Its lane is overdue and stays so, its tenant keeps its tag, and here it is not kept room for."""
    large, small = head("a1", 150, finish=1, joined=True), head("b1", 10, finish=2)
    lanes = {0: lane(head("c1", 10)), 1: lane(large, small, skips=CAP, virtual_time=1)}
    choice = choose_claim(lanes, capacity=offer(elsewhere=150))
    assert claimed(choice) == "b1"
    assert choice.grant is not None
    assert choice.grant.service.finishes["a"] == 1
    assert (choice.deferrals, choice.deferred) == ((), ())
    alone = {0: lane(head("c1", 10)), 1: lane(large, skips=CAP)}
    choice = choose_claim(alone, capacity=offer(elsewhere=150))
    assert claimed(choice) == "c1"
    assert choice.grant is not None
    assert choice.grant.skips == {0: 0, 1: CAP}
    assert claimed(choose_claim({1: lane(large)}, capacity=offer(elsewhere=150))) is None
    assert claimed(choose_claim({1: lane(large)}, capacity=offer(elsewhere=None))) is None, "nobody knows"
    # One token less elsewhere, and nobody can hold it: it is claimed to be ended.
    choice = choose_claim(alone, capacity=offer(elsewhere=149))
    assert claimed(choice) == "a1"
    assert choice.grant is not None
    assert choice.grant.candidate.verdict is Verdict.NEVER_FITS


def test_room_that_was_kept_for_one_is_free_when_a_smaller_budget_leaves_it_to_another_worker() -> None:
    kept = (
        Deferral("a1", 1, 90, passes=RESERVED_AFTER, higher_passes=CAP),
        Deferral("d1", 1, 60, passes=1),
    )
    lanes = {0: lane(head("c1", 10)), 1: lane(head("a1", 90, finish=1), head("d1", 60, finish=2))}
    choice = choose_claim(lanes, capacity=offer(budget=80, kept_free=30, elsewhere=90), deferrals=kept)
    assert claimed(choice) == "c1"
    assert choice.deferrals == (replace(kept[1], passes=2),)
    # Where nobody else can hold it, it is claimed to be ended when its turn comes, whatever was kept.
    assert claimed(choose_claim({1: lanes[1]}, capacity=offer(budget=80), deferrals=kept)) == "a1"


def test_what_only_has_to_be_ended_needs_no_room() -> None:
    lanes = {0: lane(head("a1", 0)), 1: lane(head("b1", 50))}
    waiting = (Deferral("b1", 1, 50, passes=RESERVED_AFTER, higher_passes=CAP),)
    choice = choose_claim(lanes, capacity=offer(kept_free=100, free_rows=0), deferrals=waiting)
    assert claimed(choice) == "a1"
    assert choice.deferrals == waiting


def test_room_is_kept_for_the_reserved_request() -> None:
    """A flood of small requests of every lane, and one that needs nearly everything."""
    ledger: Deferrals = ()
    skips: dict[int, int] = {}
    kept_free, passed = 30, []
    for number in itertools.count():
        lanes = {
            0: lane(head(f"h{number}", 1), skips=skips.get(0, 0)),
            1: lane(head("a1", 90), head(f"b{number}", 1, finish=10**9), skips=skips.get(1, 0)),
            2: lane(head(f"l{number}", 1), skips=skips.get(2, 0)),
        }
        choice = choose_claim(lanes, capacity=offer(kept_free=kept_free), deferrals=ledger)
        if choice.grant is None:
            break
        if choice.deferrals:
            passed.append(choice.grant.candidate.lane_rank)
        ledger, skips = choice.deferrals, choice.grant.skips
        kept_free += 1
    assert len(passed) == RESERVED_AFTER + CAP
    assert set(passed[-CAP:]) == {0}, "at last only the higher lane passes"
    assert claimed(choose_claim(lanes, capacity=offer(kept_free=10), deferrals=ledger)) == "a1"


def test_a_deferral_is_forgotten_when_its_request_is_gone() -> None:
    ledger = (Deferral("gone", 0, 90, passes=RESERVED_AFTER, higher_passes=CAP),)
    choice = choose_claim({1: lane(head("a1", 10))}, capacity=offer(), deferrals=ledger)
    assert claimed(choice) == "a1"
    assert choice.deferrals == ()


def test_nobody_is_offered_room_by_preemption_that_the_reserved_request_would_get() -> None:
    """The grant is the fourth past the large request, so the other one that lacks bytes is held from now on."""
    lanes = {1: lane(head("a1", 90), head("b1", 50, finish=1), head("c1", 10, finish=2))}
    ledger = (Deferral("a1", 1, 90, passes=RESERVED_AFTER - 1),)
    choice = choose_claim(lanes, capacity=offer(kept_free=60), deferrals=ledger)
    assert claimed(choice) == "c1"
    assert lacking(choice) == [("a1", Verdict.DEFER_NO_ROOM)]


heads = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 60), st.integers(0, 50), st.booleans()),
    max_size=4,
    unique_by=lambda one: one[0],
)


@st.composite
def queues(draw: st.DrawFn) -> dict[int, LaneQueue]:
    lanes = {}
    for rank in draw(st.sets(st.integers(0, 3))):
        waiting = [
            head(f"{tenant}{rank}", tokens, finish=finish, joined=joined)
            for tenant, tokens, finish, joined in draw(heads)
        ]
        lanes[rank] = lane(*waiting, skips=draw(st.integers(0, 6)), virtual_time=draw(st.integers(0, 50)))
    return lanes


@st.composite
def ledgers(draw: st.DrawFn) -> Deferrals:
    names = draw(st.lists(st.sampled_from([f"{t}{r}" for t in "abcd" for r in range(4)]), unique=True))
    passes = sorted((draw(st.integers(0, 6)) for _ in names), reverse=True)
    return tuple(
        Deferral(name, int(name[1]), 10, count, draw(st.integers(0, CAP)))
        for name, count in zip(names, passes, strict=True)
    )


offers = st.builds(
    offer,
    st.integers(0, 60),
    st.integers(0, 40),
    st.integers(-1, 2),
    st.lists(st.integers(0, 30), max_size=3).map(tuple),
    elsewhere=st.sampled_from((0, None)) | st.integers(0, 60),
)


def left_to_others(lanes: Mapping[int, LaneQueue], capacity: Capacity) -> set[str]:
    return {
        one.generation
        for lane_ in lanes.values()
        for one in lane_.heads
        if capacity.room.budget < one.tokens
        and (capacity.longest_elsewhere is None or one.tokens <= capacity.longest_elsewhere)
    }


@given(queues())
def test_with_room_for_all_it_is_the_lanes_and_the_tenants_order(lanes: Mapping[int, LaneQueue]) -> None:
    waiting = {rank: one for rank, one in lanes.items() if one.heads}
    rank, skips = pick_lane(waiting.keys(), {rank: one.skips for rank, one in waiting.items()}, CAP)
    for choice in (choose_claim(lanes), choose_claim(lanes, capacity=offer(10**6))):
        assert (choice.grant is None) == (rank is None)
        assert choice.deferred == choice.deferrals == ()
        if choice.grant is not None and rank is not None:
            assert choice.grant.candidate.lane_rank == rank
            assert choice.grant.service == fair_share.serve(lanes[rank].heads, lanes[rank].virtual_time)
            assert choice.grant.skips == skips


@given(queues(), offers, ledgers())
def test_it_is_the_first_choice_made_again_without_what_is_refused(
    lanes: Mapping[int, LaneQueue], capacity: Capacity, ledger: Deferrals
) -> None:
    """Taking each refused head out by hand and choosing anew among the rest comes to the same."""
    rest = {rank: one for rank, one in lanes.items() if one.heads}
    waiting = {one.generation for lane_ in rest.values() for one in lane_.heads}
    known = forgotten(ledger, waiting - left_to_others(lanes, capacity))
    expected, lacks = None, []
    while rest:
        rank, _ = pick_lane(rest.keys(), {rank: one.skips for rank, one in rest.items()}, CAP)
        assert rank is not None
        tenant = fair_share.serve(rest[rank].heads, rest[rank].virtual_time).tenant
        [tried] = [one for one in rest[rank].heads if one.tenant == tenant]
        verdict = capacity.verdict(tried.tokens)
        held = tried.tokens and held_back(known, tried.generation, rank, CAP)
        if verdict is Verdict.NEVER_FITS or (verdict is Verdict.ADMIT and not held):
            expected = tried.generation
            break
        if not held and verdict is not Verdict.FITS_ELSEWHERE:
            lacks.append((tried.generation, verdict))
        if not held and verdict is Verdict.DEFER_NO_ROW:
            break
        rest[rank] = replace(rest[rank], heads=[one for one in rest[rank].heads if one is not tried])
        rest = {rank: one for rank, one in rest.items() if one.heads}
    choice = choose_claim(lanes, capacity=capacity, deferrals=ledger)
    assert claimed(choice) == expected
    ranks = {one.generation: rank for rank, lane_ in lanes.items() for one in lane_.heads}
    assert lacking(choice) == [
        one for one in lacks if not held_back(choice.deferrals, one[0], ranks[one[0]], CAP)
    ]


@given(queues(), offers, ledgers())
def test_a_refusal_changes_nothing_but_the_ledger(
    lanes: Mapping[int, LaneQueue], capacity: Capacity, ledger: Deferrals
) -> None:
    choice = choose_claim(lanes, capacity=capacity, deferrals=ledger)
    waiting = {one.generation: rank for rank, lane_ in lanes.items() for one in lane_.heads}
    no_room = {name for name, verdict in lacking(choice) if verdict is Verdict.DEFER_NO_ROOM}
    left = left_to_others(lanes, capacity)
    kept = {one.generation for one in ledger if one.generation in waiting} - left
    assert not left & {one.generation for one in choice.deferrals}, "no room is kept for it"
    assert (
        (kept | no_room) - {claimed(choice)} <= {one.generation for one in choice.deferrals} <= set(waiting)
    )
    assert claimed(choice) not in {one.generation for one in choice.deferrals}
    if choice.grant is None:
        passes = {one.generation: one.passes for one in ledger}
        assert all(one.passes == passes.get(one.generation, 0) for one in choice.deferrals)
        return
    candidate, service = choice.grant.candidate, choice.grant.service
    own = lanes[candidate.lane_rank]
    assert service.tenant == candidate.head.tenant
    for one in own.heads:
        if one.tenant != service.tenant:
            tag = service.finishes.get(one.tenant, one.finish)
            assert tag == fair_share.start_tag(one, own.virtual_time), "nobody's start tag moves"
    untouched = {rank for rank in choice.grant.skips if choice.grant.skips[rank] == lanes[rank].skips}
    grown = {rank for rank in choice.grant.skips if choice.grant.skips[rank] == lanes[rank].skips + 1}
    assert untouched | grown | {candidate.lane_rank} == {rank for rank in lanes if lanes[rank].heads}
    if candidate.verdict is Verdict.ADMIT and candidate.head.tokens:
        assert capacity.free_rows > 0
        assert capacity.room.fits(candidate.bytes, capacity.decoding)


#: With little memory, beside a worker that has more.
small_offers = st.builds(
    offer, st.integers(0, 30), st.integers(0, 10), st.integers(-1, 2), elsewhere=st.integers(30, 60)
)


@given(queues(), small_offers, ledgers())
def test_what_is_left_to_another_worker_changes_nothing_for_the_others(
    lanes: Mapping[int, LaneQueue], capacity: Capacity, ledger: Deferrals
) -> None:
    """As if it waited nowhere: the same is claimed, and the ledger, its bounds with it, is the same."""
    left = left_to_others(lanes, capacity)
    without = {
        rank: replace(one, heads=[each for each in one.heads if each.generation not in left])
        for rank, one in lanes.items()
    }
    choice = choose_claim(lanes, capacity=capacity, deferrals=ledger)
    alone = choose_claim(without, capacity=capacity, deferrals=ledger)
    assert (claimed(choice), choice.deferrals) == (claimed(alone), alone.deferrals)
    assert choice.deferred == alone.deferred
    assert claimed(choice) not in left
    if choice.grant is not None and alone.grant is not None:
        untried = choice.grant.skips.keys() - alone.grant.skips.keys()
        assert alone.grant.skips.items() <= choice.grant.skips.items()
        assert all(choice.grant.skips[rank] >= lanes[rank].skips for rank in untried)
