"""Events are appended in the transaction of the change, in one chain; without an event there is no change."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.backends.db import SessionStore
from django.db import IntegrityError, connection, transaction
from django.test import RequestFactory

from accounts import audit, entitlements, keys, tenants, users
from accounts.actors import actor_of
from accounts.audit import verification
from accounts.audit.canonical import GENESIS_HASH
from accounts.audit.contents import event_hash
from accounts.audit.reading import disclose
from accounts.models import ApiKey, AuditEvent, AuditHead, AuditPersonalValue, Entitlement, Lane, Tenant, User
from accounts.tenancy import every_tenant
from tests.factories import ACTOR, ApiKeyFactory, EntitlementFactory, TenantFactory, UserFactory

THING = audit.ObjectRef("thing", "1", "a thing")


def _record(n: int = 1) -> None:
    for i in range(n):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", THING, {"n": i}, {"n": i + 1})


def _holds(events: int) -> None:
    found = verification.verify(from_scratch=True)
    assert (found.events, found.fault) == (events, None)


@pytest.mark.django_db
def test_an_event_says_who_did_what_to_what_from_where_before_and_after() -> None:
    key = ApiKeyFactory(name="app")
    with transaction.atomic():
        returned = audit.record(ACTOR, "api_key.change", key, {"name": "old"}, {"name": "app"})
    event = AuditEvent.objects.get()
    assert (event, event.hash) == (returned, returned.hash)
    assert (event.sequence, event.format) == (1, 2)
    assert (event.actor_kind, event.actor_id) == ("user", ACTOR.id)
    assert (disclose(event).actor_name, disclose(event).address) == ("tester", "192.0.2.7")
    assert (event.action, event.object_kind, event.object_id) == ("api_key.change", "api_key", str(key.id))
    assert event.object_name == f"app ({key.prefix}…)"
    assert event.tenant_id == key.tenant_id
    assert (event.before, event.after) == ({"name": "old"}, {"name": "app"})
    assert event.request_id == "req_test"


@pytest.mark.django_db
def test_an_event_tells_sessions_apart_and_opens_none() -> None:
    user: Any = UserFactory()
    fingerprints = []
    for _ in range(2):
        request = RequestFactory().get("/")
        request.user = user
        session: SessionBase = SessionStore()
        session.create()
        request.session = session
        with transaction.atomic():
            event = audit.record(actor_of(request), "thing.change", THING, None, None)
        assert session.session_key is not None
        assert session.session_key not in str(AuditEvent.objects.filter(pk=event.pk).values())
        fingerprints.append(event.session)
    assert len(set(fingerprints)) == 2
    assert {len(fingerprint) for fingerprint in fingerprints} == {16}


@pytest.mark.django_db
def test_the_chain_holds_and_each_event_names_the_one_before() -> None:
    _record(5)
    events = list(AuditEvent.objects.order_by("sequence"))
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert events[0].previous_hash == GENESIS_HASH
    assert [event.previous_hash for event in events[1:]] == [event.hash for event in events[:-1]]
    assert [event_hash(event) for event in events] == [event.hash for event in events]
    head = AuditHead.objects.get()
    assert (head.sequence, head.hash) == (5, events[-1].hash)
    _holds(5)


@pytest.mark.django_db
def test_an_empty_chain_holds() -> None:
    _holds(0)
    assert AuditHead.objects.get().hash == GENESIS_HASH


@pytest.mark.django_db
def test_several_changes_of_a_transaction_are_as_many_events_in_their_order() -> None:
    tenant = uuid.uuid4()
    with transaction.atomic():
        events = audit.record_all(
            ACTOR,
            [
                audit.Change(action="thing.change", obj=THING, before=None, after={"n": n}, tenant_id=tenant)
                for n in range(3)
            ],
        )
        assert audit.record_all(ACTOR, []) == []
    assert [(event.sequence, event.after) for event in events] == [
        (1, {"n": 0}),
        (2, {"n": 1}),
        (3, {"n": 2}),
    ]
    assert {event.at for event in events} == {events[0].at}
    assert {event.tenant_id for event in AuditEvent.objects.all()} == {tenant}
    _holds(3)


@pytest.mark.django_db
def test_an_event_costs_four_statements_and_holds_the_head_for_no_other(
    django_assert_num_queries: Any,
) -> None:
    with transaction.atomic(), django_assert_num_queries(4) as asked:
        audit.record(ACTOR, "thing.change", THING, {"n": 1}, {"n": 2})
    tables = [query["sql"].split("accounts_")[1].split('"')[0] for query in asked.captured_queries]
    assert tables == ["audithead", "auditevent", "auditpersonalvalue", "audithead"]


@pytest.mark.django_db(transaction=True)
def test_nothing_is_recorded_outside_of_a_transaction() -> None:
    with pytest.raises(audit.AuditError, match="inside the transaction"):
        audit.record(ACTOR, "thing.change", THING, None, None)
    assert not AuditEvent.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_rolled_back_leaves_no_event_and_no_name() -> None:
    _record(1)
    names = AuditPersonalValue.objects.count()
    with transaction.atomic():
        audit.record(ACTOR, "thing.change", THING, None, None)
        transaction.set_rollback(True)
    assert AuditPersonalValue.objects.count() == names
    _record(1)
    _holds(2)


@pytest.mark.django_db(transaction=True)
def test_a3_a_bulk_change_fails_as_a_whole_when_its_audit_fails() -> None:
    tenant = TenantFactory()
    standing = [EntitlementFactory(tenant=tenant, lane=lane) for lane in Lane.objects.all()]
    # The place of the second event is taken, so that the first is written and the next one fails.
    AuditEvent.objects.create(
        sequence=2, at=datetime(2026, 1, 1, tzinfo=UTC), actor_name="x", action="x.x", hash="x" * 64
    )
    with pytest.raises(IntegrityError):
        entitlements.end_all(entitlements=standing, actor=ACTOR)
    with every_tenant("test"):
        assert Entitlement.objects.filter(ended_at=None).count() == 3
    assert AuditEvent.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a3_no_verb_changes_anything_when_the_chain_has_no_head(tampering: Any) -> None:
    key, user = ApiKeyFactory(), UserFactory()
    with tampering():
        AuditHead.objects.all().delete()
    for verb in (
        lambda: keys.revoke(key=key, actor=ACTOR),
        lambda: keys.rotate(key=key, actor=ACTOR),
        lambda: keys.create(tenant=key.tenant, name="x", actor=ACTOR),
        lambda: tenants.create(name="x", slug="x", actor=ACTOR),
        lambda: tenants.close(tenant=key.tenant, actor=ACTOR),
        lambda: users.create(username="x", actor=ACTOR),
        lambda: users.close(user=user, actor=ACTOR),
        lambda: entitlements.grant(tenant=key.tenant, lane=Lane.objects.get(name="low"), actor=ACTOR),
    ):
        with pytest.raises(audit.AuditError, match="no head row"):
            verb()
    with every_tenant("test"):
        assert ApiKey.objects.filter(revoked_at=None, expires_at=None).count() == 1
        assert not Entitlement.objects.exists()
    assert list(Tenant.objects.values_list("closed_at", flat=True)) == [None]
    assert User.objects.filter(is_active=True).count() == 1


@pytest.mark.django_db(transaction=True)
def test_appends_from_many_threads_make_one_chain() -> None:
    start = threading.Barrier(6)

    def append() -> None:
        try:
            start.wait()
            _record(10)
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(append) for _ in range(6)]:
            done.result()
    _holds(60)


@pytest.mark.django_db(transaction=True)
def test_the_head_is_held_until_the_transaction_ends() -> None:
    """Whoever appends meanwhile waits, and goes on from there: no two events have one predecessor."""
    recorded, finish = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                audit.record(ACTOR, "thing.change", THING, None, {"by": "slow"})
                recorded.set()
                assert finish.wait(20)
        finally:
            connection.close()

    def quick() -> None:
        try:
            _record(1)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(slow)
        assert recorded.wait(20)
        second = threads.submit(quick)
        assert not second.done()
        assert not AuditEvent.objects.exists()
        finish.set()
        first.result()
        second.result()
    assert AuditEvent.objects.get(sequence=1).after == {"by": "slow"}
    _holds(2)
