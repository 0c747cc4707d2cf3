from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis
import time_machine

from accounts import keys, tenants
from accounts.authentication import InvalidKey, authenticate_key
from accounts.models import ApiKey, AuditEvent, Lane
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from tests.factories import ACTOR, ApiKeyFactory, TenantFactory
from tests.fixtures.stored_text import stored_text

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def works(raw: str) -> bool:
    try:
        authenticate_key(raw)
    except InvalidKey:
        return False
    return True


def test_a_new_key_works_and_carries_what_it_was_given() -> None:
    tenant = TenantFactory()
    issued = keys.create(
        tenant=tenant,
        name=" ci runner ",
        scopes=["read"],
        default_lane=Lane.objects.get(name="low"),
        actor=ACTOR,
    )
    principal = authenticate_key(issued.raw)
    assert principal.tenant_id == tenant.id
    assert principal.name == "ci runner"
    assert principal.scopes == {"read"}
    assert principal.default_lane == "low"
    assert principal.api_key_prefix == issued.key.prefix


def test_a1_a_key_used_wherever_it_can_go_wrong_is_found_nowhere(
    valkey: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tenant = TenantFactory()
    canary = keys.create(tenant=tenant, name="canary", actor=ACTOR)
    secret = canary.raw.rsplit("_", 1)[1]
    said: list[str] = []

    def refused(call: object, **arguments: object) -> None:
        with pytest.raises(ChangeRefused) as refusal:
            call(**arguments, actor=ACTOR)  # type: ignore[operator]
        said.append(str(refusal.value))

    authenticate_key(canary.raw)
    for wrong in (
        canary.raw + "x",
        canary.raw[:-1],
        canary.raw.replace("sb_", "sk_"),
        f"Bearer {canary.raw}",
    ):
        with pytest.raises(InvalidKey) as invalid:
            authenticate_key(wrong)
        said.append(str(invalid.value))
    refused(keys.create, tenant=tenant, name=canary.raw)
    refused(keys.create, tenant=tenant, name="x", scopes=["read", canary.raw])
    refused(tenants.create, name=canary.raw, slug="a")
    refused(tenants.create, name="a", slug=canary.raw)
    rotated = keys.rotate(key=canary.key, actor=ACTOR)
    keys.revoke(key=canary.key, actor=ACTOR)
    with pytest.raises(InvalidKey) as invalid:
        authenticate_key(canary.raw)
    said += [str(invalid.value), repr(canary), repr(rotated), repr(invalid.value)]

    assert secret not in stored_text()
    assert secret not in "\n".join(said)
    assert secret not in caplog.text
    assert all(secret.encode() not in (valkey.dump(name) or b"") for name in valkey.scan_iter())


def test_a7_after_a_rotation_both_keys_work_until_the_overlap_ends() -> None:
    tenant = TenantFactory()
    with time_machine.travel(NOON, tick=False) as clock:
        old = keys.create(tenant=tenant, name="app", actor=ACTOR)
        new = keys.rotate(key=old.key, overlap=HOUR, actor=ACTOR)
        clock.move_to(NOON + HOUR - timedelta(seconds=1))
        assert (works(old.raw), works(new.raw)) == (True, True)
        clock.move_to(NOON + HOUR)
        assert (works(old.raw), works(new.raw)) == (False, True)


def test_a7_a_lost_answer_is_not_a_lost_key() -> None:
    tenant = TenantFactory()
    with time_machine.travel(NOON, tick=False) as clock:
        old = keys.create(tenant=tenant, name="app", actor=ACTOR)
        lost = keys.rotate(key=old.key, overlap=HOUR, actor=ACTOR)
        clock.shift(timedelta(minutes=10))
        again = keys.rotate(key=old.key, overlap=HOUR, actor=ACTOR)
        assert [works(key.raw) for key in (old, lost, again)] == [True, True, True]
        clock.move_to(NOON + HOUR)
        # The overlap ends when the first rotation said it would, and takes the successor along that nobody has.
        assert [works(key.raw) for key in (old, lost, again)] == [False, False, True]


def test_a_key_whose_successor_is_in_use_is_not_rotated_again() -> None:
    old = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR)
    new = keys.rotate(key=old.key, actor=ACTOR)
    with every_tenant("test"):
        ApiKey.objects.filter(id=new.key.id).update(last_used_at=NOON)
    with pytest.raises(ChangeRefused) as refusal:
        keys.rotate(key=old.key, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.KEY_ALREADY_ROTATED
    assert new.key.prefix in refusal.value.message


def test_rotating_never_makes_a_key_outlive_its_expiry() -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        old = keys.create(tenant=TenantFactory(), name="app", expires_at=NOON + 2 * HOUR, actor=ACTOR)
        keys.rotate(key=old.key, overlap=HOUR, actor=ACTOR)
        again = keys.rotate(key=old.key, overlap=HOUR, actor=ACTOR)
        assert again.key.expires_at == NOON + 2 * HOUR
        late = keys.rotate(key=again.key, overlap=timedelta(days=1), actor=ACTOR)
        clock.move_to(NOON + 2 * HOUR)
        assert [works(key.raw) for key in (old, again, late)] == [False, False, False]


def test_a_successor_has_its_predecessor_s_rights_and_tenant() -> None:
    low = Lane.objects.get(name="low")
    old = keys.create(tenant=TenantFactory(), name="app", scopes=["read"], default_lane=low, actor=ACTOR)
    new = keys.rotate(key=old.key, actor=ACTOR)
    assert new.key.rotated_from == old.key
    assert (new.key.tenant, new.key.scopes, new.key.default_lane) == (old.key.tenant, ["read"], low)


def test_an_expired_key_is_refused_from_that_second_on() -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        issued = keys.create(tenant=TenantFactory(), name="app", expires_at=NOON + HOUR, actor=ACTOR)
        assert works(issued.raw)
        clock.move_to(NOON + HOUR)
        assert not works(issued.raw)


def test_revoking_twice_is_one_change() -> None:
    issued = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR)
    first = keys.revoke(key=issued.key, actor=ACTOR).revoked_at
    assert keys.revoke(key=issued.key, actor=ACTOR).revoked_at == first
    assert AuditEvent.objects.filter(action="api_key.revoke").count() == 1


@pytest.mark.parametrize("verb", ["rotate", "change"])
@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"revoked_at": NOON}, ChangeRefusal.KEY_REVOKED),
        ({"expires_at": NOON}, ChangeRefusal.KEY_EXPIRED),
        ({"tenant__closed_at": NOON}, ChangeRefusal.TENANT_CLOSED),
    ],
)
def test_a_key_that_no_longer_works_is_neither_rotated_nor_changed(
    verb: str, state: dict[str, datetime], code: ChangeRefusal
) -> None:
    key = ApiKeyFactory(**state)
    calls: dict[str, Callable[[], object]] = {
        "rotate": lambda: keys.rotate(key=key, actor=ACTOR),
        "change": lambda: keys.change(
            key=key, name="x", scopes=["read"], default_lane=None, expires_at=None, actor=ACTOR
        ),
    }
    with time_machine.travel(NOON, tick=False), pytest.raises(ChangeRefused) as refusal:
        calls[verb]()
    assert refusal.value.code == code


def test_changing_nothing_records_nothing() -> None:
    key = ApiKeyFactory()
    keys.change(key=key, name=key.name, scopes=key.scopes, default_lane=None, expires_at=None, actor=ACTOR)
    assert not AuditEvent.objects.exists()
    keys.change(key=key, name="other", scopes=["read"], default_lane=None, expires_at=None, actor=ACTOR)
    event = AuditEvent.objects.get()
    assert (event.before["name"], event.after["name"]) == (key.name, "other")
    assert event.after["scopes"] == ["read"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["root"]}, "scopes"),
        ({"name": "x", "expires_at": NOON}, "expires_at"),
    ],
)
def test_an_impossible_key_is_refused_by_the_field_at_fault(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ChangeRefused) as refusal:
        keys.create(tenant=TenantFactory(), actor=ACTOR, **arguments)  # type: ignore[arg-type]
    assert refusal.value.field == field
    with every_tenant("test"):
        assert not ApiKey.objects.exists()


def test_a_closed_tenant_gets_no_keys() -> None:
    with pytest.raises(ChangeRefused) as refusal:
        keys.create(tenant=TenantFactory(closed_at=NOON), name="x", actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.TENANT_CLOSED
