"""A whole worker with all its threads, in the test's process: from the queue to the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import redis
from django import db
from django.test import Client

from accounts.models import LedgerEntry
from accounts.tenancy import every_tenant
from inference import cancellation, speculation_verdicts
from inference.dispatch import presence, token_log
from inference.dispatch.heartbeats import heartbeats
from inference.dispatch.queue import DispatchQueue
from inference.engine.engine import Engine
from inference.engine.results import StepResult
from inference.messages import CancelReason, Heartbeat, SchedulerSnapshot
from inference.models import DrafterKind, Generation, GenerationRun, LanguageModel, Worker
from inference.models.generation import GenerationState
from inference.scheduler_settings import settings_of
from inference.scheduling.speculation import DeclineReason, Outcome
from inference.scheduling.tick import DEFAULT_CHUNK_TOKENS, DEFAULT_INTERVAL, Action
from inference.worker import claim_thread, heartbeat_thread, housekeeping, settlement_thread
from inference.worker.loop import LoopEnd
from inference.worker.requests import UseDrafter
from signalbox import health
from signalbox.configuration import configuration
from tests.factories import LanguageModelFactory
from tests.inference.dispatch.conftest import let_lease_lapse, wait_until
from tests.inference.doors import entitled_principal, row
from tests.inference.engine.speculating import ScriptedDrafter
from tests.inference.test_speculation_verdicts import MEASURED
from tests.inference.worker.conftest import (
    ENDLESS,
    GREEDY,
    PROMPT,
    TIMES,
    HandDrivenWorker,
    WorkerInThread,
    alone,
    end_of,
    submit,
    text_of,
    tokens_of,
)
from tests.inference.worker.forward_passes import ForwardPasses, forward_passes

__all__ = ["forward_passes"]

StartWorker = Callable[..., WorkerInThread]
LIVE = (GenerationState.QUEUED, GenerationState.RUNNING)


def wait_for_state(generation: str, state: GenerationState) -> Generation:
    wait_until(lambda: row(generation).state == state)
    return row(generation)


def wait_for_tokens(client: redis.Redis, generation: str, count: int) -> None:
    wait_until(lambda: len(token_log.read(client, generation)) >= count)


def heartbeat(client: redis.Redis) -> Heartbeat:
    wait_until(lambda: len(heartbeats(client)) == 1)
    return heartbeats(client)[0]


def test_accepted_work_is_run_settled_and_let_go(
    start_worker: StartWorker, model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    start_worker()
    generation = submit(model)  # wakes the idle worker
    done = wait_for_state(generation, GenerationState.COMPLETED)
    log = token_log.read(valkey, generation)
    assert tokens_of(log) == expected
    assert text_of(log) == engine.tokenizer.decode(expected)
    assert (done.epoch, done.completion_tokens, done.finish_reason) == (1, 12, "length")
    assert done.claimed_at is not None
    assert done.first_token_at is not None
    assert done.claimed_at <= done.first_token_at <= done.ended_at
    with every_tenant("the test looks at the ledger"):
        [entry] = LedgerEntry.objects.all()
    assert (entry.prompt_tokens, entry.completion_tokens) == (len(PROMPT), 12)
    wait_until(lambda: valkey.hget(f"dispatch:generation:{generation}", "state") == b"ended")


def test_more_work_than_slots_runs_slot_by_slot(
    start_worker: StartWorker, model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    LanguageModel.objects.update(slots=2)
    model.refresh_from_db()
    expected = alone(engine, PROMPT, GREEDY, 12)
    generations = [submit(model) for _ in range(7)]
    worker = start_worker()
    loop, most = worker.process.loop, 0
    while any(row(generation).state in LIVE for generation in generations):
        most = max(most, len(loop.roster))
    assert most <= 2
    assert [tokens_of(token_log.read(valkey, one)) for one in generations] == [expected] * 7


def test_a_cancelled_generation_ends_in_the_database_too(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    start_worker()
    generation = submit(model, max_tokens=ENDLESS)
    wait_for_tokens(valkey, generation, 3)
    cancellation.cancel(UUID(generation), CancelReason.CLIENT_REQUESTED)
    done = wait_for_state(generation, GenerationState.CANCELLED)
    assert done.cancel_reason == "client_requested"
    assert done.completion_tokens == len(tokens_of(token_log.read(valkey, generation))) < ENDLESS


def test_what_nobody_reads_is_cancelled_after_the_grace_period_unless_it_may_run_unattended(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    start_worker(replace(TIMES, detach_grace_s=0.5))
    unattended = submit(model, max_tokens=ENDLESS, unattended=True)
    left = submit(model, max_tokens=ENDLESS)
    read = submit(model, max_tokens=ENDLESS)

    def left_has_ended() -> bool:
        presence.refresh(valkey, [read], grace_s=60)
        return row(left).state not in LIVE

    wait_until(left_has_ended)
    assert (row(left).state, row(left).cancel_reason) == (GenerationState.CANCELLED, "detached")
    assert row(read).state == row(unattended).state == GenerationState.RUNNING


def test_work_that_was_committed_but_never_queued_is_swept_in(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    generation = submit(model)
    valkey.flushall()
    start_worker()
    wait_for_state(generation, GenerationState.COMPLETED)


def test_a_store_that_lost_everything_costs_no_accepted_work(
    start_worker: StartWorker, model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    """The lost claim is forgotten, the work is swept in, claimed above the database's epoch, and run anew."""
    expected = alone(engine, PROMPT, GREEDY, 400)
    worker = start_worker(replace(TIMES, lease_s=2.0))
    generation = submit(model, max_tokens=400)
    wait_for_tokens(valkey, generation, 3)
    valkey.flushall()
    done = wait_for_state(generation, GenerationState.COMPLETED)
    assert tokens_of(token_log.read(valkey, generation)) == expected
    assert done.epoch >= 2
    assert worker.process.metrics.counters.snapshot()['claims_total{kind="log_lost",lane="normal"}'] == 1


def test_a_ghost_in_the_queue_is_laid(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    """Valkey offers what the database knows as ended: it is let go of, and not run again."""
    ended, alive = submit(model), submit(model)
    with every_tenant("the test ends it behind the queue's back"):
        Generation.objects.filter(id=UUID(ended)).update(
            state=GenerationState.CANCELLED, ended_at=row(alive).created_at
        )
    worker = start_worker()
    wait_for_state(alive, GenerationState.COMPLETED)
    assert token_log.read(valkey, ended) == []
    assert DispatchQueue(valkey).contains([ended]) == set()
    assert worker.process.metrics.counters.snapshot()['claims_total{kind="ghost",lane="normal"}'] == 1


def test_an_epoch_that_valkey_forgot_is_counted_on_from_the_database(
    start_worker: StartWorker, model: LanguageModel
) -> None:
    generation = submit(model)
    with every_tenant("the test plays an earlier life"):
        Generation.objects.filter(id=UUID(generation)).update(epoch=7)
    start_worker()
    assert wait_for_state(generation, GenerationState.COMPLETED).epoch == 8


def test_what_had_ended_but_was_never_settled_is_settled_only(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis, worker: HandDrivenWorker
) -> None:
    generation = submit(model)
    worker.claim()
    worker.run_dry()  # its settlement thread never runs: the worker died right after the last tick
    log = worker.log(generation)
    let_lease_lapse(valkey, generation, model.name)
    metrics = start_worker().process.metrics
    done = wait_for_state(generation, GenerationState.COMPLETED)
    assert done.completion_tokens == end_of(log).usage.completion_tokens
    assert token_log.read(valkey, generation) == log
    wait_until(lambda: metrics.counters.snapshot().get('claims_total{kind="ended",lane="normal"}') == 1)


def test_settlement_is_repeated_until_the_database_is_back_and_the_lease_kept_meanwhile(
    start_worker: StartWorker, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, attempts = settlement_thread.settle, list[str]()

    def away_at_first(generation_id: UUID, *arguments: object, **named: object) -> bool:
        attempts.append(generation_id.hex)
        if attempts.count(generation_id.hex) <= 3 and generation_id.hex == first:
            raise db.OperationalError("the database is away")
        return settle(generation_id, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(settlement_thread, "settle", away_at_first)
    first = submit(model)
    worker = start_worker(replace(TIMES, lease_s=0.6))
    second = submit(model, max_tokens=3)
    wait_for_state(second, GenerationState.COMPLETED)
    done = wait_for_state(first, GenerationState.COMPLETED)
    assert attempts.count(first) >= 4
    assert done.epoch == 1, "nobody else had to settle it"
    assert worker.process.metrics.settlement_retries.value == 3


def test_work_that_cannot_be_told_to_the_database_goes_back_and_is_claimed_again(
    start_worker: StartWorker, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, attempts = claim_thread.start, list[int]()

    def away_at_first(generation_id: UUID, epoch: int) -> bool:
        attempts.append(epoch)
        if len(attempts) <= 2:
            raise db.OperationalError("the database is away")
        return start(generation_id, epoch)

    monkeypatch.setattr(claim_thread, "start", away_at_first)
    start_worker()
    assert wait_for_state(submit(model), GenerationState.COMPLETED).epoch == 3


def test_a_heartbeat_tells_how_the_worker_fares(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    worker = start_worker()
    wait_for_state(submit(model), GenerationState.COMPLETED)
    wait_until(lambda: 'generations_total{state="completed",lane="normal"}' in heartbeat(valkey).counters)
    beat = heartbeat(valkey)
    assert (beat.worker, beat.model, beat.slots) == (worker.process.id, model.name, model.slots)
    assert (beat.ready, beat.draining, beat.decoding, beat.prefilling) == (True, False, 0, 0)
    assert beat.started_at <= beat.progressed_at <= beat.sent_at
    assert beat.counters['ticks_total{action="decode"}'] >= 11
    assert beat.counters['claims_total{kind="fresh",lane="normal"}'] == 1
    assert (beat.blas, beat.device) != ("", "")


def test_settings_that_an_operator_changes_are_applied_without_a_restart(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_SETTINGS_S", 0.1)
    worker = start_worker()

    def capacity() -> int:
        return LanguageModel.objects.get().kv_capacity_tokens or 0

    before = capacity()
    LanguageModel.objects.update(slots=1, prefill_chunk_tokens=8, prefill_interval=0, kv_budget_mib=1)
    wait_until(lambda: heartbeat(valkey).slots == 1)
    assert 0 < capacity() < before, "what a MiB has room for"
    wait_for_state(submit(model), GenerationState.COMPLETED)
    assert worker.process.metrics.chunk_tokens.value == 8
    assert worker.process.metrics.prefill("normal").chunks.value in (2, 3), (
        "20 tokens: a chunk of 8, and then what is quick enough"
    )


#: Values that no default has, of settings that can be seen at once in what an idle worker uses: by the snapshot's field
#: (the chunk and the interval are those of a worker that has not measured anything).
CHANGED: dict[str, tuple[Any, Callable[[SchedulerSnapshot], bool]]] = {
    "lane_floor": (9, lambda shot: shot.lane_floor == 9),
    "preemption": (False, lambda shot: shot.preemption is False),
    "kv_watermark_percent": (50, lambda shot: shot.kv_watermark == shot.kv_budget // 2),
    "prefix_cache_mib": (1, lambda shot: shot.kv_cache_budget == 2**20),
    "longest_stall_ms": (100, lambda shot: shot.chunk == DEFAULT_CHUNK_TOKENS),
    "itl_target": (1.5, lambda shot: shot.interval == DEFAULT_INTERVAL),
}


def test_each_setting_that_an_operator_changes_is_the_one_in_use_without_a_restart(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_SETTINGS_S", 0.1)
    monkeypatch.setattr(heartbeat_thread, "_INTERVAL_S", 0.1)
    LanguageModel.objects.update(kv_budget_mib=16)
    model.refresh_from_db()
    start_worker()

    def in_use() -> set[str]:
        shot = heartbeat(valkey).scheduler
        return set() if shot is None else {name for name, (_, holds) in CHANGED.items() if holds(shot)}

    def follows(changed: list[str]) -> None:
        wait_until(lambda: in_use() == set(changed))

    wait_until(lambda: heartbeat(valkey).scheduler is not None)
    follows([])
    names = list(CHANGED)
    for count, name in enumerate(names, 1):
        LanguageModel.objects.update(**{name: CHANGED[name][0]})
        follows(names[:count])


def test_claims_follow_floor_and_preemption_when_they_are_changed_under_load(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_SETTINGS_S", 0.1)
    LanguageModel.objects.update(slots=1)
    model.refresh_from_db()
    worker = start_worker()
    low, high = entitled_principal("low"), entitled_principal("high")
    running = submit(model, by=low, requested_lane="low", max_tokens=ENDLESS)
    wait_for_tokens(valkey, running, 1)
    LanguageModel.objects.update(preemption=False, lane_floor=1)
    wait_until(lambda: worker.process._settings.current.lane_floor == 1)
    waiting = [submit(model, by=high, requested_lane="high", max_tokens=2) for _ in range(3)]
    waiting += [submit(model, by=low, requested_lane="low", max_tokens=2) for _ in range(2)]
    had = len(token_log.read(valkey, running))
    wait_for_tokens(valkey, running, had + 20)  # nobody displaces it meanwhile
    cancellation.cancel(UUID(running), CancelReason.CLIENT_REQUESTED)
    rows = [wait_for_state(each, GenerationState.COMPLETED) for each in waiting]
    in_turn = sorted(rows, key=lambda one: one.claimed_at or one.created_at)
    assert [one.lane.name for one in in_turn] == ["high", "low", "high", "low", "high"]
    assert worker.process.metrics.preemptions("low").value == 0


def test_a_draft_model_whose_files_are_gone_is_told_and_not_the_setting(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    model.drafter = DrafterKind.DRAFT_MODEL
    model.draft_model = LanguageModelFactory(name="small", directory="/gone/small")
    model.save()
    start_worker()
    wait_until(lambda: heartbeat(valkey).scheduler is not None)
    shot = heartbeat(valkey).scheduler
    assert shot is not None
    assert shot.slot is not None
    assert shot.slot.drafter == ""
    assert "/gone/small" in shot.slot.drafter_fault


def test_a_higher_lane_runs_at_once_in_a_full_worker_and_the_lower_one_loses_nothing(
    start_worker: StartWorker, model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    LanguageModel.objects.update(slots=1)
    model.refresh_from_db()
    start_worker()
    of_low, of_high, length = entitled_principal("low"), entitled_principal("high"), 1000
    low = submit(model, by=of_low, requested_lane="low", max_tokens=length)
    wait_for_tokens(valkey, low, 3)
    high = submit(model, by=of_high, requested_lane="high", max_tokens=3)
    first, last = (wait_for_state(each, GenerationState.COMPLETED).ended_at for each in (high, low))
    assert first is not None
    assert last is not None
    assert first < last
    assert tokens_of(token_log.read(valkey, low)) == alone(engine, PROMPT, GREEDY, length)
    with every_tenant("the test looks"):
        outcomes = GenerationRun.objects.filter(generation_id=UUID(low)).order_by("epoch")
        assert list(outcomes.values_list("outcome", flat=True)) == ["preempted", "completed"]


def test_without_preemption_a_higher_lane_waits_and_lanes_take_turns_by_the_floor_that_is_set(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    LanguageModel.objects.update(slots=1, preemption=False, lane_floor=1)
    model.refresh_from_db()
    worker = start_worker()
    high, low = (entitled_principal(lane) for lane in ("high", "low"))
    running = submit(model, by=low, requested_lane="low", max_tokens=ENDLESS)
    wait_for_tokens(valkey, running, 1)
    waiting = [submit(model, by=high, requested_lane="high", max_tokens=2) for _ in range(3)]
    waiting += [submit(model, by=low, requested_lane="low", max_tokens=2) for _ in range(2)]
    assert {row(each).state for each in waiting} == {GenerationState.QUEUED}
    cancellation.cancel(UUID(running), CancelReason.CLIENT_REQUESTED)  # now that all of them wait
    rows = [wait_for_state(each, GenerationState.COMPLETED) for each in waiting]
    in_turn = sorted(rows, key=lambda one: one.claimed_at or one.created_at)
    assert [one.lane.name for one in in_turn] == ["high", "low", "high", "low", "high"]
    assert worker.process.metrics.preemptions("low").value == 0


def test_what_finds_no_memory_is_counted_once_and_runs_when_there_is_some(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    LanguageModel.objects.update(kv_budget_mib=2)  # 4,096 tokens of the tiny model
    model.refresh_from_db()
    metrics = start_worker().process.metrics
    first = submit(model, max_tokens=1500)
    wait_for_tokens(valkey, first, 1)
    second = submit(model, max_tokens=2000)
    wait_until(lambda: metrics.deferrals(1).value == 1)
    wait_for_state(submit(model, max_tokens=2), GenerationState.COMPLETED)  # what fits passes it
    cancellation.cancel(UUID(first), CancelReason.CLIENT_REQUESTED)
    wait_for_tokens(valkey, second, 1)
    assert metrics.deferrals(1).value == 1
    assert row(first).state != GenerationState.COMPLETED
    cancellation.cancel(UUID(second), CancelReason.CLIENT_REQUESTED)


def decode_breaks(patch: pytest.MonkeyPatch, passes: ForwardPasses) -> None:
    def breaks(engine: Engine, *, more: bool = True) -> StepResult:
        raise MemoryError("device")

    patch.setattr(Engine, "decode", breaks)


def every_pass_fails(patch: pytest.MonkeyPatch, passes: ForwardPasses) -> None:
    passes.broken = True


@pytest.mark.parametrize("breaks", [decode_breaks, every_pass_fails])
def test_a_worker_whose_backend_keeps_failing_ends_unready_and_leaves_the_rest_in_the_queue(
    start_worker: StartWorker,
    model: LanguageModel,
    valkey: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    forward_passes: ForwardPasses,
    breaks: Callable[[pytest.MonkeyPatch, ForwardPasses], None],
) -> None:
    LanguageModel.objects.update(slots=1)
    model.refresh_from_db()
    worker = start_worker()
    breaks(monkeypatch, forward_passes)
    generations = [submit(model, unattended=True) for _ in range(6)]
    wait_until(lambda: worker.end is not None)
    assert worker.end is LoopEnd.BACKEND_FAILED
    assert heartbeats(valkey) == [], "nobody takes it for one that serves"
    waiting = [one for one in generations if row(one).state in LIVE]
    assert len(waiting) >= 5, "one of them at most was taken for the cause"
    assert DispatchQueue(valkey).contains(waiting) == set(waiting)
    assert valkey.zcard(f"dispatch:leases:{model.name}") == 0


def test_a_worker_whose_ticks_stop_is_not_ready_although_its_heart_beats_until_they_go_on(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, decode = threading.Event(), Engine.decode

    def hangs(engine: Engine, *, more: bool = True) -> StepResult:
        go_on.wait(60)
        return decode(engine, more=more)

    soon = configuration().model_copy(update={"lease_seconds": 1.5})
    monkeypatch.setattr(health, "configuration", lambda: soon)

    def readiness() -> tuple[int, str | None, str]:
        answer = Client().get("/health/ready")
        told = answer.json()
        return answer.status_code, told["reason"], told["models"].get(model.name)

    start_worker()
    wait_until(lambda: readiness() == (200, None, "served"))
    monkeypatch.setattr(Engine, "decode", hangs)
    generation = submit(model)
    wait_until(lambda: readiness() == (503, "no_progress", "stalled"))
    assert heartbeat(valkey).ready
    go_on.set()
    wait_for_state(generation, GenerationState.COMPLETED)
    wait_until(lambda: readiness() == (200, None, "served"))


def test_a_worker_is_a_row_from_its_start_to_its_end(
    start_worker: StartWorker, model: LanguageModel, valkey: redis.Redis
) -> None:
    worker = start_worker()
    made = Worker.objects.get(id=UUID(worker.process.id))
    assert (made.model, made.stopped_at) == (model, None)
    heartbeat(valkey)
    worker.stop()
    assert worker.end is LoopEnd.DRAINED
    made.refresh_from_db()
    assert made.stopped_at is not None
    assert heartbeats(valkey) == []


def test_a_drained_worker_hands_its_streams_to_the_next_one(
    start_worker: StartWorker, model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 400)
    first = start_worker()
    generation = submit(model, max_tokens=400)
    wait_for_tokens(valkey, generation, 3)
    first.stop()
    assert first.process.metrics.requeues.value == 1
    second = start_worker()
    done = wait_for_state(generation, GenerationState.COMPLETED)
    log = token_log.read(valkey, generation)
    assert tokens_of(log) == expected
    assert {entry.epoch for entry in log} == {1, 2}
    assert done.epoch == 2
    assert second.process.metrics.counters.snapshot()['claims_total{kind="resumed",lane="normal"}'] == 1


def test_two_workers_share_the_queue_and_run_nothing_twice(
    start_worker: StartWorker, model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    expected = alone(engine, PROMPT, GREEDY, 12)
    for _ in range(2):
        start_worker()
    generations = [submit(model) for _ in range(16)]
    for generation in generations:
        assert wait_for_state(generation, GenerationState.COMPLETED).epoch == 1
        assert tokens_of(token_log.read(valkey, generation)) == expected
    with every_tenant("the test looks at the ledger"):
        assert LedgerEntry.objects.count() == 16


def test_a_stored_verdict_holds_for_the_first_generation_of_a_worker(
    start_worker: StartWorker, model: LanguageModel, engine: Engine, valkey: redis.Redis
) -> None:
    model.drafter = DrafterKind.PROMPT_LOOKUP
    model.save()
    drafter, draft_tokens = settings_of(model).speculation.pairing
    speculation_verdicts.record(
        model_id=model.id,
        drafter=drafter,
        hardware=f"{engine.device}, {engine.blas}",
        draft_tokens=draft_tokens,
        measured=replace(MEASURED, verdict=replace(MEASURED.verdict, outcome=Outcome.DECLINED, speedup=0.5)),
    )
    generation = submit(model)
    worker = start_worker()
    wait_for_state(generation, GenerationState.COMPLETED)
    metrics = worker.process.metrics
    assert metrics.declines(DeclineReason.DOES_NOT_PAY, "normal").value == 1
    assert metrics.ticks[Action.SPECULATE].value == 0


def test_caches_have_what_the_drafter_leaves(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_SETTINGS_S", 0.05)
    process = start_worker().process
    before = process._memory.budget.total
    process.loop.ask(UseDrafter(ScriptedDrafter))
    wait_until(lambda: process._memory.budget.total == before - ScriptedDrafter.memory_bytes)
    process.loop.ask(UseDrafter(None))
    wait_until(lambda: process._memory.budget.total == before)
