"""What a worker knows of the others that serve its model, and what it leaves to them."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest
import redis

from inference import cancellation
from inference.api.streaming import failure_of
from inference.dispatch import heartbeats, token_log
from inference.dispatch.queue import DispatchQueue
from inference.intake import RefusalCode, Refused
from inference.messages import CancelReason, Heartbeat
from inference.models import LanguageModel
from inference.models.generation import GenerationState
from inference.worker import heartbeat_thread, housekeeping
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvBudget, KvMemory
from inference.worker.neighbours import Neighbours, longest_of
from tests.heartbeats import heartbeats_last, make_heartbeat
from tests.inference.doors import row
from tests.inference.worker.conftest import PROMPT, WorkerInThread, end_of, submit, wait_until
from tests.inference.worker.test_process import StartWorker, wait_for_state

__all__ = ["heartbeats_last"]

LEASE_S = 15.0
#: Of the tiny model, 512 bytes a token: what the MiB of the worker under test has room for, and what another has.
SMALL, LARGE = 2048, 4096


def other(model: str, longest: int | None, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {"worker": "a" * 32, "model": model, "longest_sequence": longest}
    return make_heartbeat(time.time(), **{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 100),
        ({"draining": True}, 0),
        ({"ready": False}, 0),
        ({"longest_sequence": None}, 0),
        ({"progressed_at": time.time() - 2 * LEASE_S}, 0),
    ],
)
def test_only_a_worker_that_takes_work_on_counts(changes: dict[str, Any], longest: int) -> None:
    assert longest_of([other("m", 100, **changes)], LEASE_S) == longest
    assert longest_of([other("m", 100, **changes), other("m", 50)], LEASE_S) == max(longest, 50)
    assert longest_of([], LEASE_S) == 0


def test_a_worker_is_not_its_own_neighbour_nor_that_of_another_model_s(valkey: redis.Redis) -> None:
    budget = KvBudget(total=0, watermark=0, prefix_cache=0)
    memory = KvMemory(Holdings(1, 1.0), budget, bytes_per_token=1, step=1)
    look = Neighbours(valkey, "b" * 32, "m", LEASE_S, memory)
    seen = [memory.longest_elsewhere]
    heartbeats.beat(valkey, other("m", 900, worker="b" * 32))
    heartbeats.beat(valkey, other("another", 800, worker="c" * 32))
    look()
    seen.append(memory.longest_elsewhere)
    heartbeats.beat(valkey, other("m", 700))
    look()
    seen.append(memory.longest_elsewhere)
    assert seen == [None, 0, 700]
    assert memory.capacity().longest_elsewhere == 700


@pytest.fixture
def small_worker(
    model: LanguageModel, start_worker: StartWorker, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> WorkerInThread:
    """It starts while another lives that has room for twice as much."""
    monkeypatch.setattr(housekeeping, "_SETTINGS_S", 0.1)
    monkeypatch.setattr(heartbeat_thread, "_INTERVAL_S", 0.1)
    LanguageModel.objects.update(kv_budget_mib=1, kv_capacity_tokens=LARGE)
    model.refresh_from_db()
    heartbeats.beat(valkey, other(model.name, LARGE))
    return start_worker()


def known_to_the_door(model: LanguageModel) -> int | None:
    model.refresh_from_db()
    return model.kv_capacity_tokens


def beats_of(worker: WorkerInThread, client: redis.Redis) -> list[Heartbeat]:
    return [beat for beat in heartbeats.heartbeats(client) if beat.worker == worker.process.id]


def test_a_worker_with_less_memory_than_another_that_lives_closes_no_door(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    assert known_to_the_door(model) == LARGE
    LanguageModel.objects.update(slots=3)  # whatever it tells anew, the other one lives
    wait_until(lambda: any(beat.slots == 3 for beat in beats_of(small_worker, valkey)))
    assert {beat.longest_sequence for beat in beats_of(small_worker, valkey)} == {SMALL}
    assert known_to_the_door(model) == LARGE
    submit(model, max_tokens=LARGE - len(PROMPT))
    small_worker.stop()
    assert known_to_the_door(model) == LARGE


def test_the_door_follows_those_that_are_left(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    heartbeats.retire(valkey, "a" * 32)
    wait_until(lambda: known_to_the_door(model) == SMALL)
    with pytest.raises(Refused) as refusal:
        submit(model, max_tokens=SMALL)
    assert refusal.value.code is RefusalCode.KV_MEMORY_EXCEEDED
    small_worker.stop()
    assert known_to_the_door(model) == SMALL, "the last that is known, while none lives"


def test_what_only_another_worker_can_hold_waits_for_it_and_passes_nothing_up(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    long = submit(model, max_tokens=3000)
    for _ in range(3):
        wait_for_state(submit(model, max_tokens=2), GenerationState.COMPLETED)
    assert row(long).state == GenerationState.QUEUED
    assert DispatchQueue(valkey).depths(model.name) == {1: 1}
    assert small_worker.process.metrics.deferrals(1).value == 0
    cancellation.cancel(UUID(long), CancelReason.CLIENT_REQUESTED)


def test_it_is_ended_once_nobody_is_left_who_could(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    long = submit(model, max_tokens=3000)
    wait_for_state(submit(model, max_tokens=2), GenerationState.COMPLETED)
    assert row(long).state == GenerationState.QUEUED
    heartbeats.retire(valkey, "a" * 32)
    assert wait_for_state(long, GenerationState.FAILED).failure_code == "kv_memory_exceeded"


def test_what_nobody_can_hold_is_told_the_most_that_anybody_has(
    small_worker: WorkerInThread, model: LanguageModel, valkey: redis.Redis
) -> None:
    model.kv_capacity_tokens = None  # as the door still knows the model
    long = submit(model, max_tokens=LARGE)
    wait_for_state(long, GenerationState.FAILED)
    assert f"memory for {LARGE}." in failure_of(end_of(token_log.read(valkey, long))).message
