"""Claims and leases: one owner, by epoch."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import redis

from inference.dispatch import claims, functions, publishing, token_log
from inference.dispatch.queue import DispatchQueue
from inference.messages import CancelReason, GenerationTask
from inference.scheduling.fair_share import SCALE
from inference.scheduling.memory import Capacity, Room, Verdict
from signalbox import store
from tests.inference.dispatch.conftest import (
    MODEL,
    delta,
    end,
    let_lease_lapse,
    let_time_pass,
    make_task,
)


def claim(client: redis.Redis, worker: str = "worker", lease_s: float = 30) -> claims.Claim:
    claimed = claims.claim(client, worker, MODEL, lease_s).claim
    assert claimed is not None
    return claimed


def claimed_order(client: redis.Redis) -> list[GenerationTask]:
    order = []
    while (claimed := claims.claim(client, "worker", MODEL, 30).claim) is not None:
        order.append(claimed.task)
    return order


def test_an_empty_queue_gives_no_claim(valkey: redis.Redis) -> None:
    assert claims.claim(valkey, "worker", MODEL, 30).claim is None


def test_a_claim_carries_the_task_as_it_was_enqueued(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task(tenant="acme", weight=3)
    queue.enqueue(task)
    assert claim(valkey).task == task


def test_models_do_not_share_a_queue(queue: DispatchQueue, valkey: redis.Redis) -> None:
    queue.enqueue(make_task(model="another"))
    assert claims.claim(valkey, "worker", MODEL, 30).claim is None
    assert claims.claim(valkey, "worker", "another", 30).claim is not None


def test_lanes_are_served_by_rank_with_a_floor(queue: DispatchQueue, valkey: redis.Redis) -> None:
    for _ in range(6):
        queue.enqueue(make_task(rank=0))
    for _ in range(2):
        queue.enqueue(make_task(rank=2))
    assert [task.lane_rank for task in claimed_order(valkey)] == [0, 0, 0, 0, 2, 0, 0, 2]


def test_the_lanes_ledger_is_shared_by_all_workers(queue: DispatchQueue, valkey: redis.Redis) -> None:
    for _ in range(6):
        queue.enqueue(make_task(rank=0))
    queue.enqueue(make_task(rank=1))
    ranks = [claim(valkey, worker).task.lane_rank for worker in ("a", "b", "c", "a", "b")]
    assert ranks == [0, 0, 0, 0, 1]


def test_tenants_take_turns_by_cost(queue: DispatchQueue, valkey: redis.Redis) -> None:
    for _ in range(4):
        queue.enqueue(make_task(tenant="flood"))
    for _ in range(2):
        queue.enqueue(make_task(tenant="modest"))
    served = [task.tenant for task in claimed_order(valkey)]
    assert served == ["flood", "modest", "flood", "modest", "flood", "flood"]


def test_weight_buys_a_larger_share(queue: DispatchQueue, valkey: redis.Redis) -> None:
    for _ in range(4):
        queue.enqueue(make_task(tenant="double", weight=2))
        queue.enqueue(make_task(tenant="single", weight=1))
    served = [task.tenant for task in claimed_order(valkey)][:6]
    assert Counter(served) == {"double": 4, "single": 2}


def test_a_tenant_that_comes_back_after_a_pause_has_no_arrears(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    for tenant in ("paused", *["busy"] * 6):
        queue.enqueue(make_task(tenant=tenant))
    claimed_order(valkey)
    for tenant in ["paused"] * 4 + ["busy"] * 4:
        queue.enqueue(make_task(tenant=tenant))
    served = [task.tenant for task in claimed_order(valkey)]
    assert served == ["paused", "paused", "busy", "paused", "busy", "paused", "busy", "busy"]


def test_what_is_given_back_is_not_forfeited_when_others_are_served(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    for tenant in ["long"] * 4 + ["short"] * 4:
        queue.enqueue(make_task(tenant=tenant, prompt_tokens=1, max_tokens=99))
    first = [claim(valkey) for _ in range(4)]
    assert [one.task.tenant for one in first] == ["long", "short", "long", "short"]
    for one in first[1::2]:
        claims.acknowledge(valkey, one.task.generation, 1, unused_tokens=99)
    assert [task.tenant for task in claimed_order(valkey)] == ["short", "short", "long", "long"]


def test_a_tenants_own_generations_are_served_in_order(queue: DispatchQueue, valkey: redis.Redis) -> None:
    tasks = [make_task() for _ in range(5)]
    for task in tasks:
        queue.enqueue(task)
    assert claimed_order(valkey) == tasks


def test_requeued_work_is_served_first_and_not_charged_again(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    first, second = make_task(), make_task()
    queue.enqueue(first)
    queue.enqueue(second)
    claim(valkey)
    charged = valkey.hget(f"dispatch:finishes:{MODEL}:1", "acme")
    assert claims.requeue(valkey, first.generation, 1)
    again = claim(valkey)
    assert (again.task, again.epoch, again.lapses) == (first, 2, 0)
    assert valkey.hget(f"dispatch:finishes:{MODEL}:1", "acme") == charged
    assert claim(valkey).task == second


def test_what_speaks_against_a_generation_adds_up_from_owner_to_owner(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    assert claim(valkey).suspicion == 0
    assert claims.requeue(valkey, task.generation, 1, suspicion=4)
    assert claim(valkey, "second").suspicion == 4
    assert claims.requeue(valkey, task.generation, 2, preempted=True)
    assert claims.claim(valkey, "third", MODEL, 30).claim is not None
    assert claims.requeue(valkey, task.generation, 3, suspicion=1)
    assert not claims.requeue(valkey, task.generation, 3, suspicion=1), "it is no longer the caller's"
    last = claim(valkey, "fourth")
    assert (last.suspicion, last.preemptions, last.lapses) == (5, 1, 0)


def test_a_claim_is_told_what_its_first_run_found_cached(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    assert claim(valkey).cached is None
    claims.requeue(valkey, task.generation, 1, begun=False)
    assert claim(valkey).cached is None
    claims.requeue(valkey, task.generation, 2, cached=0)
    assert claim(valkey).cached == 0
    claims.requeue(valkey, task.generation, 3)
    assert claim(valkey).cached == 0


def test_a_claim_is_the_first_until_one_was_begun(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task, silent = make_task(), make_task()
    queue.enqueue(task)
    for epoch in (1, 2):
        assert claim(valkey).is_first
        claims.requeue(valkey, task.generation, epoch, begun=False)
    assert claim(valkey).is_first
    claims.requeue(valkey, task.generation, 3)
    assert not claim(valkey).is_first
    queue.enqueue(silent)
    claim(valkey, "silent")
    let_lease_lapse(valkey, silent.generation)
    assert not claim(valkey).is_first, "nobody knows what that one did"


def test_a_claim_knows_for_how_long_its_generation_has_said_nothing(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    assert claim(valkey).silent_s is None
    claims.requeue(valkey, task.generation, 1)
    assert claim(valkey).silent_s is None
    publishing.publish(valkey, "worker", [(task.generation, 2, delta(1, epoch=2))])
    let_time_pass(valkey, task.generation, seconds=40)
    let_lease_lapse(valkey, task.generation)
    silent_s = claim(valkey).silent_s
    assert silent_s is not None
    assert 40 <= silent_s < 60
    publishing.publish(valkey, "worker", [(task.generation, 3, delta(2, epoch=3))])
    claims.requeue(valkey, task.generation, 3)
    silent_s = claim(valkey).silent_s
    assert silent_s is not None
    assert silent_s < 20


def test_requeueing_can_lift_the_epoch_above_the_databases(queue: DispatchQueue, valkey: redis.Redis) -> None:
    """After Valkey lost its last seconds, a claim may come back with an epoch that the database has seen."""
    task = make_task()
    queue.enqueue(task)
    claim(valkey)
    assert claims.requeue(valkey, task.generation, 1, epoch_floor=6)
    assert claim(valkey).epoch == 7


def test_unused_tokens_are_given_back(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task(weight=2, prompt_tokens=3, max_tokens=7)
    queue.enqueue(task)
    claim(valkey)
    assert claims.acknowledge(valkey, task.generation, 1, unused_tokens=6)
    assert valkey.hget(f"dispatch:finishes:{MODEL}:1", "acme") == str((10 - 6) * SCALE // 2).encode()


def test_acknowledging_again_gives_nothing_back_twice(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey)
    assert claims.acknowledge(valkey, task.generation, 1, unused_tokens=6)
    assert claims.acknowledge(valkey, task.generation, 1, unused_tokens=6)
    assert valkey.hget(f"dispatch:finishes:{MODEL}:1", "acme") == str(4 * SCALE).encode()


def test_only_a_trace_of_an_acknowledged_generation_is_kept_and_it_expires(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey)
    publishing.publish(valkey, "worker", [(task.generation, 1, delta(1)), (task.generation, 1, end(2))])
    assert valkey.pttl(f"dispatch:log:{task.generation}") == -1, "a log lives at least until it is settled"
    claims.acknowledge(valkey, task.generation, 1, 0)
    for key in ("log", "generation"):
        assert 890_000 < valkey.pttl(f"dispatch:{key}:{task.generation}") <= 900_000
    assert valkey.hget(f"dispatch:generation:{task.generation}", "task") is None
    assert valkey.zcard(f"dispatch:leases:{MODEL}") == 0
    assert [entry.seq for entry in token_log.read(valkey, task.generation)] == [1, 2]


def test_a_lapsed_lease_is_returned_by_the_next_claim(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey, "silent")
    publishing.publish(valkey, "silent", [(task.generation, 1, delta(1))])
    assert claims.claim(valkey, "other", MODEL, 30).claim is None
    let_lease_lapse(valkey, task.generation)
    resumed = claim(valkey, "other")
    assert (resumed.task, resumed.epoch, resumed.log, resumed.lapses) == (task, 2, [delta(1)], 1)
    assert queue.counters(MODEL)["lapses"] == 1


def test_a_lease_lapses_by_the_servers_own_clock(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey, "silent", lease_s=0.05)
    for _ in range(10_000):
        if (resumed := claims.claim(valkey, "other", MODEL, 30).claim) is not None:
            break
    assert resumed is not None
    assert resumed.epoch == 2


def test_many_lapsed_leases_come_back_a_bounded_number_at_a_time(
    queue: DispatchQueue, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LAPSES_PER_CLAIM", 2)
    tasks = [make_task() for _ in range(5)]
    for task in tasks:
        queue.enqueue(task)
        claim(valkey, "silent")
    for task in tasks:
        let_lease_lapse(valkey, task.generation)
    claim(valkey, "other")
    assert queue.depths(MODEL) == {1: 1}
    assert {claim(valkey, "other").task.generation for _ in range(4)} < {task.generation for task in tasks}


def test_a_renewed_lease_does_not_lapse(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey)
    let_lease_lapse(valkey, task.generation)
    assert claims.renew(valkey, "worker", {task.generation: 1}, 30) == set()
    assert claims.claim(valkey, "other", MODEL, 30).claim is None


def test_renewing_nothing_asks_nothing(valkey: redis.Redis) -> None:
    assert claims.renew(valkey, "worker", {}, 30) == set()


def test_a_worker_stopped_past_its_lease_can_do_no_harm(queue: DispatchQueue, valkey: redis.Redis) -> None:
    """Whatever it tries when it is continued, another having claimed, is refused and changes nothing."""
    task = make_task()
    generation = task.generation
    queue.enqueue(task)
    claim(valkey, "stopped")
    publishing.publish(valkey, "stopped", [(generation, 1, delta(1))])
    let_lease_lapse(valkey, generation)
    claim(valkey, "other")
    publishing.publish(valkey, "other", [(generation, 2, delta(2, epoch=2))])
    before = valkey.dump(f"dispatch:generation:{generation}"), valkey.xlen("dispatch:stream")

    assert publishing.publish(valkey, "stopped", [(generation, 1, delta(2))]).refused == {generation}
    assert publishing.publish(valkey, "stopped", [(generation, 1, delta(3))]).refused == {generation}
    assert publishing.publish(valkey, "stopped", [(generation, 1, end(3))]).refused == {generation}
    assert claims.renew(valkey, "stopped", {generation: 1}, 30) == {generation}
    assert not claims.requeue(valkey, generation, 1)
    assert not claims.acknowledge(valkey, generation, 1, 5)

    assert (valkey.dump(f"dispatch:generation:{generation}"), valkey.xlen("dispatch:stream")) == before
    assert token_log.read(valkey, generation) == [delta(1), delta(2, epoch=2)]
    assert claims.renew(valkey, "other", {generation: 2}, 30) == set()
    publishing.publish(valkey, "other", [(generation, 2, end(3, epoch=2))])
    assert claims.acknowledge(valkey, generation, 2, 5)


def test_a_stopped_worker_is_refused_too_while_its_generation_waits_again(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey, "stopped")
    let_lease_lapse(valkey, task.generation)
    functions.contenders(valkey, MODEL, claims.LAPSES_PER_CLAIM)
    assert publishing.publish(valkey, "stopped", [(task.generation, 1, delta(1))]).refused == {
        task.generation
    }
    assert claims.renew(valkey, "stopped", {task.generation: 1}, 30) == {task.generation}
    assert not claims.requeue(valkey, task.generation, 1)
    assert not claims.acknowledge(valkey, task.generation, 1, 0)
    assert queue.depths(MODEL) == {1: 1}


def test_whoever_claims_a_generation_whose_end_is_logged_sees_it(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey, "killed")
    publishing.publish(valkey, "killed", [(task.generation, 1, delta(1)), (task.generation, 1, end(2))])
    let_lease_lapse(valkey, task.generation)
    resumed = claim(valkey, "other")
    assert resumed.log == [delta(1), end(2)]
    assert publishing.publish(valkey, "other", [(task.generation, 2, delta(3, epoch=2))]).refused
    assert claims.acknowledge(valkey, task.generation, 2, 6)


def test_a_cancel_outlives_the_worker_that_was_told(queue: DispatchQueue, valkey: redis.Redis) -> None:
    task = make_task()
    queue.enqueue(task)
    claim(valkey, "killed")
    queue.withdraw(task.generation, CancelReason.CLIENT_REQUESTED)
    claims.requeue(valkey, task.generation, 1)
    assert claim(valkey, "other").cancel is CancelReason.CLIENT_REQUESTED
    assert publishing.publish(valkey, "other", []).cancelled == {
        task.generation: CancelReason.CLIENT_REQUESTED
    }
    assert publishing.publish(valkey, "killed", []).cancelled == {}


def test_a_claim_whose_answer_was_lost_may_be_repeated(
    queue: DispatchQueue, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a command whose connection broke: the claim must not be applied to a second generation."""
    queue.enqueue(make_task())
    queue.enqueue(make_task())
    apply = functions.claim

    def twice(*arguments: object) -> object:
        first = apply(*arguments)  # type: ignore[arg-type]
        assert apply(*arguments) == first  # type: ignore[arg-type]
        return first

    monkeypatch.setattr(functions, "claim", twice)
    assert claim(valkey).epoch == 1
    assert queue.depths(MODEL) == {1: 1}
    assert queue.counters(MODEL)["claims"] == 1


def test_a_claim_chooses_again_when_the_queue_changed_in_between(
    queue: DispatchQueue, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_task(), make_task()
    queue.enqueue(first)
    queue.enqueue(second)
    read = claims._contenders
    rivals = []

    def read_then_rival_claims(client: redis.Redis, model: str) -> object:
        contenders = read(client, model)
        if not rivals:
            rivals.append(None)
            monkeypatch.undo()
            rivals[0] = claims.claim(client, "rival", model, 30).claim
        return contenders

    monkeypatch.setattr(claims, "_contenders", read_then_rival_claims)
    assert claim(valkey).task == second
    assert rivals[0].task == first
    assert queue.counters(MODEL) == {"arrivals": 2, "claims": 2, "conflicts": 1, "lapses": 0}


def test_a_claim_gives_up_after_a_bounded_number_of_conflicts(
    queue: DispatchQueue, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(make_task())
    read = claims._contenders

    def read_then_outdate(client: redis.Redis, model: str) -> object:
        contenders = read(client, model)
        client.hincrby(f"dispatch:ledger:{model}", "version", 1)
        return contenders

    monkeypatch.setattr(claims, "_contenders", read_then_outdate)
    assert claims.claim(valkey, "worker", MODEL, 30).claim is None
    assert queue.counters(MODEL)["conflicts"] == claims.CLAIM_ATTEMPTS
    assert queue.depths(MODEL) == {1: 1}


def test_enqueueing_in_between_does_not_disturb_a_claim(
    queue: DispatchQueue, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_task()
    queue.enqueue(first)
    read = claims._contenders

    def read_then_enqueue(client: redis.Redis, model: str) -> object:
        contenders = read(client, model)
        queue.enqueue(make_task())
        queue.enqueue(make_task(tenant="other"))
        return contenders

    monkeypatch.setattr(claims, "_contenders", read_then_enqueue)
    assert claim(valkey).task == first
    monkeypatch.undo()
    assert queue.counters(MODEL)["conflicts"] == 0
    assert [task.tenant for task in claimed_order(valkey)] == ["other", "acme"]


def test_workers_claiming_at_once_never_get_the_same_generation(queue: DispatchQueue) -> None:
    tasks = [make_task(tenant=f"tenant-{number % 3}", rank=number % 2) for number in range(60)]
    for task in tasks:
        queue.enqueue(task)
    got: list[str] = []
    start = threading.Barrier(4)

    def work(worker: str) -> None:
        client = store.sync_client()
        start.wait()
        while len(got) < len(tasks):
            if (claimed := claims.claim(client, worker, MODEL, 30).claim) is not None:
                got.append(claimed.task.generation)
        client.close()

    threads = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(got) == Counter(task.generation for task in tasks)
    assert queue.counters(MODEL)["claims"] == len(tasks)


def room_for(tokens: int, free_rows: int = 8) -> Capacity:
    """What a worker can take on whose cache takes a byte a token."""
    return Capacity(
        room=Room(budget=100, watermark=100 - tokens),
        bytes_per_token=1,
        step=1,
        free_rows=free_rows,
        decoding=True,
    )


def test_what_does_not_fit_waits_and_the_next_is_claimed(queue: DispatchQueue, valkey: redis.Redis) -> None:
    large, small = make_task(tenant="a", max_tokens=50), make_task(tenant="b")
    behind = make_task(tenant="a")
    for task in (large, small, behind):
        queue.enqueue(task)
    first = claims.claim(valkey, "worker", MODEL, 30, capacity=room_for(20))
    assert first.claim is not None
    assert first.claim.task == small
    assert [one.head.generation for one in first.deferred] == [large.generation]
    assert [(one.generation, one.bytes, one.passes) for one in first.deferrals] == [(large.generation, 53, 1)]

    before = valkey.hgetall(f"dispatch:ledger:{MODEL}"), valkey.hgetall(f"dispatch:skips:{MODEL}")
    second = claims.claim(valkey, "worker", MODEL, 30, capacity=room_for(20), deferrals=first.deferrals)
    assert second.claim is None
    assert second.deferrals == first.deferrals
    assert (valkey.hgetall(f"dispatch:ledger:{MODEL}"), valkey.hgetall(f"dispatch:skips:{MODEL}")) == before

    third = claims.claim(valkey, "worker", MODEL, 30, capacity=room_for(60), deferrals=second.deferrals)
    assert third.claim is not None
    assert third.claim.task == large
    assert third.deferrals == ()


def test_a_requeued_generation_still_needs_its_whole_room(queue: DispatchQueue, valkey: redis.Redis) -> None:
    """Its cost was charged before, but its cache is to be made anew."""
    task = make_task(max_tokens=50)
    queue.enqueue(task)
    claim(valkey)
    claims.requeue(valkey, task.generation, 1)
    outcome = claims.claim(valkey, "worker", MODEL, 30, capacity=room_for(20))
    assert outcome.claim is None
    assert [(one.head.cost, one.bytes) for one in outcome.deferred] == [(0, 53)]


def test_what_only_has_to_be_ended_is_claimed_without_room(queue: DispatchQueue, valkey: redis.Redis) -> None:
    ended, cancelled = make_task(tenant="a"), make_task(tenant="b")
    for task in (ended, cancelled):
        queue.enqueue(task)
        claim(valkey)
    publishing.publish(valkey, "worker", [(ended.generation, 1, end(1))])
    queue.withdraw(cancelled.generation, CancelReason.CLIENT_REQUESTED)
    for task in (ended, cancelled):
        claims.requeue(valkey, task.generation, 1)
        outcome = claims.claim(valkey, "other", MODEL, 30, capacity=room_for(0, free_rows=0))
        assert outcome.claim is not None
        assert outcome.claim.task == task


def test_room_that_was_freed_for_a_generation_is_given_to_no_other(
    queue: DispatchQueue, valkey: redis.Redis
) -> None:
    requester, newcomer = make_task(tenant="a", rank=1), make_task(tenant="b", rank=0)
    queue.enqueue(requester)
    full = claims.claim(valkey, "worker", MODEL, 30, capacity=room_for(20, free_rows=0))
    assert [one.verdict for one in full.deferred] == [Verdict.DEFER_NO_ROW]
    queue.enqueue(newcomer)
    outcome = claims.claim(
        valkey, "worker", MODEL, 30, capacity=room_for(20, free_rows=1), promised=requester.generation
    )
    assert outcome.claim is not None
    assert outcome.claim.task == requester
