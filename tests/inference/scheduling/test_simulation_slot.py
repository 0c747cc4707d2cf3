"""The whole scheduler at work with a speculative slot: nobody waits longer for it, or because of it, than is promised.

What a round yields, when the drafter is lost and what the setting reads are drawn; the rules are the real ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.prefill import ParkedPrompt
from inference.scheduling.quiet import PromptPlan
from inference.scheduling.rotation import BACKLOG_CAP
from inference.scheduling.slot import (
    Offer,
    SliceEnd,
    SlotState,
    grant,
    leave,
    next_entry,
    offer,
    peek,
    sliced,
)
from inference.scheduling.tick import Action, PrefillLimits, TickState, is_producing
from tests.inference.scheduling.simulation import (
    AMPLE,
    Machine,
    Request,
    Sequence,
    Shape,
    Trouble,
    Worker,
    days,
    few,
    flood,
    floods,
    machines,
    shapes,
)

#: A grant's slices as the setting may read: no rotation, and the shortest grant up to the default.
SETTINGS = (0, 1, 2, 8)
#: The tenant whose entitlement forbids speculation.
FORBIDDEN = "c"


@dataclass
class Wait:
    """One in the ring. ``most_slices``: others' that may still come first. ``decisions``: that have passed it over."""

    most_slices: int
    decisions: int = 0


@dataclass
class SlotWorker(Worker):
    """A worker with a drafter.

    ``setting``: what a grant's slices read now. ``longest``: the most that they ever read. ``yields``: what is accepted
    in each next round. ``drafter_lost``: it can be given to nobody. ``late``: cancelled after the tick's sweep.
    """

    setting: int = 2
    longest: int = 8
    yields: Iterator[int] = field(default_factory=lambda: itertools.repeat(1))
    drafter_lost: bool = False
    slot: SlotState = field(default_factory=SlotState)
    late: list[Request] = field(default_factory=list)
    offered: set[int] = field(default_factory=set)
    waits: dict[str, Wait] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)
    since_slice: int = 0
    slot_since_decode: bool = False

    # Its sequences

    @property
    def decoding(self) -> list[Sequence]:
        return [one for one in super().decoding if one.request.name not in self.slot.keys]

    @property
    def parked(self) -> list[Sequence]:
        return [one for one in super().parked if one.request.name not in self.slot.keys]

    def _of(self, key: str) -> Sequence:
        [sequence] = [one for one in self.running if one.request.name == key]
        return sequence

    def _leave(self, sequence: Sequence) -> None:
        super()._leave(sequence)
        self.slot = leave(self.slot, sequence.request.name)

    # One tick

    def tick(self) -> Action:
        """``late`` is filled by the test between two ticks: it is popped in this one, or swept in the next."""
        late = list(self.late)
        action = super().tick()
        for request in late:
            self.cancel(request)
            self.late.remove(request)
        return action

    def _act(self) -> Action:
        self.offer_slot()
        return super()._act()

    def offer_slot(self) -> None:
        for sequence in self.parked:
            if sequence.order not in self.offered and sequence.remaining <= self.machine.limits.chunk_tokens:
                self.offered.add(sequence.order)
                self._offer(sequence)

    def _offer(self, sequence: Sequence) -> None:
        request, holder = sequence.request, self.slot.holder
        if request.tenant == FORBIDDEN or self.drafter_lost:
            return
        answer, self.slot = offer(self.slot, request.name, request.lane, self.setting)
        if answer is not Offer.CLASSIC:
            sequence.chunk_by = 0
        if answer is Offer.WAITS:
            rest = 0 if holder is None else max(1, holder.budget - holder.slices, 2 * holder.direct)
            self.waits[request.name] = Wait(rest + 3 * max(1, self.longest))

    def _prompts(self, parked: list[Sequence]) -> list[ParkedPrompt]:
        return [
            replace(prompt, last_chunk_apart=prompt.order not in self.offered)
            for prompt in super()._prompts(parked)
        ]

    def _next_slice(self) -> tuple[bool, int]:
        """Whether there is one, and its prompt tokens."""
        front = self.slot.holder or peek(self.slot)
        return front is not None, self._of(front.key).remaining if front is not None else 0

    def _producing(self, decoding: int) -> bool:
        return is_producing(decoding, *self._next_slice())

    def _tick_state(self, decoding: int, prefills: int, plan: PromptPlan) -> TickState:
        pending, prompt_tokens = self._next_slice()
        return replace(
            super()._tick_state(decoding, prefills, plan),
            speculative_pending=pending,
            speculative_prompt_tokens=prompt_tokens,
        )

    def _slice(self) -> bool:
        if self.slot.holder is None and not self._promote():
            return False
        assert self.slot.holder is not None
        key = self.slot.holder.key
        sequence = self._of(key)
        request = sequence.request
        produced = 1
        if sequence.remaining:
            sequence.remaining = 0
        else:
            produced = min(1 + next(self.yields), request.length - request.produced)
        finished, parked = request.produced + produced == request.length, False
        if finished:
            self.slot = leave(self.slot, key)
        else:
            end, self.slot = sliced(self.slot)
            parked = end is SliceEnd.PARKED
        self.slices[key] = self.slices.get(key, 0) + 1
        self._check_waits(key, parked=parked)
        for _ in range(produced):
            self._produce(sequence)
        assert bool(request.ended) == finished
        return True

    def _promote(self) -> bool:
        """One grant decision; False if whoever was chosen cannot take the slot."""
        entry, self.slot = next_entry(self.slot)
        assert entry is not None
        for other in self.slot.ring:
            self.waits[other.key].decisions += 1
            assert self.waits[other.key].decisions <= 3, "it is passed over too often"
        sequence = self._of(entry.key)
        if sequence.request in self.late:
            self.cancel(sequence.request)
            return False
        if self.drafter_lost:
            return False
        self.slot = grant(self.slot, entry, self.setting)
        return True

    # What is promised

    def _check_waits(self, ran: str, parked: bool) -> None:
        for other in self.slot.ring:
            if other.key != ran:
                self.waits[other.key].most_slices -= 1
                assert self.waits[other.key].most_slices >= 0, "it waits too long for the slot"
        if parked:
            self.waits[ran] = Wait(3 * max(1, self.longest))

    def _check_tick(self, action: Action, rows_decoded: bool) -> None:
        if action is Action.SPECULATE:
            self.slot_since_decode = True
        super()._check_tick(action, rows_decoded)
        if action is Action.DECODE or not rows_decoded:
            self.slot_since_decode = False
        self.since_slice = 0 if action is Action.SPECULATE or not self.slot.pending else self.since_slice + 1
        assert self.since_slice <= 2 * self.machine.limits.interval + 2, "the slot starves"
        assert len(self.slot.ring) <= BACKLOG_CAP + (self.slot.holder is None)
        assert len(self.slot.keys) <= 3, "more caches live than are allowed to"
        assert set(self.slot.keys) <= {one.request.name for one in self.running}

    @property
    def most_others(self) -> int:
        return 3 if self.slot_since_decode else 1

    def _longest_gap(self, parked: int) -> int:
        """Twice as long, because slices alternate with all else; and twice, because slices 0 do with prompts."""
        return 4 * super()._longest_gap(parked)

    def _longest_run(self, remaining: int, tokens: int) -> int:
        """A token each slice of its own, three grants of others between, and a slice in its own bound."""
        slices = (tokens + 1) * (1 + 3 * max(1, self.longest)) + 4 * max(1, self.longest)
        return super()._longest_run(remaining, 0) + slices * (2 * self.machine.limits.interval + 3)

    def run_dry(self) -> None:
        super().run_dry()
        assert self.slot == SlotState()


# Trouble of every kind


@dataclass(frozen=True)
class Drafting:
    """What happens at the slot: for each tick, cyclically, what the setting reads and whether the drafter is lost; for
    each round what is accepted; and who of the slot is cancelled (by place; 0 is the holder), and when."""

    settings: list[int]
    lost: list[bool]
    yields: list[int]
    swept: list[int | None]
    popped: list[int | None]


def drafting(*, losses: bool = True, cancels: bool = True) -> st.SearchStrategy[Drafting]:
    who = st.lists(st.none() | st.integers(0, 2), min_size=1, max_size=6) if cancels else st.just([None])
    return st.builds(
        Drafting,
        settings=st.lists(st.sampled_from(SETTINGS), min_size=1, max_size=5),
        lost=st.lists(st.booleans(), min_size=1, max_size=6) if losses else st.just([False]),
        yields=st.lists(st.integers(0, 4), min_size=1, max_size=6),
        swept=who,
        popped=who,
    )


def live(machine: Machine, day: list[Trouble], slot: Drafting) -> SlotWorker:
    worker = SlotWorker(machine, yields=itertools.cycle(slot.yields), longest=max(slot.settings))
    drawn = zip(
        day,
        itertools.cycle(slot.settings),
        itertools.cycle(slot.lost),
        itertools.cycle(slot.swept),
        itertools.cycle(slot.popped),
        strict=False,
    )
    for (arrivals, cancels), setting, lost, swept, popped in drawn:
        worker.setting, worker.drafter_lost = setting, lost
        for shape in arrivals:
            worker.arrive(shape.tenant, shape.lane, shape.prompt, shape.max_tokens, shape.length)
        for number in cancels:
            if worker.requests:
                worker.cancel(worker.requests[number % len(worker.requests)])
        if swept is not None and swept < len(worker.slot.keys):
            worker.cancel(worker._of(worker.slot.keys[swept]).request)
        if popped is not None and popped < len(worker.slot.ring):
            worker.late.append(worker._of(worker.slot.ring[popped].key).request)
        worker.tick()
    worker.run_dry()
    return worker


#: Prompts of one chunk, so that nearly all that arrives wants the slot at once.
eager = shapes(prompt=(1, 8), tokens=(1, 40))


@few
@given(machines(), days(shapes(), cancels=1), drafting())
def test_everything_that_arrives_ends_whatever_happens_at_the_slot(
    machine: Machine, day: list[Trouble], slot: Drafting
) -> None:
    live(machine, day, slot)


@pytest.mark.slow
@few
@given(machines(budgets=AMPLE, chunks=(8, 24)), days(eager, crowd=8), drafting(cancels=False))
def test_floods_of_eligible_sequences_are_all_served(
    machine: Machine, day: list[Trouble], slot: Drafting
) -> None:
    worker = live(machine, day, slot)
    assert all(one.ended == "completed" for one in worker.requests)


@pytest.mark.slow
@few
@given(machines(budgets=AMPLE, chunks=(8, 24)), days(eager, crowd=4, cancels=4), drafting())
def test_f16_storms_of_cancelled_waiters_and_parked_jobs_leave_nothing_behind(
    machine: Machine, day: list[Trouble], slot: Drafting
) -> None:
    live(machine, day, slot)


@few
@given(machines(budgets=AMPLE), days(eager, crowd=4), drafting())
def test_beside_the_starving_baseline_everything_still_ends(
    machine: Machine, day: list[Trouble], slot: Drafting
) -> None:
    live(replace(machine, limits=replace(machine.limits, interval=0)), day, slot)


# Floods without an end


@pytest.mark.slow
@few
@given(
    machines(budgets=AMPLE, chunks=(8, 24)),
    floods,
    st.integers(1, 40),
    st.sampled_from(SETTINGS),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_a_low_generation_ends_at_the_slot_while_higher_lanes_arrive_for_ever(
    machine: Machine, saturated: dict[int, list[Shape]], tokens: int, setting: int, yields: list[int]
) -> None:
    worker = SlotWorker(replace(machine, rows=5), setting=setting, yields=itertools.cycle(yields))
    high = {lane: itertools.cycle(saturated[lane]) for lane in (0, 1)}
    for _ in range(10):
        flood(worker, high)
        worker.tick()
    request = worker.arrive("a", 2, 4, tokens, tokens)
    for _ in range(20_000):
        if request.ended:
            break
        flood(worker, high)
        worker.tick()
    assert request.ended == "completed"


@few
@given(
    st.integers(2, 12),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(1, 50),
    st.sampled_from(SETTINGS),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.just([False]) | st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_a_lone_prompt_beside_streams_and_slot_jobs_without_an_end_has_its_first_token_in_time(
    chunk: int,
    interval: int,
    streams: int,
    prompt: int,
    setting: int,
    lengths: list[int],
    leaving: list[bool],
) -> None:
    """``C × (2 × interval + 2)`` and open debt, for its chunks and for the slices 0 that take turns with them.

    Two more a chunk where waiters leave before their slice 0: the DECODE in which the prompt gave way, and a round.
    """
    worker = SlotWorker(Machine(PrefillLimits(chunk, interval), rows=64, preempts=False), setting=setting)
    classic = [worker.arrive(FORBIDDEN, 2, 1, 10_000, 10_000) for _ in range(streams)]
    while not all(stream.produced for stream in classic):
        worker.tick()
    tokens, leaves = itertools.cycle(lengths), itertools.cycle(leaving)

    def keep_the_slot_full() -> None:
        if next(leaves):
            for entry in worker.slot.ring:
                if not entry.started:
                    worker.cancel(worker._of(entry.key).request)
        while not worker.slot.pending or (setting and len(worker.slot.ring) < BACKLOG_CAP):
            worker.arrive("a", 1, chunk, *[next(tokens)] * 2)
            worker.claim()
            worker.offer_slot()

    keep_the_slot_full()
    probe = worker.arrive(FORBIDDEN, 0, prompt, 5, 5)
    debt = worker.last.prefill_debt
    ticks = slices_0 = 0
    while not probe.produced:
        waiting = {one.request for one in worker.running if one.remaining}
        worker.tick()
        ticks += 1
        slices_0 += sum(bool(one.produced) for one in waiting if one is not probe)
        keep_the_slot_full()
    chunks = math.ceil(prompt / chunk)
    assert slices_0 <= chunks + 1
    given_way = 2 * chunks * any(leaving)
    assert ticks <= (chunks + slices_0) * (2 * interval + 2) + given_way + 2 * math.ceil(debt / chunk)


# By example


def jain(shares: list[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def three_long_streams(setting: int) -> tuple[SlotWorker, list[int]]:
    worker = SlotWorker(Machine(PrefillLimits(8, 4)), setting=setting)
    streams = [worker.arrive("a", 1, 8, 10_000, 10_000) for _ in range(3)]
    for _ in range(400):
        worker.tick()
    return worker, [worker.slices.get(stream.name, 0) for stream in streams]


@pytest.mark.parametrize("setting", [1, 2, 8])
def test_three_long_streams_share_the_rounds_evenly(setting: int) -> None:
    worker, shares = three_long_streams(setting)
    assert jain(shares) >= 0.99
    assert max(shares) - min(shares) <= setting + 1
    assert not worker.decoding


def test_without_rotation_the_first_one_keeps_the_slot_and_the_others_decode() -> None:
    worker, shares = three_long_streams(0)
    assert shares[1:] == [0, 0]
    assert len(worker.decoding) == 2
    assert all(stream.produced > 100 for stream in worker.requests)


def test_a_lost_drafter_sends_its_sessions_to_the_batch_with_all_that_they_have() -> None:
    worker, _ = three_long_streams(2)
    before = [stream.produced for stream in worker.requests]
    worker.drafter_lost = True
    while worker.slot.pending:
        worker.tick()
    assert len(worker.decoding) == 3
    for _ in range(10):
        worker.tick()
    assert all(stream.produced >= start + 10 for stream, start in zip(worker.requests, before, strict=True))


def test_c8_a_stream_beside_a_slot_job_and_long_prompts_never_waits_for_more_than_three_other_ticks() -> None:
    worker = SlotWorker(Machine(PrefillLimits(8, 1), rows=16), setting=2)
    stream = worker.arrive(FORBIDDEN, 2, 4, 200, 200)
    while not stream.produced:
        worker.tick()
    for _ in range(3):
        worker.arrive("a", 1, 8, 500, 500)
    for _ in range(4):
        worker.arrive(FORBIDDEN, 0, 400, 4, 4)
    actions = [worker.tick() for _ in range(200)]
    assert {Action.PREFILL, Action.SPECULATE, Action.DECODE} == set(actions)
    gaps = [
        len(list(run)) for decodes, run in itertools.groupby(actions, Action.DECODE.__eq__) if not decodes
    ]
    assert max(gaps) == 3
