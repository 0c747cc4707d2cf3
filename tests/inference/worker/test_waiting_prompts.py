"""A prompt waits while one that begins alike is run: what is decided about it is what is left of it by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from inference.engine.engine import Engine
from inference.models import LanguageModel
from tests.inference.doors import entitled_principal
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
from tests.inference.worker.test_slot import SlotWorker, drafter, slot_worker

__all__ = ["drafter", "slot_worker"]

CACHE_BYTES = 1 << 24


@pytest.fixture
def worker(model: LanguageModel, engine: Engine, valkey: redis.Redis) -> Iterator[HandDrivenWorker]:
    """One that keeps prefixes, and has none yet."""
    engine.evict(engine.prefix_cache_bytes)
    worker = HandDrivenWorker(
        engine, valkey, model.name, settings=replace(SETTINGS, prefix_cache_bytes=CACHE_BYTES)
    )
    worker.turn()
    yield worker
    for key in engine.keys:
        engine.drop(key)


def test_a_prompt_is_charged_for_what_it_runs(worker: HandDrivenWorker, model: LanguageModel) -> None:
    by = entitled_principal()
    lane = worker.metrics.prefill("normal")
    before = replace(worker.engine.prefix_counters)
    stream = submit(model, by=by, prompt=[7, 8, 9], max_tokens=60)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    first = submit(model, by=by)
    worker.claim()
    worker.turn_until(lambda: lane.chunks.value == 2)
    second = submit(model, by=by)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 3)
    assert lane.tokens.value == 3 + len(PROMPT) + 1
    assert lane.debt.value == (len(PROMPT) + 1) * 2
    now = worker.engine.prefix_counters
    assert now.lookups - before.lookups == 3, "each is counted once, however often it was looked up"
    assert now.hits - before.hits == 1
    worker.run_dry()
    usages = [end_of(worker.log(key)).usage.cached_tokens for key in (stream, first, second)]
    assert usages == [0, 0, len(PROMPT) - 1]
    assert tokens_of(worker.log(second)) == alone(worker.engine, PROMPT, GREEDY, 12)


def test_a_prompt_that_a_hit_brings_down_to_its_last_chunk_is_offered_the_slot(
    model: LanguageModel, engine: Engine, slot_worker: Callable[..., SlotWorker]
) -> None:
    worker = slot_worker()
    engine.set_prefix_budget(CACHE_BYTES)
    engine.evict(engine.prefix_cache_bytes)
    worker.memory.budget = replace(worker.memory.budget, prefix_cache=CACHE_BYTES)
    by = entitled_principal()
    submit(model, by=by)
    worker.claim()
    worker.turn()
    second = submit(model, by=by)
    worker.claim()
    worker.turn()
    assert not worker.loop.roster[second].begun
    worker.turn_until(lambda: worker.loop.roster[second].begun)
    assert worker.loop.roster[second].slot_offered
    assert worker.engine.cached_tokens(second) == len(PROMPT) - 1
