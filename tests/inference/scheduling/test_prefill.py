"""Which prompts share a prefill tick: the order by example, and the bound by simulation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from hypothesis import example, given
from hypothesis import strategies as st

from inference.scheduling.prefill import ParkedPrompt, PrefillLedger, padded_tokens, pick_prefill

CHUNK = 16
CAP = 4


@dataclass
class Waiting:
    """One prompt of the simulation, and how long it has gone without a chunk."""

    prompt: ParkedPrompt
    unserved: int = 0
    bound: int = 0


@dataclass
class Prefills:
    """Prompts that come, get chunks as the rule says, and leave."""

    chunk: int = CHUNK
    ledger: PrefillLedger = field(default_factory=PrefillLedger)
    waiting: list[Waiting] = field(default_factory=list)
    admitted: int = 0

    def admit(self, rank: int, length: int) -> int:
        self.admitted += 1
        self.waiting.append(Waiting(ParkedPrompt(self.admitted, rank, length)))
        return self.admitted

    @property
    def parked(self) -> list[ParkedPrompt]:
        return [entry.prompt for entry in self.waiting]

    def grant(self) -> list[int]:
        """Run one prefill tick; the admission numbers that got a chunk."""
        chosen, self.ledger = pick_prefill(self.parked, self.ledger, self.chunk, CAP)
        served = [self.waiting[index].prompt.order for index in chosen]
        for entry in self.waiting:
            entry.unserved += 1
        for index in chosen:
            entry = self.waiting[index]
            entry.unserved = entry.bound = 0
            entry.prompt = replace(entry.prompt, remaining=entry.prompt.remaining - self.chunk)
        self.waiting = [entry for entry in self.waiting if entry.prompt.remaining > 0]
        return served

    def grants(self, count: int) -> list[list[int]]:
        return [self.grant() for _ in range(count)]


def test_nothing_parked_grants_nothing() -> None:
    chosen, ledger = pick_prefill((), PrefillLedger(skips={0: 3}, rotation=(7,)), CHUNK)
    assert chosen == ()
    assert (dict(ledger.skips), ledger.rotation) == ({}, ())


def test_short_prompts_go_in_the_order_of_their_admission() -> None:
    prefills = Prefills()
    first, second, third = (prefills.admit(1, CHUNK) for _ in range(3))
    assert prefills.grants(3) == [[first], [second], [third]]


def test_long_prompts_take_turns() -> None:
    prefills = Prefills()
    first, second = prefills.admit(1, CHUNK * 9), prefills.admit(1, CHUNK * 9)
    assert prefills.grants(4) == [[first], [second], [first], [second]]


def test_a_long_prompt_that_got_a_chunk_goes_behind_those_that_came_meanwhile() -> None:
    prefills = Prefills()
    first = prefills.admit(1, CHUNK * 9)
    second = prefills.admit(1, CHUNK * 9)
    assert prefills.grant() == [first]
    third = prefills.admit(1, CHUNK * 9)
    assert prefills.grants(3) == [[second], [first], [third]]


def test_short_and_long_prompts_alternate_while_both_wait() -> None:
    prefills = Prefills()
    long = prefills.admit(1, CHUNK * 4)
    shorts = [prefills.admit(1, CHUNK) for _ in range(3)]
    assert prefills.grants(6) == [[shorts[0]], [long], [shorts[1]], [long], [shorts[2]], [long]]


def test_the_last_chunk_of_a_long_prompt_goes_before_short_ones_that_came_later() -> None:
    prefills = Prefills()
    long = prefills.admit(1, CHUNK + 1)
    short = prefills.admit(1, CHUNK)
    assert prefills.grants(3) == [[short], [long], [long]]
    prefills = Prefills()
    long = prefills.admit(1, CHUNK + 1)
    assert prefills.grant() == [long]
    short = prefills.admit(1, CHUNK)
    assert prefills.grants(2) == [[long], [short]]


def test_short_prompts_are_packed_while_their_padded_rows_fit_the_chunk() -> None:
    prefills = Prefills()
    orders = [prefills.admit(1, length) for length in (4, 3, 4, 2, 5)]
    assert prefills.grants(2) == [orders[:4], orders[4:]]
    assert padded_tokens([ParkedPrompt(1, 1, 4), ParkedPrompt(2, 1, 3)], (0, 1), CHUNK) == 8


def test_no_short_prompt_overtakes_one_that_does_not_fit() -> None:
    prefills = Prefills()
    orders = [prefills.admit(1, length) for length in (2, 12, 2)]
    assert prefills.grants(3) == [orders[:1], orders[1:2], orders[2:]]


def test_a_long_prompt_runs_alone_and_pads_to_one_chunk() -> None:
    prefills = Prefills()
    long = prefills.admit(1, CHUNK * 2)
    assert padded_tokens(prefills.parked, (0,), CHUNK) == CHUNK
    prefills.admit(2, 1)
    assert prefills.grant() == [long]


def test_prompts_of_different_lanes_never_share_a_tick() -> None:
    prefills = Prefills()
    high, low = prefills.admit(0, 1), prefills.admit(2, 1)
    assert prefills.grants(2) == [[high], [low]]


def test_a_lower_lane_gets_its_floor_under_an_endless_stream_of_higher_prompts() -> None:
    prefills = Prefills()
    low = prefills.admit(2, 1)
    for _ in range(CAP):
        prefills.admit(0, CHUNK)
        assert low not in prefills.grant()
    prefills.admit(0, CHUNK)
    assert prefills.grant() == [low]


def test_asking_without_running_changes_nothing() -> None:
    prefills = Prefills()
    for length in (CHUNK * 3, CHUNK * 3, 4):
        prefills.admit(1, length)
    ledger = prefills.ledger
    once = pick_prefill(prefills.parked, ledger, CHUNK)
    assert pick_prefill(prefills.parked, ledger, CHUNK) == once
    assert prefills.ledger is ledger == PrefillLedger()


arrivals = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, CHUNK * 5)), max_size=3), min_size=1, max_size=150
)


crowd = st.lists(st.tuples(st.integers(0, 2), st.integers(1, CHUNK * 5)), max_size=5)
rush = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, CHUNK * 3)), max_size=2), min_size=1, max_size=3
)


@given(crowd, rush)
@example(crowd=[(1, CHUNK * 5), (1, CHUNK * 5)], rush=[[(1, CHUNK)]])
@example(crowd=[(1, CHUNK * 99), (1, CHUNK * 99)], rush=[[]])
@example(crowd=[(2, CHUNK), (2, CHUNK * 5)], rush=[[(0, CHUNK)], [(1, CHUNK * 2)]])
def test_every_parked_prompt_gets_a_chunk_within_a_bound_set_when_it_begins_to_wait(
    crowd: list[tuple[int, int]], rush: list[list[tuple[int, int]]]
) -> None:
    """Of K prompts in its lane, one waits for at most K turns of its kind, each kind has every other grant of
    the lane, and the lane one of every cap + L − 1 grants: 2 K (cap + L − 1), whoever arrives later, for ever."""
    prefills, lanes = Prefills(), 3
    for arriving in [crowd, *itertools.islice(itertools.cycle(rush), 120)]:
        for rank, length in arriving:
            prefills.admit(rank, length)
        in_lane = [entry.prompt.lane_rank for entry in prefills.waiting]
        for entry in prefills.waiting:
            entry.bound = entry.bound or 2 * in_lane.count(entry.prompt.lane_rank) * (CAP + lanes - 1)
        prefills.grant()
        for entry in prefills.waiting:
            assert entry.unserved <= entry.bound or not entry.bound


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, CHUNK * 5)), min_size=1, max_size=12),
    st.integers(1, CHUNK * 2),
)
def test_every_grant_keeps_the_rule(prompts: list[tuple[int, int]], chunk: int) -> None:
    prefills = Prefills(chunk=chunk)
    for rank, length in prompts:
        prefills.admit(rank, length)
    work = sum(-(-length // chunk) for _, length in prompts)
    for _ in range(work):
        if not prefills.waiting:
            break
        parked = prefills.parked
        chosen, _ = pick_prefill(parked, prefills.ledger, chunk, CAP)
        assert chosen
        assert len(set(chosen)) == len(chosen)
        assert len({parked[index].lane_rank for index in chosen}) == 1
        assert len(chosen) == 1 or all(parked[index].remaining <= chunk for index in chosen)
        assert 1 <= padded_tokens(parked, chosen, chunk) <= chunk
        prefills.grant()
    assert not prefills.waiting


@given(arrivals)
def test_in_no_lane_one_kind_of_prompt_goes_twice_while_the_other_waits(
    arrivals: list[list[tuple[int, int]]],
) -> None:
    """So no short prompt waits for all of a long one, and long ones have every other grant of their lane at least."""
    prefills, last = Prefills(), dict[int, bool]()
    for arriving in arrivals:
        for rank, length in arriving:
            prefills.admit(rank, length)
        parked = prefills.parked
        chosen, _ = pick_prefill(parked, prefills.ledger, CHUNK, CAP)
        if not chosen:
            continue
        served = parked[chosen[0]]
        short = served.remaining <= CHUNK
        kinds = {one.remaining <= CHUNK for one in parked if one.lane_rank == served.lane_rank}
        assert len(kinds) == 1 or last.get(served.lane_rank) != short
        last[served.lane_rank] = short
        prefills.grant()


@given(arrivals)
def test_the_ledger_stays_as_small_as_what_waits(arrivals: list[list[tuple[int, int]]]) -> None:
    prefills = Prefills()
    for arriving in arrivals:
        for rank, length in arriving:
            prefills.admit(rank, length)
        before = len(prefills.waiting)
        prefills.grant()
        assert len(prefills.ledger.rotation) <= before
        assert len(set(prefills.ledger.rotation)) == len(prefills.ledger.rotation)
