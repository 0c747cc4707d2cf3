"""When the terms between prompts and streams are reckoned anew: an interval that follows a target, as debt is made; and
what becomes of a debt whose chunk changes while it is open."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.engine import Engine
from inference.models import LanguageModel
from inference.scheduler_settings import SchedulerSettings
from inference.scheduling.tick import (
    DEFAULT_INTERVAL,
    Action,
    PrefillLimits,
    TickState,
    decide_tick,
    interval_for,
)
from inference.worker.pace import Pace
from inference.worker.requests import Reconfigure
from inference.worker.terms import Terms
from tests.inference.worker.conftest import ENDLESS, PROMPT, SETTINGS, HandDrivenWorker, submit

CHUNK = 16
TARGET = 1.5
FOLLOWING = replace(
    SETTINGS, limits=PrefillLimits(chunk_tokens=CHUNK, interval=3), itl_target=TARGET, quiet_tick_ms=0
)


def measured(settings: SchedulerSettings = FOLLOWING) -> tuple[Terms, Pace]:
    """Terms that were made before anything was measured, and since then a tick of 1 ms and a chunk of 16."""
    pace = Pace()
    terms = Terms(settings, pace)
    pace.decoded(1, 0.001)
    pace.prefilled(CHUNK, 0.016, CHUNK)
    return terms, pace


def states(limits: PrefillLimits) -> list[TickState]:
    """Every combination of who waits, with debt and without."""
    made = []
    for decoding, prefills, pending, in_slice, debt, yielded, prompt_last, gave_way in itertools.product(
        (0, 1, 3), (0, 1, 2), (False, True), (0, 5), (0, 1, 40), *[(False, True)] * 3
    ):
        if in_slice and not pending:
            continue
        made.append(
            TickState(
                decoding=decoding,
                prefills=prefills,
                next_prefill_tokens=CHUNK if prefills else 0,
                speculative_pending=pending,
                speculative_prompt_tokens=in_slice,
                limits=limits,
                prefill_debt=debt,
                speculative_yielded=yielded,
                slice_prompt_last=prompt_last,
                prefill_gave_way=gave_way,
            )
        )
    return made


def test_in_whatever_state_the_interval_is_reckoned_if_and_only_if_debt_is_made() -> None:
    made_debt = set()
    for state in states(PrefillLimits(CHUNK, DEFAULT_INTERVAL)):
        terms, _ = measured()
        assert terms.limits.interval == DEFAULT_INTERVAL, "nothing was measured when they were made"
        plain = decide_tick(state)
        decision = terms.charged(state, plain)
        waiting = state.prefills + (state.speculative_prompt_tokens > 0)
        if plain.prefill_debt > state.prefill_debt:
            now = interval_for(TARGET, 1.0, 16.0, waiting)
            assert terms.limits.interval == now != DEFAULT_INTERVAL
            assert decision == replace(plain, prefill_debt=plain.prefill_debt // DEFAULT_INTERVAL * now), (
                "this debt is made by it, and the tick is the same"
            )
            made_debt.add((plain.action, waiting))
        else:
            assert terms.limits.interval == DEFAULT_INTERVAL, state
            assert decision == plain
    assert {action for action, _ in made_debt} == {Action.PREFILL, Action.SPECULATE}
    assert {waiting for _, waiting in made_debt} == {1, 2, 3}


ticks = st.lists(
    st.tuples(
        st.sampled_from(["decoded", "prefilled", "small", "decided"]), st.integers(1, 400), st.integers(0, 3)
    ),
    max_size=60,
)


@given(ticks)
def test_whatever_is_measured_meanwhile_the_interval_stays_until_debt_is_made(
    events: list[tuple[str, int, int]],
) -> None:
    terms, pace = measured()
    debt, expected = 0, DEFAULT_INTERVAL
    for what, amount, prefills in events:
        if what == "decoded":
            pace.decoded(1 + amount % 3, amount / 1000)
        elif what == "decided":
            state = TickState(
                decoding=amount % 2,
                prefills=prefills,
                next_prefill_tokens=CHUNK if prefills else 0,
                limits=terms.limits,
                prefill_debt=debt,
            )
            decision = terms.charged(state, decide_tick(state))
            if decision.prefill_debt > debt:
                assert pace.decode_ms is not None
                assert pace.prompt_token_ms is not None
                expected = interval_for(TARGET, pace.decode_ms, pace.prompt_token_ms * CHUNK, prefills)
                assert decision.prefill_debt == CHUNK * expected
            debt = decision.prefill_debt
        else:
            pace.prefilled(CHUNK if what == "prefilled" else 3, amount / 1000, CHUNK)
            terms.prompt_ran()
        assert terms.limits.interval == expected


def test_a_fixed_interval_stays_whatever_is_measured() -> None:
    terms, _ = measured(replace(FOLLOWING, itl_target=None))
    for state in states(terms.limits):
        assert terms.charged(state, decide_tick(state)) == decide_tick(state)
        terms.prompt_ran()
        assert terms.limits.interval == 3


def test_a_target_that_is_set_holds_from_the_next_tick_on() -> None:
    terms, _ = measured(replace(FOLLOWING, itl_target=None))
    terms.reconfigure(FOLLOWING)
    assert terms.limits.interval == interval_for(TARGET, 1.0, 16.0, 1)


def test_another_setting_leaves_the_interval_that_follows_the_target_and_what_is_owed_by_it() -> None:
    terms, _ = measured()
    state = TickState(decoding=1, prefills=8, next_prefill_tokens=CHUNK, limits=terms.limits)
    owed = terms.charged(state, decide_tick(state))
    terms.reconfigure(replace(FOLLOWING, lane_floor=2))
    assert terms.limits.interval == interval_for(TARGET, 1.0, 16.0, 8)
    assert terms.open_debt(owed) == owed.prefill_debt


def test_a_running_worker_s_interval_changes_in_ticks_that_make_debt_only(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    """Each tick takes another time, so that each reckoning would come to another interval."""
    worker.loop.ask(Reconfigure(replace(FOLLOWING, itl_target=1.05)))
    submit(model, prompt=PROMPT * 8, max_tokens=ENDLESS)  # in a quiet time
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    worker.turns(10)
    assert worker.metrics.interval.value == DEFAULT_INTERVAL
    submit(model, prompt=PROMPT * 8, max_tokens=ENDLESS)
    submit(model, prompt=PROMPT * 4, max_tokens=ENDLESS)
    worker.claim()
    worker.claim()
    used = set()
    debt, interval = worker.metrics.prefill_debt.value, worker.metrics.interval.value
    made = 0
    while not made or worker.loop.roster.prefills:
        worker.turn()
        before, debt = debt, worker.metrics.prefill_debt.value
        if debt > before:
            made += 1
            assert debt % worker.metrics.interval.value == 0, "it is charged by the interval that holds now"
            used.add(worker.metrics.interval.value)
        else:
            assert worker.metrics.interval.value == interval
        interval = worker.metrics.interval.value
    assert made == 10 + 5
    assert len(used) > 1
    assert DEFAULT_INTERVAL not in used


def ticks_between_prompts(worker: HandDrivenWorker) -> list[int]:
    """How many decode ticks lie between two prompt ticks, until no prompt waits any more."""
    between, decodes = list[int](), 0
    while worker.loop.roster.prefills:
        if worker.turn() is Action.PREFILL:
            between.append(decodes)
            decodes = 0
        else:
            decodes += 1
    return between


def beside_a_stream(worker: HandDrivenWorker, model: LanguageModel, settings: SchedulerSettings) -> None:
    """A stream runs, and a prompt has had its first chunk by these settings."""
    worker.loop.ask(Reconfigure(settings))
    submit(model, max_tokens=ENDLESS)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    submit(model, prompt=PROMPT * 20, max_tokens=10)
    worker.claim()
    assert worker.turn() is Action.PREFILL


def test_a_smaller_chunk_while_debt_is_open_costs_the_prompt_no_more_ticks(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    large = replace(SETTINGS, limits=PrefillLimits(chunk_tokens=64, interval=3))
    beside_a_stream(worker, model, large)
    worker.loop.ask(Reconfigure(replace(large, limits=PrefillLimits(chunk_tokens=16, interval=3))))
    first, *others = ticks_between_prompts(worker)
    assert first == 3
    assert set(others) == {3}


def test_a_shorter_interval_holds_for_the_debt_that_is_open(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    patient = replace(SETTINGS, limits=PrefillLimits(chunk_tokens=16, interval=4096))
    beside_a_stream(worker, model, patient)
    worker.loop.ask(Reconfigure(replace(patient, limits=PrefillLimits(chunk_tokens=16, interval=2))))
    assert set(ticks_between_prompts(worker)) == {2}


@given(st.lists(st.floats(0.01, 40), min_size=2, max_size=12), st.integers(1, 20))
def test_whatever_a_chunk_takes_and_becomes_a_full_one_costs_the_interval_in_decode_ticks(
    token_ms: list[float], interval: int
) -> None:
    pace = Pace()
    limits = PrefillLimits(CHUNK, interval)
    terms = Terms(replace(FOLLOWING, limits=limits, itl_target=None, longest_stall_ms=100), pace)
    last, decodes, prompts = decide_tick(TickState()), interval, iter(token_ms)
    while True:
        state = TickState(
            decoding=1,
            prefills=1,
            next_prefill_tokens=terms.limits.chunk_tokens,
            limits=terms.limits,
            prefill_debt=terms.open_debt(last),
        )
        last = terms.charged(state, decide_tick(state))
        if last.action is Action.DECODE:
            decodes += 1
            continue
        assert decodes == interval
        if (took := next(prompts, None)) is None:
            break
        decodes = 0
        pace.prefilled(
            state.next_prefill_tokens, state.next_prefill_tokens * took / 1000, terms.limits.chunk_tokens
        )
        terms.prompt_ran()
