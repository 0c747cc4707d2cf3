"""Nobody leaves a worker for a request that it does not get: whole workers, stopped between the plan and the claim."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
import redis
from django import db
from django.utils import timezone

from accounts.tenancy import every_tenant
from inference import cancellation
from inference.dispatch import token_log
from inference.dispatch.claims import ClaimOutcome
from inference.dispatch.queue import DispatchQueue
from inference.messages import CancelReason
from inference.models import Generation, LanguageModel
from inference.models.generation import GenerationState
from inference.worker import claim_thread
from inference.worker.requests import RoomPlan
from tests.inference.doors import entitled_principal, row
from tests.inference.worker.conftest import ENDLESS, WorkerInThread, submit, wait_until
from tests.inference.worker.test_process import StartWorker, wait_for_state, wait_for_tokens


@pytest.fixture
def full(start_worker: StartWorker, model: LanguageModel) -> WorkerInThread:
    """A worker of one slot; the test fills it."""
    LanguageModel.objects.update(slots=1)
    model.refresh_from_db()
    return start_worker()


@pytest.fixture
def low(full: WorkerInThread, model: LanguageModel, valkey: redis.Redis) -> str:
    """A stream of the low lane, which fills it."""
    generation = submit(model, by=entitled_principal("low"), requested_lane="low", max_tokens=ENDLESS)
    wait_for_tokens(valkey, generation, 3)
    return generation


def ask_high(model: LanguageModel) -> str:
    return submit(model, by=entitled_principal("high"), requested_lane="high", max_tokens=3)


def before_the_claim(
    worker: WorkerInThread, monkeypatch: pytest.MonkeyPatch, act: Callable[[RoomPlan], object]
) -> list[tuple[RoomPlan, ClaimOutcome]]:
    """``act`` when the worker has its first plan and has not claimed yet; the plans, and what their claims came to."""
    thread, seen = worker.process._claims, list[tuple[RoomPlan, ClaimOutcome]]()
    claim = thread._claim

    def observed(plan: RoomPlan | None = None) -> ClaimOutcome:
        if plan is not None and not seen:
            act(plan)
        outcome = claim(plan)
        if plan is not None:
            seen.append((plan, outcome))
        return outcome

    monkeypatch.setattr(thread, "_claim", observed)
    return seen


def assert_undisturbed(worker: WorkerInThread, client: redis.Redis, low: str) -> None:
    """It goes on in its first claim."""
    wait_for_tokens(client, low, len(token_log.read(client, low)) + 3)
    assert worker.process.metrics.preemptions("low").value == 0
    assert row(low).epoch == 1
    assert worker.process._memory.capacity().free_rows == 0


def test_nobody_is_preempted_in_a_full_worker_when_an_idle_one_takes_the_request(
    full: WorkerInThread,
    low: str,
    start_worker: StartWorker,
    model: LanguageModel,
    valkey: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def an_idle_one_is_quicker(plan: RoomPlan) -> None:
        start_worker()
        wait_for_state(plan.generation, GenerationState.COMPLETED)

    seen = before_the_claim(full, monkeypatch, an_idle_one_is_quicker)
    high = ask_high(model)
    wait_until(lambda: len(seen) == 1)
    [(plan, outcome)] = seen
    assert plan == RoomPlan(high, {low: 1})
    assert outcome.claim is None
    assert row(high).epoch == 1
    assert_undisturbed(full, valkey, low)


def test_nobody_is_preempted_for_a_request_that_was_cancelled_meanwhile(
    full: WorkerInThread,
    low: str,
    model: LanguageModel,
    valkey: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = before_the_claim(
        full,
        monkeypatch,
        lambda plan: cancellation.cancel(UUID(plan.generation), CancelReason.CLIENT_REQUESTED),
    )
    high = ask_high(model)
    wait_until(lambda: len(seen) == 1)
    assert (seen[0][0].generation, seen[0][1].claim) == (high, None)
    assert row(high).state == GenerationState.CANCELLED
    assert_undisturbed(full, valkey, low)
    second = ask_high(model)
    wait_for_state(second, GenerationState.COMPLETED)
    assert full.process.metrics.preemptions("low").value == 1, "for one that comes it leaves"


def test_nobody_is_preempted_for_a_ghost(
    full: WorkerInThread,
    low: str,
    model: LanguageModel,
    valkey: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim is made, and the database refuses its start."""

    def ends_behind_the_queues_back(plan: RoomPlan) -> None:
        with every_tenant("the test ends it"):
            Generation.objects.filter(id=UUID(plan.generation)).update(
                state=GenerationState.CANCELLED, ended_at=timezone.now()
            )

    seen = before_the_claim(full, monkeypatch, ends_behind_the_queues_back)
    high = ask_high(model)
    wait_until(lambda: len(seen) == 1)
    assert seen[0][1].claim is not None
    assert DispatchQueue(valkey).contains([high]) == set()
    assert_undisturbed(full, valkey, low)


def test_nobody_is_preempted_while_the_database_cannot_be_told_of_the_claim(
    full: WorkerInThread,
    low: str,
    model: LanguageModel,
    valkey: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, at_first = claim_thread.start, list[int]()

    def away_at_first(generation_id: UUID, epoch: int) -> bool:
        said = len(token_log.read(valkey, low))
        at_first.append(said)
        if said < at_first[0] + 30:  # it goes on meanwhile, or this never ends
            raise db.OperationalError("the database is away")
        return start(generation_id, epoch)

    monkeypatch.setattr(claim_thread, "start", away_at_first)
    high = ask_high(model)
    assert wait_for_state(high, GenerationState.COMPLETED).epoch > 1
    assert full.process.metrics.preemptions("low").value == 1
