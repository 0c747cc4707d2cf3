"""A10: a tenant that sends what another one has sent is served as if nobody ever had."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import redis

from accounts.principal import Principal
from inference.dispatch import keys
from inference.engine.engine import Engine
from inference.messages import PrefillProgress, tick_entry_decoder
from inference.models import LanguageModel
from inference.scheduling.tick import Action
from tests.inference.doors import entitled_principal
from tests.inference.worker.conftest import (
    GREEDY,
    SETTINGS,
    HandDrivenWorker,
    alone,
    end_of,
    submit,
    tokens_of,
)

CHUNK = SETTINGS.limits.chunk_tokens
#: Twenty chunks, the last of which is not full.
LONG_PROMPT = [3 + (7 * position) % 50 for position in range(20 * CHUNK - 5)]
ANSWER = 4


@dataclass(frozen=True)
class Served:
    """All that a client can learn of how its request was served. Ticks tell what a clock would, and exactly."""

    ticks: tuple[Action, ...]
    progress: tuple[tuple[int, int], ...]
    cached_tokens: int
    tokens: tuple[int, ...]

    @property
    def prompt_ticks(self) -> int:
        return self.ticks.count(Action.PREFILL)


@pytest.fixture
def worker(model: LanguageModel, engine: Engine, valkey: redis.Redis) -> HandDrivenWorker:
    caching = HandDrivenWorker(
        engine, valkey, model.name, settings=replace(SETTINGS, prefix_cache_bytes=1 << 24)
    )
    caching.turn()
    return caching


def serve(worker: HandDrivenWorker, model: LanguageModel, by: Principal, prompt: list[int]) -> Served:
    generation = submit(model, by=by, prompt=prompt, max_tokens=ANSWER)
    worker.claim()
    ticks = []
    while (action := worker.turn()) is not Action.IDLE:
        ticks.append(action)
    log = worker.log(generation)
    published = [
        publication
        for _, fields in worker.client.xrange(keys.STREAM)
        for key, publication in tick_entry_decoder.decode(fields[b"tick"]).publications
        if key == generation
    ]
    told = tuple((one.done, one.total) for one in published if isinstance(one, PrefillProgress))
    return Served(tuple(ticks), told, end_of(log).usage.cached_tokens, tuple(tokens_of(log)))


def test_a10_another_tenants_long_prompt_is_as_cold_as_one_that_was_never_seen(
    model: LanguageModel, worker: HandDrivenWorker
) -> None:
    owner, stranger = entitled_principal(), entitled_principal()
    cold = serve(worker, model, owner, LONG_PROMPT)
    assert (cold.prompt_ticks, cold.cached_tokens) == (20, 0)
    warm = serve(worker, model, owner, LONG_PROMPT)
    assert warm.cached_tokens > 19 * CHUNK - 5, "its own owner finds it"
    assert warm.prompt_ticks == 1

    hits = worker.metrics.prefix_hits.value
    assert serve(worker, model, stranger, LONG_PROMPT) == cold
    # Nor does it learn how far the other one's goes, by guessing ever longer beginnings of it.
    for guess in (LONG_PROMPT[: 5 * CHUNK], LONG_PROMPT[: 12 * CHUNK + 3]):
        newcomer = entitled_principal()
        found = serve(worker, model, newcomer, guess)
        never_seen = serve(worker, model, newcomer, [60 + token % 7 for token in guess])
        assert found == replace(never_seen, tokens=found.tokens)
        assert found.cached_tokens == 0
    assert worker.metrics.prefix_hits.value == hits
    # What the stranger has sent itself by now is its own, and changes nothing for the owner.
    assert serve(worker, model, stranger, LONG_PROMPT) == serve(worker, model, owner, LONG_PROMPT) == warm
    worker.engine.set_prefix_budget(0)
    assert cold.tokens == tuple(alone(worker.engine, LONG_PROMPT, GREEDY, ANSWER))
