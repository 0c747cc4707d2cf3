"""The lanes of a queue, as an operator sees them."""

from __future__ import annotations

import redis

from inference.dispatch import claims
from inference.dispatch.queue import DispatchQueue, WaitingLane
from inference.messages import CancelReason
from tests.inference.dispatch.conftest import MODEL, make_task


def test_each_lane_tells_its_depth_its_skips_and_what_came_first(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    assert queue.lanes(MODEL) == {}
    high = [make_task(rank=0) for _ in range(3)]
    low = [make_task(rank=2) for _ in range(2)]
    for task in (*high, *low):
        queue.enqueue(task)
    assert queue.lanes(MODEL) == {
        0: WaitingLane(3, 0, high[0].generation),
        2: WaitingLane(2, 0, low[0].generation),
    }
    for _ in range(2):
        claims.claim(valkey, "worker", MODEL, 30)
    assert queue.lanes(MODEL)[2] == WaitingLane(2, 2, low[0].generation)
    assert queue.lanes(MODEL)[0].depth == 1


def test_an_empty_lane_has_nothing_to_be_skipped(queue: DispatchQueue) -> None:
    task = make_task(rank=1)
    queue.enqueue(task)
    queue.withdraw(task.generation, CancelReason.CLIENT_REQUESTED)
    assert queue.lanes(MODEL) == {1: WaitingLane(0, 0, None)}


def test_lanes_of_one_model_say_nothing_of_another(queue: DispatchQueue) -> None:
    queue.enqueue(make_task(model="another"))
    assert queue.lanes(MODEL) == {}
