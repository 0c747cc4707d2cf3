"""Places, enqueueing and looking at the queue."""

from __future__ import annotations

import pytest
import redis

from inference.dispatch import claims, keys, presence, publishing
from inference.dispatch.queue import PLACE_TTL_S, DispatchQueue
from inference.dispatch.wake import WakeListener
from inference.messages import CancelReason
from tests.inference.dispatch.conftest import MODEL, delta, end, make_task, wait_until


def test_exactly_limit_places_are_given(queue: DispatchQueue) -> None:
    taken = [queue.take_place(MODEL, make_task().generation, 4) for _ in range(10)]
    assert taken.count(True) == 4


def test_a_place_is_taken_once_however_often_it_is_asked_for(queue: DispatchQueue) -> None:
    generation = make_task().generation
    assert queue.take_place(MODEL, generation, 1)
    assert queue.take_place(MODEL, generation, 1)
    assert not queue.take_place(MODEL, make_task().generation, 1)


def test_a_place_given_back_is_free(queue: DispatchQueue) -> None:
    generation = make_task().generation
    queue.take_place(MODEL, generation, 1)
    queue.give_back_place(MODEL, generation)
    assert queue.take_place(MODEL, make_task().generation, 1)


def test_a_place_that_was_never_used_lapses(queue: DispatchQueue, valkey: redis.Redis) -> None:
    generation = make_task().generation
    queue.take_place(MODEL, generation, 1)
    now = valkey.time()[0] * 1000
    lapses_at = valkey.zscore(keys.places(MODEL), generation)
    assert 0 < lapses_at - now <= (PLACE_TTL_S + 1) * 1000
    valkey.zadd(keys.places(MODEL), {generation: now - 1})
    assert queue.take_place(MODEL, make_task().generation, 1)


def test_an_enqueued_generation_keeps_its_place_and_takes_no_second(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.take_place(MODEL, task.generation, 2)
    queue.enqueue(task)
    assert valkey.zcard(keys.places(MODEL)) == 0
    assert queue.take_place(MODEL, make_task().generation, 2)
    assert not queue.take_place(MODEL, make_task().generation, 2)


def test_a_claimed_generation_frees_its_place(queue: DispatchQueue, valkey: redis.Redis) -> None:
    queue.enqueue(make_task())
    assert not queue.take_place(MODEL, make_task().generation, 1)
    claims.claim(valkey, "worker", MODEL, 30)
    assert queue.take_place(MODEL, make_task().generation, 1)


def test_places_are_counted_by_model(queue: DispatchQueue) -> None:
    assert queue.take_place(MODEL, make_task().generation, 1)
    assert queue.take_place("another", make_task().generation, 1)


def test_enqueueing_twice_is_enqueueing_once(queue: DispatchQueue) -> None:
    task = make_task()
    assert queue.enqueue(task)
    assert not queue.enqueue(task)
    assert queue.depths(MODEL) == {1: 1}


def test_a_swept_duplicate_of_a_running_generation_does_not_run_again(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    assert not queue.enqueue(task)
    assert claims.claim(valkey, "worker", MODEL, 30).claim is None


def test_a_swept_duplicate_of_an_ended_generation_does_not_run_again(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    publishing.publish(valkey, "worker", [(task.generation, 1, end(1))])
    claims.acknowledge(valkey, task.generation, 1, 7)
    assert not queue.enqueue(task, epoch_floor=1)
    assert claims.claim(valkey, "worker", MODEL, 30).claim is None


def test_what_valkey_forgot_is_claimed_above_the_databases_epoch(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    queue.enqueue(make_task(), epoch_floor=4)
    claim = claims.claim(valkey, "worker", MODEL, 30).claim
    assert claim is not None
    assert (claim.epoch, claim.log, claim.log_lost) == (5, [], True)


def test_a_first_claim_has_lost_nothing(queue: DispatchQueue, valkey: redis.Redis) -> None:
    queue.enqueue(make_task())
    claim = claims.claim(valkey, "worker", MODEL, 30).claim
    assert claim is not None
    assert (claim.epoch, claim.log, claim.log_lost, claim.lapses) == (1, [], False, 0)


def test_position_counts_higher_lanes_and_earlier_arrivals(queue: DispatchQueue) -> None:
    first, second, high = make_task(), make_task(tenant="other"), make_task(rank=0)
    for task in (first, second, high):
        queue.enqueue(task)
    assert [queue.position(task.generation) for task in (high, first, second)] == [1, 2, 3]


def test_what_is_not_waiting_has_no_position(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    assert queue.position(task.generation) is None
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    assert queue.position(task.generation) is None


def test_depths_are_told_by_lane(queue: DispatchQueue, valkey: redis.Redis) -> None:
    for rank in (0, 2, 2):
        queue.enqueue(make_task(rank=rank))
    assert queue.depths(MODEL) == {0: 1, 2: 2}
    claims.claim(valkey, "worker", MODEL, 30)
    assert queue.depths(MODEL) == {0: 0, 2: 2}


def test_contains_tells_what_waits_or_runs(queue: DispatchQueue, valkey: redis.Redis) -> None:
    running, waiting, withdrawn, unknown = (make_task() for _ in range(4))
    for task in (running, waiting, withdrawn):
        queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    queue.withdraw(withdrawn.generation, CancelReason.CLIENT_REQUESTED)
    asked = [task.generation for task in (running, waiting, withdrawn, unknown)]
    assert queue.contains(asked) == {running.generation, waiting.generation}
    assert queue.contains([]) == set()


def test_memory_pressure_is_the_used_share_of_the_limit(queue: DispatchQueue, valkey: redis.Redis) -> None:
    limit = valkey.config_get("maxmemory")["maxmemory"]
    try:
        valkey.config_set("maxmemory", 0)
        assert queue.memory_pressure() == 0.0

        def is_half() -> bool:
            # What was flushed before the test may still be on its way out.
            valkey.config_set("maxmemory", 2 * int(valkey.info("memory")["used_memory"]))
            return queue.memory_pressure() == pytest.approx(0.5, abs=0.05)

        wait_until(is_half)
    finally:
        valkey.config_set("maxmemory", limit)


def test_beyond_the_memory_limit_nothing_new_comes_in_and_what_runs_still_ends(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    running, waiting = make_task(), make_task()
    queue.enqueue(running)
    queue.enqueue(waiting)
    claims.claim(valkey, "worker", MODEL, 30)
    limit = valkey.config_get("maxmemory")["maxmemory"]
    try:
        valkey.config_set("maxmemory", 1)
        for let_in in (
            lambda: queue.take_place(MODEL, make_task().generation, 10),
            lambda: queue.enqueue(make_task()),
        ):
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                let_in()
        presence.refresh(valkey, [running.generation], 60)
        assert claims.renew(valkey, "worker", {running.generation: 1}, 30) == set()
        tick = [(running.generation, 1, delta(1)), (running.generation, 1, end(2))]
        assert publishing.publish(valkey, "worker", tick).refused == set()
        assert claims.acknowledge(valkey, running.generation, 1, 0)
        epoch = queue.withdraw(waiting.generation, CancelReason.CLIENT_REQUESTED).epoch
        assert publishing.append_end(valkey, waiting.generation, epoch, end(1, epoch))
    finally:
        valkey.config_set("maxmemory", limit)


def test_enqueueing_wakes_whoever_listens_for_the_model(queue: DispatchQueue, valkey: redis.Redis) -> None:
    with WakeListener(valkey, MODEL) as listener, WakeListener(valkey, "another") as other:
        wait_until(
            lambda: (
                dict(valkey.pubsub_numsub(keys.wake_channel(MODEL)))[keys.wake_channel(MODEL).encode()] == 1
            )
        )
        queue.enqueue(make_task())
        queue.enqueue(make_task())
        wait_until(lambda: listener.wait(1.0))
        assert not listener.wait(0.01)
        assert not other.wait(0.01)


def test_requeueing_wakes_too(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    with WakeListener(valkey, MODEL) as listener:
        wait_until(
            lambda: (
                dict(valkey.pubsub_numsub(keys.wake_channel(MODEL)))[keys.wake_channel(MODEL).encode()] == 1
            )
        )
        claims.requeue(valkey, task.generation, 1)
        wait_until(lambda: listener.wait(1.0))
