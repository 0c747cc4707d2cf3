from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from accounts import audit, entitlements, key_text, keys, tenants, users
from accounts.models import ApiKey, AuditEvent, AuditHead, Entitlement, Lane, Tenant, User
from accounts.principal import Actor
from accounts.tenancy import every_tenant
from tests.factories import ACTOR, ApiKeyFactory, EntitlementFactory, TenantFactory, UserFactory

THING = audit.ObjectRef("thing", "1", "a thing")


def _record(n: int = 1) -> None:
    for i in range(n):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", THING, {"n": i}, {"n": i + 1})


@pytest.mark.django_db
def test_an_event_says_who_did_what_to_what_from_where_before_and_after() -> None:
    key = ApiKeyFactory(name="app")
    with transaction.atomic():
        audit.record(ACTOR, "api_key.change", key, {"name": "old"}, {"name": "app"})
    event = AuditEvent.objects.get()
    assert event.sequence == 1
    assert (event.actor_kind, event.actor_id, event.actor_name) == ("user", ACTOR.id, "tester")
    assert (event.action, event.object_kind, event.object_id) == ("api_key.change", "api_key", str(key.id))
    assert event.object_name == f"app ({key.prefix}…)"
    assert event.tenant_id == key.tenant_id
    assert (event.before, event.after) == ({"name": "old"}, {"name": "app"})
    assert (event.request_id, event.address) == ("req_test", "192.0.2.7")


@pytest.mark.django_db
def test_the_chain_holds_and_each_event_names_the_one_before() -> None:
    _record(5)
    events = list(AuditEvent.objects.order_by("sequence"))
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert events[0].previous_hash == audit.GENESIS_HASH
    assert [event.previous_hash for event in events[1:]] == [event.hash for event in events[:-1]]
    assert audit.verify() == audit.Verification(5, events[-1].hash, None)


@pytest.mark.django_db
def test_an_empty_chain_holds() -> None:
    assert audit.verify() == audit.Verification(0, audit.GENESIS_HASH, None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    [
        {"actor_name": "somebody else"},
        {"actor_kind": "system"},
        {"actor_id": "0"},
        {"at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"action": "thing.delete"},
        {"object_kind": "key"},
        {"object_id": "2"},
        {"object_name": "another thing"},
        {"tenant_id": uuid.uuid4()},
        {"before": {"n": 7}},
        {"after": None},
        {"request_id": ""},
        {"address": "203.0.113.1"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_altering_any_field_of_any_event_is_found(change: dict[str, Any]) -> None:
    _record(3)
    AuditEvent.objects.filter(sequence=2).update(**change)
    assert audit.verify().broken == audit.ChainBreak(2, audit.BreakReason.ALTERED)
    assert audit.verify().events == 1


@pytest.mark.django_db
@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_taking_an_event_out_is_found(sequence: int) -> None:
    _record(3)
    AuditEvent.objects.filter(sequence=sequence).delete()
    assert audit.verify().broken == audit.ChainBreak(sequence, audit.BreakReason.MISSING)


@pytest.mark.django_db
def test_an_event_made_anew_with_its_own_hash_no_longer_fits_the_next() -> None:
    _record(3)
    forged = AuditEvent.objects.get(sequence=2)
    forged.actor_name = "somebody else"
    forged.hash = audit._hash(forged)
    forged.save()
    assert audit.verify().broken == audit.ChainBreak(3, audit.BreakReason.UNLINKED)


@pytest.mark.django_db
def test_a_forged_last_event_no_longer_fits_the_head() -> None:
    _record(3)
    forged = AuditEvent.objects.get(sequence=3)
    forged.actor_name = "somebody else"
    forged.hash = audit._hash(forged)
    forged.save()
    assert audit.verify().broken == audit.ChainBreak(3, audit.BreakReason.HEAD_MISMATCH)


@pytest.mark.django_db(transaction=True)
def test_nothing_is_recorded_outside_of_a_transaction() -> None:
    with pytest.raises(audit.AuditError, match="inside the transaction"):
        audit.record(ACTOR, "thing.change", THING, None, None)
    assert not AuditEvent.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_rolled_back_leaves_no_event() -> None:
    _record(1)
    with transaction.atomic():
        audit.record(ACTOR, "thing.change", THING, None, None)
        transaction.set_rollback(True)
    _record(1)
    assert audit.verify().events == 2


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
def test_a3_no_verb_changes_anything_when_the_chain_has_no_head() -> None:
    key, user = ApiKeyFactory(), UserFactory()
    AuditHead.objects.all().delete()
    for verb in (
        lambda: keys.create(tenant=key.tenant, name="x", actor=ACTOR),
        lambda: keys.rotate(key=key, actor=ACTOR),
        lambda: keys.revoke(key=key, actor=ACTOR),
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
    assert audit.verify() == audit.Verification(60, AuditHead.objects.get().hash, None)


@pytest.mark.django_db
def test_secrets_and_personal_fields_are_masked_wherever_they_stand() -> None:
    raw = str(key_text.draw())
    actor = Actor.system(f"manage.py {raw}")
    with transaction.atomic():
        audit.record(
            actor,
            "user.change",
            audit.ObjectRef("user", "1", raw),
            {
                "password": "hunter2",
                "email": "a@example.com",
                "name": f"my {raw} key",
                "deep": [{"token": "t0k"}],
            },
            {"password": "", "must_change_password": True, "max_tokens": 5},
        )
    event = AuditEvent.objects.get()
    assert event.before == {
        "password": "***",
        "email": "***",
        "name": "my *** key",
        "deep": [{"token": "***"}],
    }
    assert event.after == {"password": "", "must_change_password": True, "max_tokens": 5}
    assert (event.actor_name, event.object_name) == ("manage.py ***", "***")


@pytest.mark.django_db
@pytest.mark.parametrize("value", [1.5, object(), b"bytes"])
def test_what_has_no_one_written_form_is_refused(value: object) -> None:
    with pytest.raises(audit.AuditError), transaction.atomic():
        audit.record(ACTOR, "thing.change", THING, None, {"value": value})
    with pytest.raises(audit.AuditError), transaction.atomic():
        audit.record(ACTOR, "changed it", THING, None, None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_JSON, st.randoms(use_true_random=False))
def test_equal_values_are_written_equally(value: Any, rng: Any) -> None:
    def shuffled(item: Any) -> Any:
        if isinstance(item, dict):
            pairs = [(key, shuffled(inner)) for key, inner in item.items()]
            rng.shuffle(pairs)
            return dict(pairs)
        return [shuffled(inner) for inner in item] if isinstance(item, list) else item

    assert audit.canonical_json(shuffled(value)) == audit.canonical_json(value)
