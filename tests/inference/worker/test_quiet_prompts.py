"""Prompts while nothing streams: longer ticks, and ends that are shared, by a real engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from inference.engine.engine import Engine
from inference.messages import CancelReason, EndState, PrefillProgress, Sampling
from inference.models import LanguageModel
from inference.scheduling.speculation import DeclineReason, Outcome, SpeculationMode
from inference.scheduling.tick import Action
from inference.worker.pace import Pace
from inference.worker.requests import Cancel, Reconfigure, Rule
from inference.worker.terms import Terms
from tests.inference.worker.conftest import (
    GREEDY,
    PROMPT,
    SETTINGS,
    HandDrivenWorker,
    alone,
    end_of,
    submit,
    tokens_of,
)
from tests.inference.worker.test_loop import published
from tests.inference.worker.test_slot import SlotWorker, drafter, slot_worker, speculating, verdict

__all__ = ["drafter", "slot_worker"]

#: Chunks are of 16 tokens, and quiet ticks of 64 at most, however slow this machine is.
UNHURRIED = replace(SETTINGS, quiet_tick_ms=math.inf)
LONG_PROMPT = [*PROMPT, *PROMPT, *PROMPT]  # 60 tokens


@pytest.fixture
def worker(worker: HandDrivenWorker) -> HandDrivenWorker:
    worker.loop.ask(Reconfigure(UNHURRIED))
    return worker


def progress(client: redis.Redis) -> list[tuple[str, int]]:
    return [(key, one.done) for key, one in published(client) if isinstance(one, PrefillProgress)]


def test_a_lone_prompt_is_run_in_one_chunk_and_then_in_quiet_ticks(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis, engine: Engine
) -> None:
    expected = alone(engine, LONG_PROMPT * 3, GREEDY, 12)
    generation = submit(model, prompt=LONG_PROMPT * 3)  # 180 tokens
    worker.claim()
    assert worker.turns(5) == [Action.PREFILL] * 4 + [Action.DECODE]
    assert [done for _, done in progress(valkey)] == [16, 80, 116, 180]
    worker.run_dry()
    assert tokens_of(worker.log(generation)) == expected
    assert worker.metrics.quiet_tokens.value == 64
    assert worker.metrics.chunk_tokens.value == 16


def test_prompts_that_come_while_the_first_one_begins_end_with_it_and_say_what_each_says_alone(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis, engine: Engine
) -> None:
    prompts = [LONG_PROMPT, LONG_PROMPT[1:], LONG_PROMPT[3:]]
    samplings = [GREEDY, Sampling(seed=7, temperature=1.0), GREEDY]
    expected = [alone(engine, *pair, 12) for pair in zip(prompts, samplings, strict=True)]
    first, second, third = (
        submit(model, prompt=prompt, sampling=sampling)
        for prompt, sampling in zip(prompts, samplings, strict=True)
    )
    worker.claim()
    worker.turn()
    worker.claim()
    worker.claim()
    assert worker.turns(5) == [Action.PREFILL] * 4 + [Action.DECODE]
    # Each comes down to a tail of 64 / 3 tokens, and then all end in one tick.
    assert progress(valkey) == [
        (first, 16),
        (first, 39),
        (second, 38),
        (third, 36),
        (first, 60),
        (second, 59),
        (third, 57),
    ]
    assert worker.loop.roster.decoding_rows == 3
    assert worker.metrics.prefill("normal").held.value == 1 + 2
    worker.run_dry()
    assert [tokens_of(worker.log(key)) for key in (first, second, third)] == expected
    assert worker.metrics.ticks[Action.DECODE].value == 12, "all of them in the same ticks"


def test_beside_a_stream_chunks_stay_chunks(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    submit(model, max_tokens=200)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    worker.turns(3)
    long = submit(model, prompt=LONG_PROMPT)
    worker.claim()
    prefill, decode = Action.PREFILL, Action.DECODE
    assert worker.turns(10) == [prefill, decode, decode] * 3 + [prefill]
    assert [done for key, done in progress(valkey) if key == long] == [16, 32, 48, 60]


def test_once_the_last_stream_has_ended_prompts_are_run_in_quiet_ticks(
    worker: HandDrivenWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    stream = submit(model, prompt=PROMPT[:5], max_tokens=4)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    long = submit(model, prompt=LONG_PROMPT * 3)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 0)
    assert end_of(worker.log(stream)).state is EndState.COMPLETED
    before = progress(valkey)[-1][1]
    assert worker.turn() is Action.PREFILL
    assert progress(valkey)[-1] == (long, before + 64)


def test_who_is_held_is_cancelled_within_a_tick_and_holds_nobody_up(
    worker: HandDrivenWorker, model: LanguageModel, engine: Engine
) -> None:
    first, second = submit(model, prompt=LONG_PROMPT), submit(model, prompt=LONG_PROMPT)
    worker.claim()
    worker.turn()
    worker.claim()
    worker.turn()
    worker.loop.ask(Cancel({first: CancelReason.CLIENT_REQUESTED}))
    assert worker.turn() is Action.PREFILL
    end = end_of(worker.log(first))
    assert (end.state, end.usage.prompt_tokens) == (EndState.CANCELLED, 28)
    assert engine.keys == (second,)
    worker.run_dry()
    assert end_of(worker.log(second)).state is EndState.COMPLETED


def test_what_quiet_ticks_cost_does_not_count_as_the_price_of_a_chunk() -> None:
    pace = Pace()
    pace.prefilled(16, 0.160, 16)
    pace.prefilled(64, 0.064, 16)
    assert pace.prompt_token_ms == pace.dear_prompt_token_ms == pytest.approx(10)
    assert pace.full_chunk_token_ms == pytest.approx(1)
    pace.prefilled(3, 0.3, 16)
    assert pace.full_chunk_token_ms == pytest.approx(1), "the end of a prompt says little of what follows it"


def test_a_quiet_tick_is_as_long_as_the_last_one_says_that_it_may_be() -> None:
    pace = Pace()
    terms = Terms(replace(SETTINGS, quiet_tick_ms=1000), pace)
    assert terms.limits.quiet_tokens == 16, "not measured yet"
    for token_ms, tokens in ((1, 64), (20, 32), (50, 16), (1, 64)):
        pace.prefilled(16, 16 * token_ms / 1000, 16)
        terms.prompt_ran()
        assert terms.limits.quiet_tokens == tokens


# Beside a drafter


def test_a_prompt_still_comes_to_the_slot_with_its_last_chunk(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker()
    worker.loop.ask(Reconfigure(replace(speculating(), quiet_tick_ms=math.inf)))
    submit(model, prompt=LONG_PROMPT, max_tokens=3)
    worker.claim()
    # 16 and 28 tokens, and the last 16 as slice 0.
    assert worker.turns(4) == [Action.PREFILL] * 2 + [Action.SPECULATE] * 2


def test_prompts_that_could_end_together_do_so_where_the_batch_is_better_than_the_slot(
    model: LanguageModel, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker()
    measured = speculating(mode=SpeculationMode.MEASURED)
    worker.loop.ask(Reconfigure(replace(measured, quiet_tick_ms=math.inf)))
    worker.loop.ask(Rule(verdict(Outcome.ENABLED, 1.3)))
    for _ in range(2):
        submit(model, prompt=LONG_PROMPT, max_tokens=3)
    worker.claim()
    worker.turn()
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 2)
    assert Action.DECODE not in worker.actions
    assert Action.SPECULATE not in worker.actions
    assert worker.metrics.declines(DeclineReason.BATCH_IS_BETTER, "normal").value == 2
