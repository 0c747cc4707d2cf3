from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import redis
from django.db import OperationalError, connection, connections
from django.utils import timezone

from accounts import users
from accounts.models import ApiKey, LedgerEntry, Membership, Tenant, User
from accounts.tenancy import every_tenant
from inference.cancellation import cancel, carry_out
from inference.dispatch import publishing, token_log
from inference.dispatch.queue import dispatch_queue
from inference.intake import Accepted
from inference.messages import CancelReason, End
from inference.models import Generation
from inference.recovery import cancel_revoked, expire_overdue, sweep
from signalbox import write_transactions
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    GenerationFactory,
    LanguageModelFactory,
    MembershipFactory,
)
from tests.inference.dispatch.conftest import let_lease_lapse, wait_until
from tests.inference.doors import WORKER, accepted, claimed, end_of, publish_tokens, row

pytestmark = pytest.mark.django_db(transaction=True)


def _ledger_tokens(result: Accepted) -> tuple[int, int]:
    with every_tenant("the test looks at the ledger"):
        entry = LedgerEntry.objects.get(generation_id=result.generation_id)
    return entry.prompt_tokens, entry.completion_tokens


def test_a_queued_generation_ends_at_once_and_costs_nothing(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result = accepted(model)
    cancel(result.generation_id, CancelReason.CLIENT_REQUESTED)
    cancel(result.generation_id, CancelReason.OPERATOR_REQUESTED)
    ended = row(result.task.generation)
    assert (ended.state, ended.cancel_reason) == ("cancelled", "client_requested")
    (end,) = token_log.read(valkey, result.task.generation)
    assert isinstance(end, End)
    assert end.cancel_reason is CancelReason.CLIENT_REQUESTED
    assert _ledger_tokens(result) == (0, 0)
    assert dispatch_queue().depths(model.name).get(1, 0) == 0


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has a queue of writers of its own")
def test_who_cancels_waits_for_the_other_writers_of_its_process(valkey: redis.Redis) -> None:
    """SQLite lets one connection write: of a crowd that asks it again and again, somebody may never hit the moment."""
    result = accepted(LanguageModelFactory())
    failures = list[Exception]()

    def leave() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 0")
            cancel(result.generation_id, CancelReason.CLIENT_DISCONNECTED)
        except OperationalError as error:
            failures.append(error)
        finally:
            connections.close_all()

    def waits_or_is_done() -> bool:
        if not leaving.is_alive():
            return True
        frame = sys._current_frames().get(leaving.ident or 0)
        return frame is not None and frame.f_code.co_filename == write_transactions.__file__

    leaving = threading.Thread(target=leave)
    with every_tenant("the test writes meanwhile"), write_transactions.write_transaction():
        leaving.start()
        wait_until(waits_or_is_done)
    leaving.join()
    assert failures == []
    assert row(result.task.generation).state == "cancelled"


def test_a_running_generation_is_ended_by_its_worker_which_is_told_with_its_next_tick(
    valkey: redis.Redis,
) -> None:
    model = LanguageModelFactory()
    result = accepted(model)
    claimed(valkey, model)
    cancel(result.generation_id, CancelReason.CLIENT_DISCONNECTED)
    assert row(result.task.generation).state == "running"
    told = publishing.publish(valkey, WORKER, []).cancelled
    assert told == {result.task.generation: CancelReason.CLIENT_DISCONNECTED}


def test_a_cancel_that_valkey_lost_is_repeated_by_the_sweep(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result = accepted(model)
    with every_tenant("as if the web had died between the database and Valkey"):
        Generation.objects.filter(id=result.generation_id).update(
            cancel_requested_at=timezone.now(), cancel_reason="client_requested"
        )
    assert sweep() == 1
    assert row(result.task.generation).state == "cancelled"
    assert sweep() == 0


def test_a_cancelled_generation_that_valkey_forgot_is_settled_and_never_runs(valkey: redis.Redis) -> None:
    model = LanguageModelFactory()
    result = accepted(model)
    valkey.flushall()
    cancel(result.generation_id, CancelReason.CLIENT_REQUESTED)
    assert row(result.task.generation).state == "cancelled"
    assert not dispatch_queue().enqueue(result.task)


def test_a_cancel_after_the_logged_end_leaves_that_end_to_its_worker_or_settles_it(
    valkey: redis.Redis,
) -> None:
    """The worker knows more of it than the log does. Unless it is gone."""
    model = LanguageModelFactory()
    result = accepted(model)
    got = claimed(valkey, model)
    publish_tokens(valkey, got, "Hi")
    publishing.publish(
        valkey, WORKER, [(got.task.generation, got.epoch, end_of(got, 2, completion_tokens=1))]
    )
    cancel(result.generation_id, CancelReason.CLIENT_REQUESTED)
    assert row(result.task.generation).state == "running"
    let_lease_lapse(valkey, got.task.generation, model.name)
    carry_out(row(result.task.generation))
    assert row(result.task.generation).state == "completed"
    assert row(result.task.generation).cancel_reason == ""
    assert _ledger_tokens(result) == (3, 1)


def _by_key(generation: Generation) -> None:
    ApiKey.objects.filter(id=generation.api_key_id).update(revoked_at=timezone.now())


def _by_tenant(generation: Generation) -> None:
    Tenant.objects.filter(id=generation.tenant_id).update(closed_at=timezone.now())


def _by_membership(generation: Generation) -> None:
    Membership.objects.filter(user=generation.user_id).update(ended_at=timezone.now())


def _by_user(generation: Generation) -> None:
    User.objects.filter(id=generation.user_id).update(is_active=False)


def _by_password(generation: Generation) -> None:
    users.issue_one_time_password(user=User.objects.get(id=generation.user_id), actor=ACTOR)


@pytest.mark.parametrize("revoke", [_by_key, _by_tenant, _by_membership, _by_user, _by_password])
def test_whose_access_ends_has_its_generations_ended(
    valkey: redis.Redis, revoke: Callable[[Generation], None]
) -> None:
    if revoke in (_by_key, _by_tenant):
        key = ApiKeyFactory()
        generation, other = GenerationFactory(api_key=key, tenant=key.tenant), GenerationFactory()
    else:
        member = MembershipFactory()
        generation = GenerationFactory(user=member.user, tenant=member.tenant)
        other_member = MembershipFactory()
        other = GenerationFactory(user=other_member.user, tenant=other_member.tenant)
    assert cancel_revoked() == 0
    with every_tenant("the test revokes"):
        revoke(generation)
    assert cancel_revoked() == 1
    ended = row(generation.id.hex)
    assert (ended.state, ended.cancel_reason) == ("cancelled", "access_revoked")
    assert row(other.id.hex).state == "queued"


def test_what_is_overdue_expires(valkey: redis.Redis) -> None:
    generation = GenerationFactory()
    assert expire_overdue() == 0
    with every_tenant("the test lets time pass"):
        Generation.objects.filter(id=generation.id).update(created_at=timezone.now() - timedelta(hours=2))
    assert expire_overdue() == 1
    assert (row(generation.id.hex).state, row(generation.id.hex).cancel_reason) == ("expired", "timed_out")
