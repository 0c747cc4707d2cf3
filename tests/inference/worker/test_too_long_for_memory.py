"""F15: what can never fit the worker's memory is refused where it is sent; what came before that was known there is
ended by the worker, with the same code and both numbers."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from uuid import UUID

import pytest
import redis

from accounts.models import LedgerEntry, Reservation
from accounts.tenancy import every_tenant
from inference.api.streaming import failure_of
from inference.dispatch import claims, token_log
from inference.dispatch.queue import DispatchQueue, WithdrawOutcome, dispatch_queue
from inference.intake import RefusalCode, Refused
from inference.messages import CancelReason, EndState
from inference.models import Generation, LanguageModel
from inference.models.generation import TERMINAL_STATES, GenerationState
from tests.inference.dispatch.conftest import let_lease_lapse, wait_until
from tests.inference.doors import row
from tests.inference.worker.conftest import (
    LEASE_S,
    PROMPT,
    DecodeSteps,
    HandDrivenWorker,
    WorkerInThread,
    end_of,
    submit,
    tokens_of,
)

#: Of the tiny model, 512 bytes a token: what a MiB has room for, a quarter of its context.
CAPACITY = 2048


@pytest.fixture
def model_of_a_mib(model: LanguageModel, start_worker: Callable[..., WorkerInThread]) -> LanguageModel:
    """Served by a worker with a MiB for caches, which has told how much that is."""
    LanguageModel.objects.update(kv_budget_mib=1)
    model.refresh_from_db()
    start_worker()
    model.refresh_from_db()
    assert model.kv_capacity_tokens == CAPACITY < model.context_length
    return model


def test_f15_what_exceeds_the_whole_budget_is_refused_with_both_numbers_and_never_queued(
    model_of_a_mib: LanguageModel, valkey: redis.Redis, decode_steps: DecodeSteps
) -> None:
    most = CAPACITY - len(PROMPT)
    with pytest.raises(
        Refused, match=f"memory for {CAPACITY} tokens .* {CAPACITY + 1} are needed"
    ) as refusal:
        submit(model_of_a_mib, max_tokens=most + 1)
    assert (refusal.value.code, refusal.value.retry_after_s) == (RefusalCode.KV_MEMORY_EXCEEDED, None)
    with every_tenant("the test looks for leftovers"):
        assert not Generation.objects.exists()
        assert not Reservation.objects.exists()
    assert dispatch_queue().depths(model_of_a_mib.name) == {}
    # The very longest that is let in has its memory.
    decode_steps.only(5)
    generation = submit(model_of_a_mib, max_tokens=most)
    wait_until(lambda: len(token_log.read(valkey, generation)) > 1)
    assert row(generation).state == GenerationState.RUNNING


def test_f15_what_was_accepted_before_the_memory_was_known_is_ended_with_the_same_words(
    model_of_a_mib: LanguageModel, valkey: redis.Redis
) -> None:
    model_of_a_mib.kv_capacity_tokens = None  # as the door still knows the model
    generation = submit(model_of_a_mib, max_tokens=3000)
    wait_until(lambda: row(generation).state == GenerationState.FAILED)
    end = end_of(token_log.read(valkey, generation))
    assert end.state is EndState.FAILED
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (0, 0)
    told = failure_of(end)
    assert (told.status, told.code.value, told.retry) == (HTTPStatus.BAD_REQUEST, "kv_memory_exceeded", False)
    assert told.body()["error"]["code"] == RefusalCode.KV_MEMORY_EXCEEDED.value
    assert f"memory for {len(PROMPT) + 3000} tokens" in told.message
    assert f"memory for {CAPACITY}." in told.message
    with every_tenant("the test looks for leftovers"):
        assert not Reservation.objects.filter(settled_at=None).exists()


def test_f15_what_was_cancelled_while_nobody_had_it_is_not_told_that_it_is_too_long(
    model: LanguageModel, valkey: redis.Redis, start_worker: Callable[..., WorkerInThread]
) -> None:
    generation = submit(model, max_tokens=3000)
    assert claims.claim(valkey, "gone", model.name, LEASE_S).claim is not None
    told = DispatchQueue(valkey).withdraw(generation, CancelReason.CLIENT_REQUESTED)
    assert told.outcome is WithdrawOutcome.RUNNING
    let_lease_lapse(valkey, generation, model.name)
    LanguageModel.objects.update(kv_budget_mib=1)
    model.refresh_from_db()
    start_worker()
    wait_until(lambda: row(generation).state in TERMINAL_STATES)
    end = end_of(token_log.read(valkey, generation))
    assert (end.state, end.cancel_reason) == (EndState.CANCELLED, CancelReason.CLIENT_REQUESTED)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (0, 0)


def test_f15_what_was_run_by_a_worker_with_more_memory_is_charged_when_one_with_less_ends_it(
    worker: HandDrivenWorker,
    model: LanguageModel,
    start_worker: Callable[..., WorkerInThread],
) -> None:
    generation = submit(model, max_tokens=3000)
    worker.claim()
    worker.turn_until(lambda: len(tokens_of(worker.log(generation))) >= 3)
    worker.loop.hand_back()
    produced = len(tokens_of(worker.log(generation)))
    LanguageModel.objects.update(kv_budget_mib=1)
    model.refresh_from_db()
    start_worker()
    wait_until(lambda: row(generation).state == GenerationState.FAILED)
    end = end_of(worker.log(generation))
    assert end.failure is not None
    assert end.failure.code == "kv_memory_exceeded"
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(PROMPT), produced)
    with every_tenant("the test looks at the ledger"):
        entry = LedgerEntry.objects.get(generation_id=UUID(generation))
    assert (entry.prompt_tokens, entry.completion_tokens) == (len(PROMPT), produced)
