"""What a generation's first run found in the prefix cache is what its tenant pays for as cached, however often another
run has to go on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest
import redis
from django import db

from accounts.models import LedgerEntry
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference import cancellation
from inference.engine.engine import Engine
from inference.messages import CancelReason, Delta
from inference.models import LanguageModel
from inference.models.generation import GenerationState
from inference.worker import claim_thread, roster
from inference.worker.requests import Cancel, Drop
from tests.inference.dispatch.conftest import let_lease_lapse
from tests.inference.doors import entitled_principal, row
from tests.inference.worker.conftest import (
    PROMPT,
    SETTINGS,
    HandDrivenWorker,
    WorkerInThread,
    end_of,
    submit,
    tokens_of,
    wait_until,
)
from tests.inference.worker.test_room import made_room

ROOM = 1 << 24
TURN = [3 + (7 * i) % 50 for i in range(60)]
#: What is said next: as much again is not known.
NEXT = [*TURN, *PROMPT * 3]


@pytest.fixture
def make_worker(
    model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> Iterator[Callable[..., HandDrivenWorker]]:
    """Workers of one slot, which use one engine one after the other: what one has left there the next one finds."""

    def make(name: str = "by-hand") -> HandDrivenWorker:
        settings = replace(SETTINGS, slots=1, prefix_cache_bytes=ROOM)
        return HandDrivenWorker(engine, valkey, model.name, name=name, settings=settings)

    yield make
    for key in engine.keys:
        engine.drop(key)
    engine.set_prefix_budget(0)


def has_spoken(worker: HandDrivenWorker, model: LanguageModel) -> Principal:
    """A tenant of the low lane whose first turn is in the prefix cache."""
    by = entitled_principal("low")
    submit(model, by=by, requested_lane="low", prompt=TURN, max_tokens=2)
    worker.claim()
    worker.run_dry()
    return by


def preempt(worker: HandDrivenWorker, model: LanguageModel) -> HandDrivenWorker:
    high = submit(model, by=entitled_principal("high"), requested_lane="high", max_tokens=2)
    made_room(worker, high)
    worker.run_dry()
    return worker


def drain(worker: HandDrivenWorker, model: LanguageModel) -> HandDrivenWorker:
    worker.loop.hand_back()
    return HandDrivenWorker(worker.engine, worker.client, model.name, name="second", settings=worker.settings)


def kill(worker: HandDrivenWorker, model: LanguageModel) -> HandDrivenWorker:
    """The next one has a process of its own: its cache has nothing."""
    [key] = worker.engine.keys
    worker.engine.drop(key)
    worker.engine.set_prefix_budget(0)
    let_lease_lapse(worker.client, key, model.name)
    return HandDrivenWorker(worker.engine, worker.client, model.name, name="second", settings=worker.settings)


def stall(worker: HandDrivenWorker, model: LanguageModel) -> HandDrivenWorker:
    """For longer than its lease, as when it is stopped. It takes its own work again, and still has it then."""
    [key] = worker.engine.keys
    let_lease_lapse(worker.client, key, model.name)
    worker.holdings.resize(2)
    return worker


def lose(worker: HandDrivenWorker, model: LanguageModel) -> HandDrivenWorker:
    """As above, but it has let go of it before it takes it again."""
    [key] = worker.engine.keys
    let_lease_lapse(worker.client, key, model.name)
    worker.loop.ask(Drop({key: worker.loop.roster[key].epoch}))
    worker.turn()
    assert worker.engine.keys == ()
    return worker


def goes_on(worker: HandDrivenWorker, model: LanguageModel) -> str:
    """The next turn of somebody who has spoken, whose first chunk is run."""
    by = has_spoken(worker, model)
    generation = submit(model, by=by, requested_lane="low", prompt=NEXT, max_tokens=8)
    worker.claim()
    worker.turn_until(lambda: generation in worker.engine.keys and worker.loop.roster[generation].begun)
    return generation


Interrupt = Callable[[HandDrivenWorker, LanguageModel], HandDrivenWorker]


@pytest.mark.parametrize(
    ("interrupt", "logged"),
    [(preempt, 3), (preempt, 0), (drain, 3), (drain, 0), (kill, 3), (stall, 3), (stall, 0), (lose, 0)],
)
def test_what_the_first_run_found_is_what_the_last_one_tells(
    make_worker: Callable[..., HandDrivenWorker], model: LanguageModel, interrupt: Interrupt, logged: int
) -> None:
    """Whether it is interrupted after some tokens, or in the middle of its prompt, with nothing in its log."""
    worker = make_worker()
    generation = goes_on(worker, model)
    worker.turn_until(lambda: len(worker.log(generation)) >= logged)
    found = worker.loop.roster[generation].cached_tokens
    assert found is not None
    assert len(TURN) <= found < len(TURN) + SETTINGS.limits.chunk_tokens
    assert len(worker.log(generation)) == logged

    second = interrupt(worker, model)
    before = second.metrics.lane("low").cached_tokens.value
    second.claim()
    second.run_dry()
    usage = end_of(second.log(generation)).usage
    assert usage.completion_tokens == 8
    assert usage.cached_tokens == found
    assert second.metrics.lane("low").cached_tokens.value == before + found
    first, *others = [entry for entry in second.log(generation) if isinstance(entry, Delta)]
    assert first.cached == found
    assert not any(entry.cached for entry in others)


def test_what_was_lost_before_anything_of_it_was_run_tells_what_the_next_run_finds(
    make_worker: Callable[..., HandDrivenWorker], model: LanguageModel
) -> None:
    """It has left nothing there itself."""
    worker = make_worker()
    by = has_spoken(worker, model)
    generation = submit(model, by=by, requested_lane="low", prompt=NEXT, max_tokens=2)
    worker.claim()
    let_lease_lapse(worker.client, generation, model.name)
    worker.holdings.resize(2)
    assert worker.claim().lapses == 1
    worker.run_dry()
    assert end_of(worker.log(generation)).usage.cached_tokens >= len(TURN)


def cancelled_before_its_first_chunk(worker: HandDrivenWorker) -> tuple[int, int]:
    """Claim what waits and cancel it once it is admitted: tokens of its prompt that were run, and cached ones."""
    generation = worker.claim().task.generation
    worker.loop.ask(Cancel({generation: CancelReason.CLIENT_DISCONNECTED}))
    worker.turn()
    end = end_of(worker.log(generation))
    assert end.cancel_reason is CancelReason.CLIENT_DISCONNECTED
    return end.usage.prompt_tokens, end.usage.cached_tokens


def test_a_cancel_before_the_first_chunk_costs_nothing_whatever_was_found(
    make_worker: Callable[..., HandDrivenWorker], model: LanguageModel
) -> None:
    worker = make_worker()
    by = has_spoken(worker, model)
    submit(model, by=by, requested_lane="low", prompt=NEXT, max_tokens=8)
    hits = worker.engine.prefix_counters.hits
    assert cancelled_before_its_first_chunk(worker) == (0, 0)
    assert worker.engine.prefix_counters.hits == hits, "nothing of it was run"


@pytest.mark.parametrize("interrupt", [drain, stall, lose])
def test_a_cancel_before_the_first_chunk_of_a_later_run_costs_what_the_earlier_one_ran(
    make_worker: Callable[..., HandDrivenWorker], model: LanguageModel, interrupt: Interrupt
) -> None:
    worker = make_worker()
    generation = goes_on(worker, model)
    sequence = worker.loop.roster[generation]
    done, _ = worker.loop.roster.progress(sequence)
    assert sequence.cached_tokens is not None
    assert len(TURN) <= sequence.cached_tokens < done < len(NEXT)
    second = interrupt(worker, model)
    assert cancelled_before_its_first_chunk(second) == (done, sequence.cached_tokens)


def test_what_those_found_that_have_left_is_remembered_of_the_latest_only(
    make_worker: Callable[..., HandDrivenWorker], model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "_REMEMBERED", 2)
    worker = make_worker()
    _, *latest = [submit(model, max_tokens=2) for _ in range(3)]
    for _ in range(3):
        worker.claim()
        worker.run_dry()
    assert list(worker.loop.roster._found) == latest


def test_a_cancel_after_its_worker_died_charges_as_cached_what_was_found(
    make_worker: Callable[..., HandDrivenWorker], model: LanguageModel, valkey: redis.Redis
) -> None:
    worker = make_worker()
    by = has_spoken(worker, model)
    generation = submit(model, by=by, requested_lane="low", prompt=NEXT, max_tokens=8)
    worker.claim()
    worker.turn_until(lambda: len(worker.log(generation)) == 3)
    found = worker.loop.roster[generation].cached_tokens
    kill(worker, model)
    cancellation.cancel(UUID(generation), CancelReason.CLIENT_REQUESTED)
    assert row(generation).state == GenerationState.CANCELLED
    with every_tenant("the test looks at the ledger"):
        entry = LedgerEntry.objects.get(generation_id=UUID(generation))
    assert (entry.prompt_tokens, entry.cached_tokens) == (len(NEXT), found)
    assert entry.completion_tokens == len(tokens_of(worker.log(generation)[:-1]))


def test_a_claim_that_was_given_back_before_anything_was_run_costs_its_successor_nothing(
    start_worker: Callable[..., WorkerInThread], model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it hide how long the generation had to wait while the database was away."""
    start, away = claim_thread.start, list[int]()
    first = ""

    def away_at_first(generation_id: UUID, epoch: int) -> bool:
        if first and generation_id.hex != first and epoch <= 2:
            away.append(epoch)
            raise db.OperationalError("the database is away")
        return start(generation_id, epoch)

    def settled(generation: str) -> int:
        wait_until(lambda: row(generation).state == GenerationState.COMPLETED)
        return row(generation).cached_tokens

    monkeypatch.setattr(claim_thread, "start", away_at_first)
    metrics, by = start_worker().process.metrics, entitled_principal()
    turn = submit(model, by=by, prompt=TURN, max_tokens=2)
    assert settled(turn) == 0
    first = turn
    second = submit(model, by=by, prompt=NEXT, max_tokens=2)
    assert settled(second) >= len(TURN)
    assert row(second).epoch == 3
    assert away == [1, 2]
    series = metrics.counters.snapshot()
    assert series["requeues_total"] == 2
    assert series['queue_wait_seconds_count{lane="normal"}'] == 2
