"""Taking generations out of the queue, and writing the end of those that no worker ends."""

from __future__ import annotations

import redis

from inference.dispatch import claims, keys, publishing, token_log
from inference.dispatch.queue import DispatchQueue, Withdrawal, WithdrawOutcome
from inference.messages import CancelReason, EndState, tick_entry_decoder
from inference.scheduling.fair_share import SCALE
from tests.inference.dispatch.conftest import MODEL, delta, end, let_lease_lapse, make_task

REASON = CancelReason.CLIENT_REQUESTED


def test_a_queued_generation_is_out_of_the_queue(queue: DispatchQueue, valkey: redis.Redis) -> None:
    gone, stays = make_task(), make_task()
    queue.enqueue(gone)
    queue.enqueue(stays)
    assert queue.withdraw(gone.generation, REASON) == Withdrawal(WithdrawOutcome.QUEUED, epoch=1, last_seq=0)
    claim = claims.claim(valkey, "worker", MODEL, 30).claim
    assert claim is not None
    assert claim.task == stays
    assert claims.claim(valkey, "worker", MODEL, 30).claim is None


def test_withdrawing_the_last_of_a_tenant_leaves_the_lane_in_order(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    gone, stays = make_task(tenant="gone", rank=0), make_task(tenant="stays")
    queue.enqueue(gone)
    queue.enqueue(stays)
    queue.withdraw(gone.generation, REASON)
    assert valkey.exists(f"dispatch:tenants:{MODEL}:0") == 0
    claim = claims.claim(valkey, "worker", MODEL, 30).claim
    assert claim is not None
    assert claim.task == stays


def test_a_running_generation_is_left_to_its_worker(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    publishing.publish(valkey, "worker", [(task.generation, 1, delta(1))])
    assert queue.withdraw(task.generation, REASON) == Withdrawal(WithdrawOutcome.RUNNING, 1, 1)
    assert publishing.publish(valkey, "worker", [(task.generation, 1, delta(2))]).cancelled == {
        task.generation: REASON
    }


def test_the_first_reason_stands(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    queue.withdraw(task.generation, REASON)
    queue.withdraw(task.generation, CancelReason.OPERATOR_REQUESTED)
    assert publishing.publish(valkey, "worker", []).cancelled == {task.generation: REASON}


def test_what_a_silent_worker_holds_is_taken_from_it(queue: DispatchQueue, valkey: redis.Redis) -> None:
    """A cancel does not wait for a worker that may never come back; should it come, it is a ghost."""
    task = make_task()
    queue.enqueue(task)
    claims.claim(valkey, "silent", MODEL, 30)
    publishing.publish(valkey, "silent", [(task.generation, 1, delta(1))])
    let_lease_lapse(valkey, task.generation)
    withdrawal = queue.withdraw(task.generation, REASON)
    assert withdrawal == Withdrawal(WithdrawOutcome.QUEUED, epoch=2, last_seq=1)
    assert publishing.publish(valkey, "silent", [(task.generation, 1, delta(2))]).refused == {task.generation}
    assert publishing.append_end(valkey, task.generation, 2, end(2, 2, state=EndState.CANCELLED))
    queue.withdraw(task.generation, REASON)
    assert queue.withdrawals(MODEL) == {(1, REASON): 1}, "no worker tells of it"
    assert queue.counters(MODEL)["lapses"] == 1


def test_an_unknown_generation_is_barred_from_the_queue(queue: DispatchQueue) -> None:
    """A cancel may overtake the enqueue of what it cancels."""
    task = make_task()
    withdrawal = queue.withdraw(task.generation, REASON, epoch_floor=3)
    assert withdrawal == Withdrawal(WithdrawOutcome.UNKNOWN, epoch=4, last_seq=0)
    assert not queue.enqueue(task)
    assert queue.depths(MODEL) == {}


def test_what_has_its_end_in_the_log_is_said_to_have_ended(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    publishing.publish(valkey, "worker", [(task.generation, 1, end(1))])
    assert queue.withdraw(task.generation, REASON) == Withdrawal(WithdrawOutcome.RUNNING, 1, 1), "it settles"
    let_lease_lapse(valkey, task.generation)
    assert queue.withdraw(task.generation, REASON) == Withdrawal(WithdrawOutcome.ENDED, 1, 1)
    claims.acknowledge(valkey, task.generation, 1, 0)
    assert queue.withdraw(task.generation, REASON) == Withdrawal(WithdrawOutcome.ENDED, 1, 1)


def test_withdrawing_may_be_repeated(queue: DispatchQueue) -> None:
    """Whoever crashed between withdrawing and writing the end is followed by the sweep."""
    task = make_task()
    queue.enqueue(task)
    assert queue.withdraw(task.generation, REASON) == queue.withdraw(task.generation, REASON)


def test_what_is_withdrawn_while_it_waits_is_counted_once_by_lane_and_reason(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    running = make_task(rank=0)
    queue.enqueue(running)
    claims.claim(valkey, "worker", MODEL, 30)
    waiting = [make_task(rank=rank) for rank in (1, 1, 2)]
    for task in waiting:
        queue.enqueue(task)
    for task in (running, *waiting, *waiting):
        queue.withdraw(task.generation, REASON)
    late = make_task(rank=2)
    queue.enqueue(late)
    queue.withdraw(late.generation, CancelReason.QUEUE_WAIT_EXCEEDED)
    assert queue.withdrawals(MODEL) == {
        (1, REASON): 2,
        (2, REASON): 1,
        (2, CancelReason.QUEUE_WAIT_EXCEEDED): 1,
    }
    assert queue.counters(MODEL).keys() == {"arrivals", "claims", "conflicts", "lapses"}


def test_the_end_of_a_withdrawn_generation_is_logged_and_streamed(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    withdrawal = queue.withdraw(task.generation, REASON)
    last = end(1, withdrawal.epoch, state=EndState.CANCELLED)
    assert publishing.append_end(valkey, task.generation, withdrawal.epoch, last)
    assert token_log.read(valkey, task.generation) == [last]
    (entry,) = valkey.xrange(keys.STREAM)
    assert tick_entry_decoder.decode(entry[1][b"tick"]).publications == [(task.generation, last)]
    assert 0 < valkey.pttl(keys.log(task.generation)) <= 900_000
    assert queue.withdraw(task.generation, REASON).outcome is WithdrawOutcome.ENDED


def test_a_generation_ends_in_one_way_only(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    epoch = queue.withdraw(task.generation, REASON).epoch
    cancelled, expired = end(1, epoch, state=EndState.CANCELLED), end(1, epoch, state=EndState.EXPIRED)
    assert publishing.append_end(valkey, task.generation, epoch, cancelled)
    assert publishing.append_end(valkey, task.generation, epoch, cancelled)
    assert not publishing.append_end(valkey, task.generation, epoch, expired)
    assert token_log.read(valkey, task.generation) == [cancelled]


def test_an_end_is_refused_for_what_was_not_withdrawn(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    assert not publishing.append_end(valkey, task.generation, 0, end(1, 0))
    claims.claim(valkey, "worker", MODEL, 30)
    assert not publishing.append_end(valkey, task.generation, 1, end(1))
    assert not publishing.append_end(valkey, make_task().generation, 1, end(1))
    assert token_log.read(valkey, task.generation) == []


def test_an_end_in_another_epoch_is_refused(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    epoch = queue.withdraw(task.generation, REASON).epoch
    assert not publishing.append_end(valkey, task.generation, epoch - 1, end(1, epoch - 1))
    assert token_log.read(valkey, task.generation) == []


def test_an_end_that_leaves_a_gap_is_refused(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    epoch = queue.withdraw(task.generation, REASON).epoch
    assert not publishing.append_end(valkey, task.generation, epoch, end(2, epoch))


def test_what_was_never_charged_gives_nothing_back(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    epoch = queue.withdraw(task.generation, REASON).epoch
    publishing.append_end(valkey, task.generation, epoch, end(1, epoch))
    assert valkey.exists(f"dispatch:finishes:{MODEL}:1") == 0


def test_what_was_charged_gives_back_what_it_did_not_use(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task(prompt_tokens=3, max_tokens=7)
    queue.enqueue(task)
    claims.claim(valkey, "worker", MODEL, 30)
    claims.requeue(valkey, task.generation, 1)
    epoch = queue.withdraw(task.generation, REASON).epoch
    publishing.append_end(valkey, task.generation, epoch, end(1, epoch, completion_tokens=2))
    assert valkey.hget(f"dispatch:finishes:{MODEL}:1", "acme") == str(5 * SCALE).encode()
