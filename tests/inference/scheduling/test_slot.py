"""The speculative slot: the golden schedules tick by tick, every edge of a grant, and the bounds on a wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.rotation import BACKLOG_CAP
from inference.scheduling.slot import (
    Offer,
    RingEntry,
    SliceEnd,
    SlotState,
    grant,
    leave,
    next_entry,
    offer,
    peek,
    sliced,
)
from inference.scheduling.tick import Action, PrefillLimits, TickDecision, TickState, decide_tick

VECTORS = json.loads((Path(__file__).parent / "vectors" / "rotation.json").read_text())
HIGH, NORMAL, LOW = range(3)
CHUNK = 8


@dataclass
class Bench:
    """Jobs at the slot under the tick's rule: applies what the rules return, decides nothing.

    ``left``: slices that each job still needs. ``unwanted``: jobs found cancelled, or declined, when they are popped.
    """

    budget: int
    left: dict[str, int]
    decoding: int = 0
    unwanted: set[str] = field(default_factory=set)
    state: SlotState = field(default_factory=SlotState)
    schedule: list[list[Any]] = field(default_factory=list)
    carried: TickDecision = field(default_factory=lambda: TickDecision(Action.IDLE, 0, False, False))

    def offer(self, key: str, lane_rank: int = NORMAL) -> Offer:
        answer, self.state = offer(self.state, key, lane_rank, self.budget)
        if answer is Offer.TAKES_SLOT:
            self.schedule.append([key, 0])
        return answer

    def tick(self) -> Action:
        front = self.state.holder or peek(self.state)
        self.carried = decide_tick(
            TickState(
                decoding=self.decoding,
                speculative_pending=self.state.pending,
                speculative_prompt_tokens=CHUNK if front is not None and not front.started else 0,
                limits=PrefillLimits(CHUNK, 3),
                prefill_debt=self.carried.prefill_debt,
                speculative_yielded=self.carried.speculative_yielded,
                slice_prompt_last=self.carried.slice_prompt_last,
            )
        )
        if self.carried.action is Action.SPECULATE:
            self._slice()
        return self.carried.action

    def _slice(self) -> None:
        while self.state.holder is None:
            entry, self.state = next_entry(self.state)
            if entry is None:
                return
            if entry.key not in self.unwanted:
                self.state = grant(self.state, entry, self.budget)
                self.schedule.append([entry.key, 0])
        key = self.state.holder.key
        self.left[key] -= 1
        self.schedule[-1][1] += 1
        self.state = sliced(self.state)[1] if self.left[key] else leave(self.state, key)


@pytest.mark.parametrize("decoding", [0, 3])
@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_the_golden_schedules(case: dict[str, Any], decoding: int) -> None:
    """Alone and beside a batch: what else runs changes when a slice runs, never whose it is."""
    jobs = case["jobs"]
    bench = Bench(case["budget"], {job["tag"]: 1 + job["rounds"] for job in jobs}, decoding)
    first, *others = (job["tag"] for job in jobs)
    assert bench.offer(first) is Offer.TAKES_SLOT
    assert [bench.offer(tag) for tag in others] == [Offer.WAITS] * len(others)
    bench.unwanted = {job["tag"] for job in jobs if job.get("cancelled")}
    for job in jobs:
        if job.get("swept"):
            bench.state = leave(bench.state, job["tag"])
    while bench.state.pending:
        bench.tick()
    assert bench.schedule == case["schedule"]


# Offers


def at(*offers: tuple[str, int], budget: int = 2) -> SlotState:
    state = SlotState()
    for key, lane_rank in offers:
        _, state = offer(state, key, lane_rank, budget)
    return state


def run(state: SlotState, slices: int = 1) -> tuple[SliceEnd, SlotState]:
    end = SliceEnd.HOLDS
    for _ in range(slices):
        end, state = sliced(state)
    return end, state


def ring_of(state: SlotState) -> list[str]:
    return [entry.key for entry in state.ring]


def test_an_idle_slot_is_taken_at_once_even_without_rotation() -> None:
    for budget in (0, 1, 8):
        answer, state = offer(SlotState(), "a", NORMAL, budget)
        assert answer is Offer.TAKES_SLOT
        assert state.holder is not None
        assert (state.holder.key, state.holder.slices, state.holder.budget) == ("a", 0, budget)
        assert not state.holder.started
        assert state.pending


def test_two_wait_behind_the_holder_and_the_third_is_classic_for_good() -> None:
    state = at(("a", NORMAL), ("b", NORMAL), ("c", HIGH))
    assert ring_of(state) == ["b", "c"]
    answer, after = offer(state, "d", HIGH, 2)
    assert answer is Offer.CLASSIC
    assert after == state


def test_nobody_waits_for_a_slot_that_does_not_rotate() -> None:
    state = at(("a", NORMAL), budget=0)
    assert offer(state, "b", HIGH, 8) == (Offer.CLASSIC, state), "the running grant's budget counts"
    _, state = run(state, 99)
    assert state.holder is not None


def test_a_waiter_is_admitted_by_the_running_grant_s_budget_although_the_setting_became_0() -> None:
    answer, state = offer(at(("a", NORMAL), budget=2), "b", NORMAL, 0)
    assert answer is Offer.WAITS
    assert ring_of(state) == ["b"]


def test_between_a_park_and_the_next_grant_the_setting_decides_who_may_wait() -> None:
    end, state = run(at(("a", NORMAL), ("b", NORMAL), budget=1), 2)
    assert (end, ring_of(state)) == (SliceEnd.PARKED, ["b", "a"])
    assert offer(state, "c", NORMAL, 1)[0] is Offer.CLASSIC
    state = leave(state, "b")
    assert offer(state, "c", NORMAL, 1)[0] is Offer.WAITS
    assert offer(state, "c", NORMAL, 0)[0] is Offer.CLASSIC


# Slices


def test_a_generation_alone_never_rotates_and_makes_way_at_the_first_end_after_somebody_waits() -> None:
    end, state = run(at(("a", NORMAL), budget=2), 50)
    assert end is SliceEnd.HOLDS
    assert state.holder is not None
    assert state.holder.slices == 50
    _, state = offer(state, "b", NORMAL, 2)
    end, state = run(state)
    assert end is SliceEnd.PARKED
    assert [(entry.key, entry.started) for entry in state.ring] == [("b", False), ("a", True)]


def test_slice_0_of_a_direct_admission_is_not_tested_and_a_waiter_s_is() -> None:
    end, state = run(at(("a", NORMAL), ("b", NORMAL), budget=1))
    assert end is SliceEnd.HOLDS
    end, state = run(state)
    assert end is SliceEnd.PARKED
    state = promoted(state, 1)
    assert state.holder is not None
    assert state.holder.key == "b"
    end, state = run(state)
    assert (end, ring_of(state)) == (SliceEnd.PARKED, ["a", "b"])


def promoted(state: SlotState, budget: int) -> SlotState:
    entry, state = next_entry(state)
    assert entry is not None
    return grant(state, entry, budget)


def test_a_finished_generation_frees_the_slot_whatever_its_grant() -> None:
    state = leave(at(("a", NORMAL), ("b", NORMAL), budget=1), "a")
    assert (state.holder, ring_of(state), state.ring[0].skips) == (None, ["b"], 0)


def test_a_parked_job_goes_on_with_rounds_and_starts_its_count_anew() -> None:
    _, state = run(at(("a", NORMAL), ("b", NORMAL), budget=3), 3)
    state = promoted(promoted_away(state, "b"), 5)
    assert state.holder is not None
    assert (state.holder.key, state.holder.slices, state.holder.budget) == ("a", 0, 5)
    assert state.holder.started


def promoted_away(state: SlotState, key: str) -> SlotState:
    """After a grant decision that took ``key``, which ended then and there."""
    entry, state = next_entry(state)
    assert entry is not None
    assert entry.key == key
    return state


def test_the_ring_holds_one_more_than_may_wait_only_between_a_park_and_the_next_grant() -> None:
    state = at(("a", NORMAL), ("b", NORMAL), ("c", NORMAL), budget=2)
    _, state = run(state, 2)
    assert ring_of(state) == ["b", "c", "a"]
    assert offer(state, "d", HIGH, 2)[0] is Offer.CLASSIC
    assert ring_of(promoted(state, 2)) == ["c", "a"]


def test_rotation_switched_off_lets_the_ring_run_empty_by_turns_of_one_slice() -> None:
    _, state = run(at(("a", NORMAL), ("b", NORMAL), ("c", NORMAL), budget=2), 2)
    turns = []
    for _ in range(4):
        state = promoted(state, 0)
        assert state.holder is not None
        turns.append(state.holder.key)
        assert offer(state, "d", HIGH, 0)[0] is Offer.CLASSIC
        end, state = run(state)
        assert end is SliceEnd.PARKED
    assert turns == ["b", "c", "a", "b"]
    for gone in ("c", "a"):
        state = leave(state, gone)
    end, state = run(promoted(state, 0), 40)
    assert end is SliceEnd.HOLDS, "the last one of the ring holds the slot to its end"


def test_a_changed_budget_holds_from_the_next_grant() -> None:
    state = at(("a", NORMAL), ("b", NORMAL), budget=2)
    _, state = run(state, 2)
    state = promoted(state, 4)
    ends = []
    for _ in range(4):
        end, state = run(state)
        ends.append(end)
    assert ends == [SliceEnd.HOLDS] * 3 + [SliceEnd.PARKED]


# Grant decisions


def skips_of(state: SlotState) -> list[tuple[str, int]]:
    return [(entry.key, entry.skips) for entry in state.ring]


def test_a_decision_skips_all_others_also_if_the_chosen_one_is_dropped() -> None:
    _, state = run(at(("a", LOW), ("b", HIGH), ("c", NORMAL)), 2)
    state = promoted_away(state, "b")
    assert skips_of(state) == [("c", 1), ("a", 1)]
    state = promoted_away(state, "c")
    assert skips_of(state) == [("a", 2)]
    assert promoted_away(state, "a") == SlotState()


def test_who_leaves_while_waiting_skips_nobody() -> None:
    state = at(("a", NORMAL), ("b", HIGH), ("c", NORMAL))
    assert skips_of(leave(state, "b")) == [("c", 0)]
    _, parked = run(state, 2)
    assert skips_of(leave(parked, "a")) == [("b", 0), ("c", 0)]


def test_the_holder_that_leaves_frees_the_slot() -> None:
    state = leave(at(("a", NORMAL), ("b", NORMAL)), "a")
    assert (state.holder, ring_of(state), state.keys) == (None, ["b"], ("b",))


def test_who_has_nothing_to_do_with_the_slot_leaves_it_as_it_is() -> None:
    state = at(("a", NORMAL), ("b", NORMAL))
    assert leave(state, "z") == state
    assert state.keys == ("a", "b")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=3))
def test_what_is_seen_next_is_what_is_taken_next(entries: list[tuple[int, int, bool]]) -> None:
    ring = tuple(
        RingEntry(lane_rank=rank, skips=skips, key=str(number), started=started)
        for number, (rank, skips, started) in enumerate(entries)
    )
    entry, after = next_entry(SlotState(None, ring))
    assert entry == peek(SlotState(None, ring))
    assert set(after.keys) == set(SlotState(None, ring).keys) - ({entry.key} if entry else set())


@pytest.mark.parametrize(("beside_it", "expected"), [([HIGH], 3), ([NORMAL, HIGH], 4)])
def test_a_parked_job_of_a_normal_lane_is_granted_on_decision_3_or_4_however_many_high_ones_come(
    beside_it: list[int], expected: int
) -> None:
    """On the fourth only if another was skipped as long."""
    state = at(("it", NORMAL), *((f"other{number}", rank) for number, rank in enumerate(beside_it)))
    _, state = run(state, 2)
    assert ring_of(state)[-1] == "it"
    granted: list[str] = []
    while "it" not in granted and len(granted) < 9:
        state = promoted(state, 1)
        assert state.holder is not None
        granted.append(state.holder.key)
        for number in range(9):
            _, state = offer(state, f"high{len(granted)}.{number}", HIGH, 1)
        _, state = run(state)
    assert len(granted) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: sliced(SlotState()), "nobody holds the slot"),
        (lambda: next_entry(at(("a", NORMAL))), "a holds the slot"),
        (
            lambda: grant(
                at(("a", NORMAL)), RingEntry(lane_rank=NORMAL, skips=0, key="b", started=False), budget=2
            ),
            "a holds the slot",
        ),
    ],
)
def test_a_step_out_of_order_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


# Bounds


@dataclass
class Wait:
    """One in the ring. ``rest``: slices that were left of the running grant when it joined. The others: since then."""

    rest: int
    decisions: int = 0
    slices: int = 0


#: One step of a day: an offer in this lane, the end or cancellation of one (by number), a slice, and what it does.
Steps = list[tuple[int | None, int | None, bool, bool]]
steps: st.SearchStrategy[Steps] = st.lists(
    st.tuples(
        st.none() | st.integers(0, 2),
        st.none() | st.integers(0, 6),
        st.booleans(),
        st.sampled_from((False, False, False, True)),
    ),
    max_size=80,
)


@given(steps, st.lists(st.sampled_from((0, 1, 2, 8)), min_size=1, max_size=4))
def test_whatever_happens_each_wait_ends_within_three_grants_of_others(
    day: Steps, settings: list[int]
) -> None:
    """Offers, cancellations, ends, drops and changed settings; ``setting`` changes every twenty steps.

    A parked job is granted after at most ``3 × max(1, budget)`` slices. A waiter, which may come in the middle of a
    grant, after as many and what was left of that one.
    """
    longest = max(1, *settings)
    state, waits = SlotState(), dict[str, Wait]()
    for number, (lane_rank, leaver, finishes, drops) in enumerate(day):
        setting = settings[number // 20 % len(settings)]
        if leaver is not None and leaver < len(state.keys):
            state = leave(state, state.keys[leaver])
        if lane_rank is not None:
            holder = state.holder
            answer, state = offer(state, f"g{number}", lane_rank, setting)
            if answer is Offer.WAITS:
                over = 0 if holder is None else max(1, holder.budget - holder.slices, holder.direct * 2)
                waits[f"g{number}"] = Wait(rest=over)
        if state.holder is None:
            entry, state = next_entry(state)
            for key in ring_of(state):
                waits[key].decisions += 1
                assert waits[key].decisions <= 3
            if entry is not None and not drops:
                state = grant(state, entry, setting)
        if state.holder is not None:
            key = state.holder.key
            if finishes and drops:
                state = leave(state, key)
            else:
                end, state = sliced(state)
                assert (end is SliceEnd.HOLDS) == (state.holder is not None)
            for other in ring_of(state):
                if other == key:
                    waits[key] = Wait(rest=0)
                    continue
                one = waits[other]
                one.slices += 1
                assert one.slices <= one.rest + 3 * longest
        assert len(state.ring) <= BACKLOG_CAP + (state.holder is None)
        assert len(set(state.keys)) == len(state.keys) <= 3
        waits = {key: wait for key, wait in waits.items() if key in ring_of(state)}
