"""The tick's rule: its table, every small state there is, and the bounds that it promises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.tick import (
    LONGEST_INTERVAL,
    Action,
    PrefillLimits,
    TickDecision,
    TickState,
    chunk_for,
    debt_in,
    decide_tick,
    interval_for,
    quiet_tokens_for,
)

CHUNK = 8
DEFAULT = PrefillLimits(chunk_tokens=CHUNK, interval=4)
STARVING = PrefillLimits(chunk_tokens=CHUNK, interval=0)
QUIET = PrefillLimits(chunk_tokens=CHUNK, interval=4, quiet_tokens=4 * CHUNK)


def every_small_state() -> list[TickState]:
    """All combinations of what may be pending × debts × intervals."""
    return [
        TickState(
            decoding=decoding,
            prefills=prefills,
            next_prefill_tokens=next_prefill_tokens,
            speculative_pending=slice_tokens is not None,
            speculative_prompt_tokens=slice_tokens or 0,
            limits=PrefillLimits(CHUNK, interval),
            prefill_debt=debt,
            speculative_yielded=yielded,
            slice_prompt_last=prompt_last,
            prefill_gave_way=gave_way,
        )
        for decoding, prefills, slice_tokens, yielded, prompt_last, gave_way, debt, interval in itertools.product(
            (0, 1, 3),
            (0, 1, 2),
            (None, 0, 1, CHUNK),
            (False, True),
            (False, True),
            (False, True),
            (0, 1, CHUNK, 5 * CHUNK),
            (0, 1, 4, 16),
        )
        for next_prefill_tokens in ((1, CHUNK) if prefills else (0,))
    ]


EVERY_STATE = every_small_state()

#: A slice, not a slice 0, has just run.
BOTH_WAIT = TickState(
    decoding=1,
    prefills=1,
    next_prefill_tokens=1,
    speculative_pending=True,
    speculative_prompt_tokens=1,
    speculative_yielded=True,
    limits=DEFAULT,
)


def is_producing(state: TickState) -> bool:
    return state.decoding > 0 or (state.speculative_pending and not state.speculative_prompt_tokens)


def following(state: TickState, decision: TickDecision) -> TickState:
    return replace(
        state,
        prefill_debt=decision.prefill_debt,
        speculative_yielded=decision.speculative_yielded,
        slice_prompt_last=decision.slice_prompt_last,
        prefill_gave_way=decision.prefill_gave_way,
    )


# The table


@pytest.mark.parametrize(
    ("state", "action", "debt"),
    [
        pytest.param(TickState(), Action.IDLE, 0, id="nothing to do"),
        pytest.param(TickState(prefill_debt=9), Action.IDLE, 0, id="idling forgets debt"),
        pytest.param(TickState(decoding=2, limits=DEFAULT), Action.DECODE, 0, id="streams alone"),
        pytest.param(
            TickState(prefills=1, next_prefill_tokens=CHUNK, prefill_debt=9, limits=DEFAULT),
            Action.PREFILL,
            0,
            id="a prompt alone runs whatever the debt, and makes none",
        ),
        pytest.param(
            TickState(prefills=2, next_prefill_tokens=4 * CHUNK, limits=QUIET),
            Action.PREFILL,
            0,
            id="while nothing streams a tick may run several chunks",
        ),
        pytest.param(
            TickState(
                prefills=2,
                next_prefill_tokens=4 * CHUNK,
                speculative_pending=True,
                speculative_prompt_tokens=1,
                speculative_yielded=True,
                limits=QUIET,
            ),
            Action.PREFILL,
            0,
            id="a waiting slice 0 is no stream",
        ),
        pytest.param(
            TickState(decoding=2, prefills=1, next_prefill_tokens=CHUNK, limits=DEFAULT),
            Action.PREFILL,
            4 * CHUNK,
            id="the first prompt after a quiet while runs at once and makes debt",
        ),
        pytest.param(
            TickState(decoding=2, prefills=1, next_prefill_tokens=1, limits=DEFAULT),
            Action.PREFILL,
            4,
            id="a short prompt costs hardly anything",
        ),
        pytest.param(
            TickState(decoding=2, prefills=1, next_prefill_tokens=CHUNK, prefill_debt=1, limits=DEFAULT),
            Action.DECODE,
            0,
            id="open debt lets the streams go first",
        ),
        pytest.param(
            TickState(decoding=2, prefills=3, next_prefill_tokens=1, prefill_debt=5 * CHUNK, limits=DEFAULT),
            Action.DECODE,
            2 * CHUNK,
            id="every waiting prompt pays its share",
        ),
        pytest.param(
            TickState(decoding=1, prefills=1, next_prefill_tokens=1, limits=STARVING),
            Action.DECODE,
            0,
            id="interval 0 starves prompts",
        ),
        pytest.param(
            TickState(prefills=1, next_prefill_tokens=1, limits=STARVING),
            Action.PREFILL,
            0,
            id="interval 0 lets a prompt alone run",
        ),
        pytest.param(
            TickState(decoding=1, speculative_pending=True, prefill_debt=3, limits=DEFAULT),
            Action.SPECULATE,
            3,
            id="a round beside the batch pays nothing",
        ),
        pytest.param(
            TickState(
                decoding=1, speculative_pending=True, speculative_yielded=True, prefill_debt=3, limits=DEFAULT
            ),
            Action.DECODE,
            0,
            id="slices alternate with the batch",
        ),
        pytest.param(
            TickState(speculative_pending=True, speculative_yielded=True, prefill_debt=3, limits=DEFAULT),
            Action.SPECULATE,
            0,
            id="a lone round runs every tick and pays",
        ),
        pytest.param(
            TickState(decoding=1, speculative_pending=True, speculative_prompt_tokens=CHUNK, limits=DEFAULT),
            Action.SPECULATE,
            4 * CHUNK,
            id="slice 0 beside the batch makes debt like any prompt",
        ),
        pytest.param(
            TickState(
                decoding=1,
                speculative_pending=True,
                speculative_prompt_tokens=CHUNK,
                prefill_debt=CHUNK + 1,
                limits=DEFAULT,
            ),
            Action.DECODE,
            1,
            id="slice 0 waits for open debt and pays its share",
        ),
        pytest.param(
            TickState(
                decoding=1,
                prefills=1,
                next_prefill_tokens=1,
                speculative_pending=True,
                speculative_prompt_tokens=1,
                slice_prompt_last=True,
                limits=DEFAULT,
            ),
            Action.PREFILL,
            4,
            id="after slice 0 the waiting prompt is next",
        ),
        pytest.param(
            TickState(
                decoding=1,
                prefills=1,
                next_prefill_tokens=1,
                speculative_pending=True,
                speculative_prompt_tokens=1,
                limits=DEFAULT,
            ),
            Action.SPECULATE,
            4,
            id="after a prefill the waiting slice 0 is next",
        ),
        pytest.param(BOTH_WAIT, Action.DECODE, 0, id="a prompt gives way to a slice 0 that may not run yet"),
        pytest.param(
            replace(BOTH_WAIT, prefill_gave_way=True),
            Action.PREFILL,
            4,
            id="but only once: it does not give way again before one of them has run",
        ),
        pytest.param(
            replace(BOTH_WAIT, prefill_gave_way=True, speculative_yielded=False),
            Action.SPECULATE,
            4,
            id="the slice 0 that it gave way to still goes first",
        ),
    ],
)
def test_the_table(state: TickState, action: Action, debt: int) -> None:
    decision = decide_tick(state)
    assert (decision.action, decision.prefill_debt) == (action, debt)


# Every small state


def test_it_idles_if_and_only_if_there_is_nothing_to_do() -> None:
    for state in EVERY_STATE:
        idle = not (state.decoding or state.prefills or state.speculative_pending)
        assert (decide_tick(state).action is Action.IDLE) == idle, state


def test_it_only_runs_what_is_there() -> None:
    there: dict[Action, Callable[[TickState], bool]] = {
        Action.PREFILL: lambda state: state.prefills > 0,
        Action.DECODE: lambda state: state.decoding > 0,
        Action.SPECULATE: lambda state: state.speculative_pending,
        Action.IDLE: lambda state: True,
    }
    for state in EVERY_STATE:
        assert there[decide_tick(state).action](state), state


def test_prompts_never_run_beside_producing_streams_while_debt_is_open() -> None:
    for state in EVERY_STATE:
        action = decide_tick(state).action
        if state.prefill_debt and is_producing(state):
            assert action is not Action.PREFILL, state
            beside_the_batch = (
                action is Action.SPECULATE and state.speculative_prompt_tokens and state.decoding
            )
            assert not beside_the_batch or state.limits.interval == 0, state


def test_interval_zero_reproduces_the_starving_baseline() -> None:
    for state in EVERY_STATE:
        if state.limits.interval == 0 and is_producing(state):
            decision = decide_tick(state)
            assert decision.action is not Action.PREFILL, state
            if state.decoding and state.speculative_prompt_tokens:
                expected = Action.DECODE if state.speculative_yielded else Action.SPECULATE
                assert decision.action is expected, state


def test_debt_is_never_negative_and_changes_only_by_the_rule() -> None:
    for state in EVERY_STATE:
        decision = decide_tick(state)
        change = decision.prefill_debt - state.prefill_debt
        interval, slice_tokens = state.limits.interval, state.speculative_prompt_tokens
        if decision.action is Action.IDLE or not is_producing(state):
            assert decision.prefill_debt == 0, state
        elif decision.action is Action.PREFILL:
            assert change == state.next_prefill_tokens * interval, state
        elif decision.action is Action.SPECULATE and slice_tokens:
            assert change == slice_tokens * interval, state
        elif decision.action is Action.SPECULATE and state.decoding:
            assert change == 0, state
        else:
            share = CHUNK * max(1, state.prefills + (slice_tokens > 0))
            assert decision.prefill_debt == max(0, state.prefill_debt - share), state


def test_the_marks_follow_the_executed_action() -> None:
    for state in EVERY_STATE:
        decision = decide_tick(state)
        ran_slice = decision.action is Action.SPECULATE
        if decision.action is Action.IDLE:
            assert decision.speculative_yielded == state.speculative_yielded
        else:
            assert decision.speculative_yielded == ran_slice
        if ran_slice and state.speculative_prompt_tokens:
            assert decision.slice_prompt_last
        elif decision.action is Action.PREFILL:
            assert not decision.slice_prompt_last
        else:
            assert decision.slice_prompt_last == state.slice_prompt_last
        ran_prompt_slice = ran_slice and state.speculative_prompt_tokens > 0
        if decision.action is Action.PREFILL or ran_prompt_slice or not state.prefills:
            assert not decision.prefill_gave_way
        elif not decision.prefill_gave_way:
            assert not state.prefill_gave_way
            gave_way = state.decoding and state.speculative_prompt_tokens and not state.slice_prompt_last
            assert not gave_way or state.prefill_debt or not state.limits.interval


def test_what_a_prompt_gave_way_to_is_remembered_and_changes_nothing_else() -> None:
    """Without the mark the table is as it was before there was one; with it, a DECODE at most becomes a PREFILL."""
    for state in EVERY_STATE:
        if state.prefill_gave_way:
            plain, marked = decide_tick(replace(state, prefill_gave_way=False)), decide_tick(state)
            assert marked.action in (plain.action, Action.PREFILL)
            if marked.action is not plain.action:
                assert plain.action is Action.DECODE
                assert state.speculative_yielded, state
                assert not state.prefill_debt, state


@pytest.mark.slow
def test_nothing_that_keeps_waiting_is_starved_by_the_others() -> None:
    """From every state, held still, each kind of work comes within the ticks that the worst debt takes."""
    for start in (state for state in EVERY_STATE if not state.prefill_gave_way):
        starving = start.limits.interval == 0 and is_producing(start)
        worst = 2 * (2 * start.limits.interval + 2) + 2 * math.ceil(start.prefill_debt / CHUNK)
        expected = {
            Action.PREFILL: start.prefills > 0 and not starving,
            Action.DECODE: start.decoding > 0,
            Action.SPECULATE: start.speculative_pending,
        }
        seen, state = set(), start
        for _ in range(worst):
            decision = decide_tick(state)
            seen.add(decision.action)
            state = following(state, decision)
        assert {action for action, waits in expected.items() if waits} <= seen, start


# Bounds


@dataclass
class Machine:
    """Streams and prompts under the rule: applies each decision, decides nothing."""

    limits: PrefillLimits
    decoding: int
    prompts: list[int]
    round_pending: bool = False
    carried: TickDecision = field(default_factory=lambda: TickDecision(Action.IDLE, 0, False, False))
    actions: list[Action] = field(default_factory=list)

    def state(self) -> TickState:
        chunk = min(self.prompts[0], self.limits.chunk_tokens) if self.prompts else 0
        return TickState(
            decoding=self.decoding,
            prefills=len(self.prompts),
            next_prefill_tokens=chunk,
            speculative_pending=self.round_pending,
            limits=self.limits,
            prefill_debt=self.carried.prefill_debt,
            speculative_yielded=self.carried.speculative_yielded,
            slice_prompt_last=self.carried.slice_prompt_last,
            prefill_gave_way=self.carried.prefill_gave_way,
        )

    def tick(self) -> Action:
        self.carried = decide_tick(self.state())
        if self.carried.action is Action.PREFILL:
            remainder = self.prompts.pop(0) - self.limits.chunk_tokens
            if remainder > 0:
                self.prompts.append(remainder)
        self.actions.append(self.carried.action)
        return self.carried.action


def owing(debt: int) -> TickDecision:
    return TickDecision(Action.DECODE, debt, False, False)


limits = st.builds(PrefillLimits, st.integers(1, 64), st.integers(1, 40))
rows = st.integers(1, 8)


@given(limits, rows, st.integers(1, 200), st.integers(0, 1000))
def test_a_lone_prompt_has_its_first_token_within_its_chunks_times_the_interval(
    limits: PrefillLimits, decoding: int, prompt: int, open_debt: int
) -> None:
    machine = Machine(limits, decoding, [prompt], carried=owing(open_debt))
    chunks = math.ceil(prompt / limits.chunk_tokens)
    bound = chunks * (limits.interval + 1) + math.ceil(open_debt / limits.chunk_tokens)
    while machine.prompts:
        machine.tick()
        assert len(machine.actions) <= bound


@given(limits, rows, st.integers(1, 200), st.integers(0, 1000))
def test_beside_a_slot_job_a_lone_prompt_waits_twice_as_long_at_most(
    limits: PrefillLimits, decoding: int, prompt: int, open_debt: int
) -> None:
    machine = Machine(limits, decoding, [prompt], round_pending=True, carried=owing(open_debt))
    chunks = math.ceil(prompt / limits.chunk_tokens)
    bound = chunks * (2 * limits.interval + 2) + 2 * math.ceil(open_debt / limits.chunk_tokens)
    while machine.prompts:
        machine.tick()
        assert len(machine.actions) <= bound


@given(
    limits,
    st.integers(1, 200),
    st.integers(0, 1000),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8),
)
def test_streams_and_rounds_that_come_and_go_hold_a_lone_prompt_up_no_longer(
    limits: PrefillLimits, prompt: int, open_debt: int, yielded: bool, others: list[tuple[int, bool]]
) -> None:
    """Whatever decodes in a tick and whether a round is pending, tick by tick, for ever."""
    decision, left = TickDecision(Action.DECODE, open_debt, yielded, False), prompt
    chunks = math.ceil(prompt / limits.chunk_tokens)
    bound = chunks * (2 * limits.interval + 2) + 2 * math.ceil(open_debt / limits.chunk_tokens)
    for ticks, (decoding, round_pending) in enumerate(itertools.cycle(others), 1):
        decision = decide_tick(
            TickState(
                decoding=decoding,
                prefills=1,
                next_prefill_tokens=min(left, limits.chunk_tokens),
                speculative_pending=round_pending,
                limits=limits,
                prefill_debt=decision.prefill_debt,
                speculative_yielded=decision.speculative_yielded,
            )
        )
        assert ticks <= bound
        left -= limits.chunk_tokens * (decision.action is Action.PREFILL)
        if left <= 0:
            return


@given(limits, rows, st.integers(1, 8), st.booleans())
def test_waiting_prompts_get_a_chunk_in_every_window_of_their_shared_interval(
    limits: PrefillLimits, decoding: int, waiting: int, slot_job: bool
) -> None:
    window = (math.ceil(limits.interval / waiting) + 1) * (2 if slot_job else 1)
    machine = Machine(limits, decoding, [10**6] * waiting, round_pending=slot_job)
    for _ in range(window * 12):
        machine.tick()
    for start in range(len(machine.actions) - window):
        assert Action.PREFILL in machine.actions[start : start + window]


@given(limits, rows, st.integers(1, 8), st.integers(1, 64), st.booleans())
def test_a_slice_0_that_always_waits_is_one_of_the_prompts_that_share_the_interval(
    limits: PrefillLimits, decoding: int, prefills: int, slice_tokens: int, prompt_last: bool
) -> None:
    """One kind or the other has a tick in any ⌈interval / K⌉ + 1, and each of them in twice as many."""
    window = math.ceil(limits.interval / (prefills + 1)) + 1
    state = TickState(
        decoding=decoding,
        prefills=prefills,
        next_prefill_tokens=limits.chunk_tokens,
        speculative_pending=True,
        speculative_prompt_tokens=min(slice_tokens, limits.chunk_tokens),
        limits=limits,
        slice_prompt_last=prompt_last,
    )
    actions: list[Action] = []
    for _ in range(window * 12):
        decision = decide_tick(state)
        actions.append(decision.action)
        state = following(state, decision)
    for start in range(len(actions) - 2 * window):
        assert {Action.PREFILL, Action.SPECULATE} & {*actions[start : start + window]}
        assert {Action.PREFILL, Action.SPECULATE} <= {*actions[start : start + 2 * window]}


@given(
    limits,
    st.booleans(),
    st.integers(0, 4000),
    st.lists(st.tuples(rows, st.lists(st.integers(1, 200), max_size=3)), min_size=1, max_size=120),
)
def test_a_row_waits_for_one_other_tick_at_most_and_three_beside_a_slot_job(
    limits: PrefillLimits,
    slot_job: bool,
    open_debt: int,
    arrivals: list[tuple[int, list[int]]],
) -> None:
    machine = Machine(limits, 1, [], round_pending=slot_job, carried=owing(open_debt))
    since_decode = 0
    for decoding, prompts in arrivals:
        machine.decoding = decoding
        machine.prompts.extend(prompts)
        since_decode = 0 if machine.tick() is Action.DECODE else since_decode + 1
        assert since_decode <= (3 if slot_job else 1)
    prompt_or_row = [action for action in machine.actions if action is not Action.SPECULATE]
    assert (Action.PREFILL, Action.PREFILL) not in set(itertools.pairwise(prompt_or_row))


@given(
    limits,
    rows,
    st.integers(1, 8),
    st.lists(st.integers(1, 64), min_size=1, max_size=8),
    st.integers(1, 300),
)
def test_prompts_add_no_more_than_their_share_to_the_mean_latency_of_streams(
    limits: PrefillLimits, decoding: int, waiting: int, lengths: list[int], ticks: int
) -> None:
    """In padded tokens: chunk work in any window is at most K × decode ticks / interval chunks, and one more."""
    machine = Machine(limits, decoding, [])
    work, refill = 0.0, itertools.cycle(lengths)
    for _ in range(ticks):
        while len(machine.prompts) < waiting:
            machine.prompts.append(next(refill))
        padded = machine.state().next_prefill_tokens
        if machine.tick() is Action.PREFILL:
            work += padded
    decoded = machine.actions.count(Action.DECODE)
    chunks = waiting * decoded / limits.interval + 1
    assert work <= chunks * limits.chunk_tokens


#: What may be pending in one tick beside decoding rows: prompts, and a slot job's round (0) or slice 0 (its tokens).
pending = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 64)), min_size=1, max_size=80)


@given(limits, rows, st.integers(0, 4000), pending)
def test_prompt_ticks_of_either_kind_never_run_twice_without_a_decode_between(
    limits: PrefillLimits, decoding: int, open_debt: int, pending: list[tuple[int, int | None]]
) -> None:
    """Whatever comes and goes while rows decode; and a row waits for one other tick, or three beside a slot job."""
    decision, prompts_since, since, slot_job_since = owing(open_debt), 0, 0, False
    for prefills, slice_tokens in pending:
        prompt_slice = min(slice_tokens or 0, limits.chunk_tokens)
        decision = decide_tick(
            TickState(
                decoding=decoding,
                prefills=prefills,
                next_prefill_tokens=limits.chunk_tokens if prefills else 0,
                speculative_pending=slice_tokens is not None,
                speculative_prompt_tokens=prompt_slice,
                limits=limits,
                prefill_debt=decision.prefill_debt,
                speculative_yielded=decision.speculative_yielded,
                slice_prompt_last=decision.slice_prompt_last,
                prefill_gave_way=decision.prefill_gave_way,
            )
        )
        if decision.action is Action.DECODE:
            prompts_since, since, slot_job_since = 0, 0, False
            continue
        since, slot_job_since = since + 1, slot_job_since or slice_tokens is not None
        prompts_since += decision.action is Action.PREFILL or prompt_slice > 0
        assert prompts_since <= 1
        assert since <= (3 if slot_job_since else 1)


@given(limits, rows, st.integers(0, 8), st.integers(1, 300))
def test_a_slot_job_takes_one_slice_beside_each_tick_of_the_batch(
    limits: PrefillLimits, decoding: int, waiting: int, ticks: int
) -> None:
    """So a stream's mean latency grows by one slice, and by one more for each chunk: R × (1 + K / interval)."""
    machine = Machine(limits, decoding, [10**6] * waiting, round_pending=True)
    for _ in range(ticks):
        machine.tick()
    slices, decoded = (machine.actions.count(action) for action in (Action.SPECULATE, Action.DECODE))
    chunks = machine.actions.count(Action.PREFILL)
    assert slices <= decoded + chunks + 1
    assert chunks <= waiting * decoded / limits.interval + 1


@given(limits, rows, st.lists(st.integers(1, 200), max_size=4), st.integers(0, 4000))
def test_debt_ends_with_the_last_stream(
    limits: PrefillLimits, decoding: int, prompts: list[int], debt: int
) -> None:
    machine = Machine(limits, decoding, prompts, carried=owing(debt))
    machine.tick()
    machine.decoding = 0
    machine.tick()
    assert machine.carried.prefill_debt == 0


# Settings


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PrefillLimits(chunk_tokens=0),
        lambda: PrefillLimits(interval=-1),
        lambda: PrefillLimits(quiet_tokens=-1),
        lambda: TickState(decoding=-1),
        lambda: TickState(prefill_debt=-1),
        lambda: TickState(prefills=1),
        lambda: TickState(next_prefill_tokens=1),
        lambda: TickState(prefills=1, next_prefill_tokens=CHUNK + 1, limits=DEFAULT),
        lambda: TickState(prefills=1, next_prefill_tokens=4 * CHUNK + 1, limits=QUIET),
        lambda: TickState(decoding=1, prefills=1, next_prefill_tokens=CHUNK + 1, limits=QUIET),
        lambda: TickState(prefills=1, next_prefill_tokens=CHUNK + 1, speculative_pending=True, limits=QUIET),
        lambda: TickState(speculative_prompt_tokens=1),
        lambda: TickState(speculative_pending=True, speculative_prompt_tokens=CHUNK + 1, limits=DEFAULT),
    ],
)
def test_an_impossible_state_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        wrong()


# Limits that change while debt is open


@given(
    st.integers(1, LONGEST_INTERVAL * 4096),
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.integers(0, LONGEST_INTERVAL),
)
def test_a_debt_told_in_chunks_of_another_size_is_as_many_decode_ticks_but_no_more_than_a_full_chunk_costs(
    debt: int, before: int, after: int, interval: int
) -> None:
    limits = PrefillLimits(after, interval)
    carried = debt_in(debt, PrefillLimits(before, 1), limits)
    owed = math.ceil(debt / before)
    assert carried > 0
    assert math.ceil(carried / after) == (min(owed, interval) if interval else owed)


@given(st.integers(0, 10**9), st.integers(1, 4096))
def test_where_nothing_changes_a_debt_stays(debt: int, chunk: int) -> None:
    limits = PrefillLimits(chunk, -(-debt // chunk))
    assert debt_in(debt, limits, limits) == debt


def test_the_interval_is_the_default_until_both_durations_are_measured() -> None:
    assert interval_for(1.5, None, 10.0, 1) == interval_for(1.5, 10.0, None, 1) == 16


def test_the_interval_keeps_the_target() -> None:
    assert interval_for(1.5, decode_ms=10, chunk_ms=130, prefills=1) == 26
    assert interval_for(2.0, decode_ms=10, chunk_ms=130, prefills=2) == 26
    assert interval_for(10, decode_ms=10, chunk_ms=1, prefills=1) == 1
    assert interval_for(1.0001, decode_ms=1, chunk_ms=100, prefills=8) == LONGEST_INTERVAL


@given(st.floats(1.01, 10), st.floats(0.1, 1000), st.floats(0.1, 100_000), st.integers(1, 64))
def test_streams_beside_prompts_are_slowed_by_the_target_at_most(
    target: float, decode_ms: float, chunk_ms: float, prefills: int
) -> None:
    interval = interval_for(target, decode_ms, chunk_ms, prefills)
    assert 1 <= interval <= LONGEST_INTERVAL
    if interval < LONGEST_INTERVAL:
        slowed = (decode_ms + prefills * chunk_ms / interval) / decode_ms
        assert slowed <= target * 1.000001


@pytest.mark.parametrize("target", [1, 0.5, -3, math.nan])
def test_a_target_that_allows_no_slowing_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="exceed 1"):
        interval_for(target, 1.0, 1.0, 1)


@given(st.floats(0.1, 1e7), st.floats(0.001, 1000))
def test_the_chunk_is_the_largest_power_of_two_within_the_stall(stall: float, per_token: float) -> None:
    chunk = chunk_for(stall, per_token)
    assert 16 <= chunk <= 4096
    assert chunk.bit_count() == 1
    assert chunk == 16 or chunk * per_token <= stall
    assert chunk == 4096 or chunk * 2 * per_token > stall


def test_the_chunk_is_the_default_until_measured() -> None:
    assert chunk_for(500, None) == 512


@pytest.mark.parametrize("stall", [0, -1, math.nan])
def test_a_stall_that_nothing_fits_is_refused(stall: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        chunk_for(stall, 1.0)


@given(st.integers(1, 4096), st.floats(0.001, 1000), st.floats(0, 10_000))
def test_a_quiet_tick_is_a_chunk_doubled_within_its_three_bounds(
    chunk: int, per_token: float, longest_ms: float
) -> None:
    tokens = quiet_tokens_for(chunk, per_token, longest_ms)
    times = tokens // chunk
    assert (tokens % chunk, times.bit_count()) == (0, 1)
    assert times <= 4
    assert times == 1 or (tokens <= 256 and tokens * per_token <= longest_ms)
    bounded = 2 * tokens > min(4 * chunk, 256) or 2 * tokens * per_token > longest_ms
    assert bounded, "it is no smaller than it has to be"


def test_a_quiet_tick_is_a_chunk_until_measured() -> None:
    assert quiet_tokens_for(64, None, 2000) == 64


@pytest.mark.parametrize(
    ("chunk", "ms", "tokens"),
    [(16, 5, 64), (64, 5, 256), (64, 10, 128), (64, 20, 64), (128, 5, 256), (512, 0.1, 512)],
)
def test_where_chunks_are_small_or_tokens_dear_a_quiet_tick_stays_short(
    chunk: int, ms: float, tokens: int
) -> None:
    assert quiet_tokens_for(chunk, ms, 2000) == tokens
