"""Prompt ticks while nothing streams: who runs how much by example, the bounds by simulation, and what it saves."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.scheduling.prefill import ParkedPrompt, PrefillLedger
from inference.scheduling.quiet import SHORTEST_TAIL, PromptPlan, pick_quiet, plan_prompts
from inference.scheduling.tick import Action, PrefillLimits
from tests.inference.scheduling.simulation import Machine, Worker

CHUNK, QUIET, CAP = 64, 256, 4
LIMITS = PrefillLimits(CHUNK, 2, quiet_tokens=QUIET)


@dataclass
class Waiting:
    """One prompt of the simulation, and how long it has gone without a chunk."""

    prompt: ParkedPrompt
    unserved: int = 0
    bound: int = 0


@dataclass
class Quiet:
    """Prompts that come, get what the rule says, and leave; each answer is one token, so that nothing ever streams."""

    chunk: int = CHUNK
    quiet: int = QUIET
    ledger: PrefillLedger = field(default_factory=PrefillLedger)
    waiting: list[Waiting] = field(default_factory=list)
    admitted: int = 0

    def admit(self, length: int, rank: int = 1, *, begun: bool = False, apart: bool = False) -> int:
        self.admitted += 1
        prompt = ParkedPrompt(self.admitted, rank, length, begun=begun, last_chunk_apart=apart)
        self.waiting.append(Waiting(prompt))
        return self.admitted

    @property
    def parked(self) -> list[ParkedPrompt]:
        return [entry.prompt for entry in self.waiting]

    def plan(self) -> PromptPlan:
        return pick_quiet(self.parked, self.ledger, self.chunk, self.quiet, CAP)

    def grant(self) -> tuple[tuple[int, ...], int]:
        """Run one tick: the admission numbers that shared it, and the most that was run of each."""
        plan = self.plan()
        self.ledger = plan.ledger
        served = tuple(self.parked[index].order for index in plan.indices)
        for entry in self.waiting:
            entry.unserved += 1
        for index in plan.indices:
            entry = self.waiting[index]
            entry.unserved = entry.bound = 0
            left = entry.prompt.remaining - plan.tokens
            entry.prompt = replace(entry.prompt, remaining=left, begun=True)
        self.waiting = [entry for entry in self.waiting if entry.prompt.remaining > 0]
        return served, plan.tokens

    def grants(self, count: int) -> list[tuple[tuple[int, ...], int]]:
        return [self.grant() for _ in range(count)]


# Which rule is asked


def planned(*, producing: bool, last: Action, limits: PrefillLimits = LIMITS) -> PromptPlan:
    return plan_prompts([ParkedPrompt(1, 1, 1000)], PrefillLedger(), limits, producing=producing, last=last)


@pytest.mark.parametrize("last", Action)
def test_beside_streams_a_prompt_tick_is_a_chunk_at_most(last: Action) -> None:
    plan = planned(producing=True, last=last)
    assert (plan.indices, plan.tokens, plan.padded, plan.held) == ((0,), CHUNK, CHUNK, 0)


def test_while_nothing_streams_a_prompt_tick_runs_more() -> None:
    for last in (Action.PREFILL, Action.DECODE, Action.SPECULATE):
        assert planned(producing=False, last=last).padded == QUIET


def test_the_first_prompt_tick_after_idling_is_a_chunk_so_that_those_who_come_with_it_are_seen() -> None:
    assert planned(producing=False, last=Action.IDLE).padded == CHUNK


def test_where_chunks_are_large_a_quiet_tick_is_one() -> None:
    for quiet_tokens in (0, CHUNK):
        limits = PrefillLimits(CHUNK, 2, quiet_tokens=quiet_tokens)
        assert planned(producing=False, last=Action.PREFILL, limits=limits).padded == CHUNK


def test_nothing_parked_grants_nothing() -> None:
    plan = pick_quiet((), PrefillLedger(skips={0: 3}, rotation=(7,)), CHUNK, QUIET)
    assert (plan.indices, plan.padded, dict(plan.ledger.skips), plan.ledger.rotation) == ((), 0, {}, ())


# Who runs how much


def test_a_lone_prompt_runs_in_ticks_of_the_quiet_size() -> None:
    quiet = Quiet()
    alone = quiet.admit(600)
    assert quiet.grants(3) == [((alone,), 256), ((alone,), 88), ((alone,), 256)]
    assert not quiet.waiting


def test_prompts_that_wait_together_come_down_to_their_tails_and_end_together() -> None:
    quiet = Quiet()
    first, second = quiet.admit(176, begun=True), quiet.admit(240)
    assert quiet.grants(3) == [((first,), 48), ((second,), 112), ((first, second), 128)]
    assert not quiet.waiting


def test_long_prompts_take_turns_until_they_are_a_turn_away_from_their_tails() -> None:
    quiet = Quiet()
    first, second = quiet.admit(500), quiet.admit(500)
    assert [served for served, _ in quiet.grants(5)] == [
        (first,),
        (second,),
        (first,),
        (second,),
        (first, second),
    ]


def test_a_newcomer_that_fits_a_chunk_is_not_held_and_ends_whoever_was() -> None:
    quiet = Quiet()
    first, second, _ = quiet.admit(80, begun=True), quiet.admit(300), quiet.admit(300)
    assert quiet.plan().held == 1
    assert quiet.grant() == ((second,), 215)
    newcomer = quiet.admit(30)
    assert quiet.grant() == ((first, second, newcomer), 85)


def test_nobody_is_held_for_prompts_that_are_far_from_their_end() -> None:
    quiet = Quiet()
    first = quiet.admit(80, begun=True)
    quiet.admit(5000)
    assert quiet.plan().held == 0
    assert quiet.grant() == ((first,), 80)


def test_nobody_is_held_for_longer_than_a_round_whoever_comes_meanwhile() -> None:
    quiet = Quiet()
    first = quiet.admit(SHORTEST_TAIL, begun=True)
    for _ in range(2):
        quiet.admit(300)
    ended = []
    for _ in range(3):
        served, _ = quiet.grant()
        quiet.admit(200)  # a turn away from its tail, each of them
        ended.append(first in served)
    assert ended == [False, False, True]


def test_a_hold_keeps_the_tail_that_it_began_with() -> None:
    """Else who is down to it would have to run a little more with each that comes."""
    quiet = Quiet()
    first, second = quiet.admit(128, begun=True), quiet.admit(240)
    assert quiet.grant() == ((second,), 112)
    for _ in range(6):
        quiet.admit(240)
    assert quiet.grant() == ((first, second), 128)


def test_turns_and_ends_alternate_while_ends_make_no_stream() -> None:
    quiet = Quiet()
    long = quiet.admit(5000)
    shorts = [quiet.admit(CHUNK) for _ in range(8)]
    assert [served for served, _ in quiet.grants(4)] == [
        tuple(shorts[:4]),
        (long,),
        tuple(shorts[4:]),
        (long,),
    ]


def test_a_prompt_that_the_slot_is_to_be_offered_to_leaves_a_chunk_at_most() -> None:
    quiet = Quiet()
    alone = quiet.admit(300, apart=True)
    assert quiet.grant() == ((alone,), 236)
    assert quiet.parked[0].remaining == CHUNK


def test_prompts_of_different_lanes_never_share_a_tick_and_low_ones_keep_their_floor() -> None:
    quiet = Quiet()
    low = quiet.admit(30, rank=2)
    for _ in range(CAP):
        quiet.admit(30, rank=0)
        assert low not in quiet.grant()[0]
    quiet.admit(30, rank=0)
    assert quiet.grant() == ((low,), 30)


def test_asking_without_running_changes_nothing() -> None:
    quiet = Quiet()
    for length in (300, 300, 40):
        quiet.admit(length)
    ledger = quiet.ledger
    assert quiet.plan() == quiet.plan()
    assert quiet.ledger is ledger == PrefillLedger()


# Bounds

lengths = st.integers(1, QUIET * 3)
crowd = st.lists(st.tuples(st.integers(0, 2), lengths), max_size=6)
rush = st.lists(st.lists(st.tuples(st.integers(0, 2), lengths), max_size=2), min_size=1, max_size=4)
sizes = st.tuples(st.integers(1, 64), st.integers(1, 8))


@pytest.mark.slow
@given(crowd, rush, sizes)
@example(crowd=[(1, 99_999), (1, 99_999)], rush=[[]], sizes=(64, 4))
@example(crowd=[(1, 16), (1, 300), (1, 300)], rush=[[(1, 200)]], sizes=(64, 4))
@example(crowd=[(2, 100), (2, 9000)], rush=[[(0, 60)], [(1, 120)]], sizes=(64, 4))
def test_every_parked_prompt_gets_a_chunk_within_a_bound_set_when_it_begins_to_wait(
    crowd: list[tuple[int, int]], rush: list[list[tuple[int, int]]], sizes: tuple[int, int]
) -> None:
    """Of K prompts in its lane: K turns of the others at most, an end after each of them, and as many while it is held;
    the lane has one of every cap + L − 1 grants. 4 K (cap + L − 1), whoever arrives later, for ever."""
    quiet, lanes = Quiet(chunk=sizes[0], quiet=sizes[0] * sizes[1]), 3
    for arriving in [crowd, *itertools.islice(itertools.cycle(rush), 120)]:
        for rank, length in arriving:
            quiet.admit(length, rank)
        in_lane = Counter(entry.prompt.lane_rank for entry in quiet.waiting)
        for entry in quiet.waiting:
            entry.bound = entry.bound or 4 * in_lane[entry.prompt.lane_rank] * (CAP + lanes - 1)
        quiet.grant()
        for entry in quiet.waiting:
            assert entry.unserved <= entry.bound or not entry.bound


@given(crowd, rush, sizes, st.lists(st.booleans(), min_size=1, max_size=8))
def test_every_grant_keeps_the_rule(
    crowd: list[tuple[int, int]],
    rush: list[list[tuple[int, int]]],
    sizes: tuple[int, int],
    apart: list[bool],
) -> None:
    quiet = Quiet(chunk=sizes[0], quiet=sizes[0] * sizes[1])
    offered = itertools.cycle(apart)
    for arriving in [crowd, *itertools.islice(itertools.cycle(rush), 40)]:
        for rank, length in arriving:
            quiet.admit(length, rank, apart=next(offered))
        if not quiet.waiting:
            continue
        parked, plan = quiet.parked, quiet.plan()
        chosen = [parked[index] for index in plan.indices]
        assert len({prompt.order for prompt in chosen}) == len(chosen) > 0
        assert len({prompt.lane_rank for prompt in chosen}) == 1
        assert 1 <= plan.padded <= quiet.quiet
        assert len(chosen) == 1 or all(prompt.remaining <= plan.tokens for prompt in chosen)
        for prompt in chosen:
            if prompt.last_chunk_apart and prompt.remaining > quiet.chunk:
                assert prompt.remaining - plan.tokens >= 1
        quiet.grant()
        assert len(quiet.ledger.rotation) == len(set(quiet.ledger.rotation)) <= len(parked)
        assert quiet.ledger.holds.keys() <= {prompt.lane_rank for prompt in parked}


# What it saves


def day(limits: PrefillLimits, clients: int) -> Counter[Action]:
    """Ticks, by action, until as many clients as that have four tokens each to their 240 of prompt.

    They send at once; the first is admitted a tick before the others, which come while it runs.
    """
    worker = Worker(Machine(limits, rows=clients))
    actions: list[Action] = []
    for client in range(clients):
        worker.arrive("a", 1, 240, 4, 4)
        if client == 0:
            actions.append(worker.tick())
    while Action.IDLE not in actions:
        actions.append(worker.tick())
    return Counter(actions)


@pytest.mark.parametrize("clients", [1, 2, 4, 8, 16])
def test_prompts_that_are_sent_together_decode_together_from_their_first_token_on(clients: int) -> None:
    ticks = day(LIMITS, clients)
    assert ticks[Action.DECODE] == 3, "each answer's tokens but the first, all in the same ticks"
    passes_alone = 2 if clients == 1 else clients + 2
    assert ticks[Action.PREFILL] <= passes_alone, "the first chunk, a turn each, and the end that they share"


def test_without_quiet_ticks_they_cost_several_times_as_many() -> None:
    chunks_only = replace(LIMITS, quiet_tokens=0)
    for clients in (8, 16):
        before, after = day(chunks_only, clients), day(LIMITS, clients)
        assert before[Action.DECODE] >= 2 * after[Action.DECODE]
        assert before[Action.PREFILL] >= 1.5 * after[Action.PREFILL]
