"""How long a generation may wait for a worker, and what becomes of it then."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.utils import timezone

from accounts.models import Allowance, LedgerEntry, Reservation
from accounts.tenancy import every_tenant
from inference.dispatch import claims, publishing, token_log
from inference.dispatch.queue import WithdrawOutcome, dispatch_queue
from inference.intake import Accepted
from inference.messages import CancelReason, End, EndState, Usage
from inference.models import Generation, LanguageModel
from inference.recovery import end_waits, sweep
from inference.worker import housekeeping
from signalbox.celery import app
from tests.factories import EntitlementFactory, LanguageModelFactory, TenantFactory
from tests.inference.dispatch.conftest import let_lease_lapse
from tests.inference.doors import LEASE_S, WORKER, accepted, claimed, principal_of, publish_tokens, row

pytestmark = pytest.mark.django_db(transaction=True)


def impatient(model: LanguageModel, wait_s: int | None = 30) -> Accepted:
    """A generation that waits for so long at most."""
    tenant = TenantFactory()
    EntitlementFactory(tenant=tenant, longest_queue_wait_s=wait_s)
    return accepted(model, by=principal_of(tenant))


def let_the_wait_pass() -> None:
    with every_tenant("the test lets time pass"):
        Generation.objects.exclude(queue_deadline=None).update(queue_deadline=timezone.now())


def assert_waited_in_vain(result: Accepted) -> None:
    """It has ended, cost nothing, and holds nothing."""
    ended = row(result.task.generation)
    assert (ended.state, ended.cancel_reason) == ("expired", "queue_wait_exceeded")
    with every_tenant("the test looks at the books"):
        entry = LedgerEntry.objects.get(generation_id=result.generation_id)
        assert (entry.prompt_tokens, entry.completion_tokens) == (0, 0)
        assert not Reservation.objects.filter(settled_at=None).exists()
        assert set(Allowance.objects.values_list("live_generations", flat=True)) == {0}
    assert dispatch_queue().position(result.task.generation) is None


def test_the_entitlement_says_when_a_wait_ends(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    generation = row(impatient(model).task.generation)
    assert generation.queue_deadline is not None
    assert round((generation.queue_deadline - generation.created_at).total_seconds()) == 30
    assert row(impatient(model, None).task.generation).queue_deadline is None


def test_what_has_waited_too_long_ends_as_expired_and_costs_nothing(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result, patient = impatient(model), impatient(model, None)
    assert end_waits() == 0
    let_the_wait_pass()
    assert end_waits() == 1
    assert end_waits() == 0
    (end,) = token_log.read(valkey, result.task.generation)
    assert isinstance(end, End)
    assert (end.state, end.cancel_reason) == (EndState.EXPIRED, CancelReason.QUEUE_WAIT_EXCEEDED)
    ended = row(result.task.generation)
    assert (ended.state, ended.cancel_reason) == ("expired", "queue_wait_exceeded")
    assert row(patient.task.generation).state == "queued"
    assert claimed(valkey, model).task == patient.task


def test_its_reservation_is_let_go(valkey: redis.Redis) -> None:
    result = impatient(LanguageModelFactory())
    let_the_wait_pass()
    assert end_waits() == 1
    assert_waited_in_vain(result)


def test_what_runs_goes_on_and_its_worker_is_told_nothing(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result = impatient(model)
    got = claimed(valkey, model)
    publish_tokens(valkey, got, "Hi")
    let_the_wait_pass()
    assert end_waits() == 0
    assert row(result.task.generation).state == "running"
    assert publishing.publish(valkey, WORKER, []).cancelled == {}


def test_what_a_worker_has_just_claimed_goes_on_although_the_database_does_not_know_yet(
    valkey: redis.Redis,
) -> None:
    model = LanguageModelFactory()
    result = impatient(model)
    assert claims.claim(valkey, WORKER, model.name, LEASE_S).claim is not None
    let_the_wait_pass()
    assert end_waits() == 0
    assert row(result.task.generation).state == "queued"
    assert publishing.publish(valkey, WORKER, []).cancelled == {}


@pytest.mark.parametrize("back", ["preempted", "lapsed"])
@pytest.mark.parametrize("known", [True, False])
def test_what_ran_and_waits_again_goes_on(valkey: redis.Redis, back: str, known: bool) -> None:
    """Whether or not the database has been told of the claim before the worker gave it up."""
    model = LanguageModelFactory()
    result = impatient(model)
    if known:
        got = claimed(valkey, model)
    else:
        claim = claims.claim(valkey, WORKER, model.name, LEASE_S).claim
        assert claim is not None
        got = claim
    if back == "preempted":
        assert claims.requeue(valkey, got.task.generation, got.epoch)
    else:
        let_lease_lapse(valkey, got.task.generation, model.name)
    let_the_wait_pass()
    assert end_waits() == 0
    assert claims.claim(valkey, "another worker", model.name, LEASE_S).claim is not None
    assert row(result.task.generation).state == ("running" if known else "queued")


def test_what_a_crash_left_half_ended_is_ended_by_the_next_look(valkey: redis.Redis) -> None:
    for steps in (1, 2):
        model = LanguageModelFactory()
        result = impatient(model)
        let_the_wait_pass()
        generation, reason = result.task.generation, CancelReason.QUEUE_WAIT_EXCEEDED
        withdrawal = dispatch_queue().withdraw(generation, reason, never_claimed=True)
        assert withdrawal.outcome is WithdrawOutcome.QUEUED
        if steps == 2:
            end = End(
                seq=1,
                epoch=withdrawal.epoch,
                state=EndState.EXPIRED,
                usage=Usage(prompt_tokens=0, completion_tokens=0),
                cancel_reason=reason,
            )
            assert publishing.append_end(valkey, generation, withdrawal.epoch, end)
        assert end_waits() == 1
        assert_waited_in_vain(result)


def test_what_a_store_that_was_emptied_has_forgotten_ends_too(valkey: redis.Redis) -> None:
    result = impatient(LanguageModelFactory())
    valkey.flushall()
    let_the_wait_pass()
    assert end_waits() == 1
    assert_waited_in_vain(result)
    assert sweep() == 0


def test_waits_end_while_workers_live_and_while_none_does(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(housekeeping, "JobThread", lambda name, made: jobs.extend(made))
    nothing: Any = lambda *_: None  # noqa: E731
    housekeeping.housekeeping_thread(
        LanguageModelFactory().id, nothing, nothing, nothing, nothing, nothing, nothing, 10.0
    )
    [job] = [job for job in jobs if job.do is end_waits]
    assert job.interval_s <= 1
    [entry] = [one for one in app.conf.beat_schedule.values() if one["task"] == "inference.tasks.end_overdue"]
    assert entry["schedule"] <= 5
