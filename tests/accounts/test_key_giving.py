"""A key gives no key more than it has itself, and itself nothing; what another key has already may stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine

from accounts import key_rights, keys
from accounts.limits import Limits
from accounts.models import ApiKey, AuditEvent
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from tests.factories import ACTOR, ApiKeyFactory, LanguageModelFactory, TenantFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
END = NOON + timedelta(hours=2)
OWN: dict[str, Any] = {
    "allowed_lanes": ["normal", "low"],
    "allowed_models": ["small"],
    "allowed_networks": ["192.0.2.0/25", "192.0.2.128/25", "2001:db8::/32"],
    "expires_at": END,
}
WITHIN: dict[str, Any] = {
    "allowed_lanes": ["low"],
    "allowed_models": ["small"],
    "allowed_networks": ["192.0.2.0/24", "2001:db8::1"],
    "expires_at": END,
}
#: One thing more each than the key that gives it has.
MORE: list[tuple[str, Any]] = [
    ("allowed_lanes", []),
    ("allowed_lanes", ["low", "high"]),
    ("allowed_models", []),
    ("allowed_models", ["small", "large"]),
    ("allowed_networks", []),
    ("allowed_networks", ["192.0.2.0/23"]),
    ("allowed_networks", ["192.0.2.1", "::/0"]),
    ("expires_at", None),
    ("expires_at", END + timedelta(seconds=1)),
]


@pytest.fixture(autouse=True)
def noon(db: None) -> Any:
    for name in ("small", "large"):
        LanguageModelFactory(name=name)
    with time_machine.travel(NOON, tick=False) as clock:
        yield clock


@pytest.fixture
def giver() -> ApiKey:
    key: ApiKey = ApiKeyFactory(scopes=["inference", "admin"], **OWN)
    return key


def by(key: ApiKey) -> Actor:
    return Actor(kind="api_key", id=str(key.id), name=key.name)


def change(key: ApiKey, actor: Actor, **changes: Any) -> ApiKey:
    present = {
        "name": key.name,
        "scopes": key.scopes,
        "default_lane": key.default_lane,
        "expires_at": key.expires_at,
    }
    return keys.change(key=key, actor=actor, **{**present, **changes})


def refused(verb: Any, *arguments: Any, **named: Any) -> ChangeRefused:
    with pytest.raises(ChangeRefused) as refusal:
        verb(*arguments, **named)
    assert refusal.value.code is ChangeRefusal.WIDER_THAN_GIVER, refusal.value.message
    assert not AuditEvent.objects.exists()
    return refusal.value


def stored(key: ApiKey) -> dict[str, Any]:
    with every_tenant("test"):
        row = ApiKey.objects.get(id=key.id)
    return {**key_rights.rights_of(row), "expires_at": row.expires_at}


def test_a_narrowed_key_makes_keys_that_are_as_narrow_or_narrower(giver: ApiKey) -> None:
    for rights in (OWN, WITHIN):
        issued = keys.create(
            tenant=giver.tenant, name="app", scopes=["inference", "admin"], actor=by(giver), **rights
        )
        assert stored(issued.key).items() >= rights.items()


@pytest.mark.parametrize(("right", "more"), MORE)
def test_it_makes_none_that_has_more(giver: ApiKey, right: str, more: Any) -> None:
    refusal = refused(
        keys.create, tenant=giver.tenant, name="app", actor=by(giver), **{**WITHIN, right: more}
    )
    assert refusal.field == right
    with every_tenant("test"):
        assert ApiKey.objects.count() == 1


@pytest.mark.parametrize(("right", "more"), MORE)
def test_it_changes_no_key_to_have_more_itself_least_of_all(giver: ApiKey, right: str, more: Any) -> None:
    for key in (giver, ApiKeyFactory(tenant=giver.tenant, **WITHIN)):
        before = stored(key)
        assert refused(change, key, by(giver), **{right: more}).field == right
        assert stored(key) == before


def test_it_gives_another_key_what_it_has_and_leaves_that_what_it_had(giver: ApiKey) -> None:
    other = ApiKeyFactory(
        tenant=giver.tenant,
        allowed_lanes=["high", "low"],
        allowed_networks=["203.0.113.0/24"],
        expires_at=END + timedelta(days=1),
    )
    change(
        other,
        by(giver),
        name="renamed",
        allowed_lanes=["high", "normal", "low"],
        allowed_networks=["203.0.113.0/24", "192.0.2.0/24"],
    )
    assert stored(other) == {
        "scopes": ["inference", "read"],
        "default_lane": None,
        "allowed_lanes": ["high", "normal", "low"],
        "allowed_models": [],
        "allowed_networks": ["203.0.113.0/24", "192.0.2.0/24"],
        "expires_at": END + timedelta(days=1),
    }
    narrower = change(other, by(giver), allowed_lanes=["high", "low"], expires_at=END + timedelta(hours=5))
    assert narrower.allowed_lanes == ["high", "low"]


def test_a_key_narrows_itself_and_takes_nothing_of_that_back(giver: ApiKey) -> None:
    change(giver, by(giver), **WITHIN, limits=Limits(tokens_per_day=10), name="narrower")
    for right, wider in (("allowed_lanes", OWN["allowed_lanes"]), ("limits", Limits())):
        with pytest.raises(ChangeRefused) as refusal:
            change(giver, by(giver), **{right: wider})
        assert refusal.value.code is ChangeRefusal.WIDER_THAN_GIVER
    # Whoever is no key may.
    assert change(giver, ACTOR, **OWN, limits=Limits()).allowed_lanes == OWN["allowed_lanes"]


def test_no_key_gives_itself_another_scope() -> None:
    giver = ApiKeyFactory(scopes=["admin"])
    assert refused(change, giver, by(giver), scopes=["inference", "admin"]).field == "scopes"
    assert change(giver, by(giver), scopes=["admin"], name="same").scopes == ["admin"]
    made = keys.create(tenant=giver.tenant, name="app", scopes=["inference"], actor=by(giver))
    assert made.key.scopes == ["inference"]


def test_it_is_told_the_text_of_no_key_that_may_do_more(giver: ApiKey) -> None:
    wider = ApiKeyFactory(tenant=giver.tenant, name="the wide one", **{**WITHIN, "allowed_models": []})
    refusal = refused(keys.rotate, key=wider, actor=by(giver))
    assert refusal.field is None
    assert refusal.message.startswith("the wide one may do more than the API key that asks.")
    with every_tenant("test"):
        assert ApiKey.objects.count() == 2
    keys.rotate(key=ApiKeyFactory(tenant=giver.tenant, **WITHIN), actor=by(giver))
    assert stored(keys.rotate(key=giver, actor=by(giver)).key) == stored(giver) | {"expires_at": END}
    # Its answer was lost: it is told again.
    keys.rotate(key=giver, actor=by(giver))


def test_limits_would_add_up_so_that_a_limited_key_gives_none_of_its_own() -> None:
    giver = ApiKeyFactory(scopes=["admin"], allowance__tokens_per_day=1000)
    with pytest.raises(ChangeRefused, match=r"has limits of its own \(tokens_per_day\)") as refusal:
        keys.create(tenant=giver.tenant, name="app", limits=Limits(tokens_per_day=1), actor=by(giver))
    assert refusal.value.field == "tokens_per_day"
    other = ApiKeyFactory(tenant=giver.tenant, allowance__tokens_per_day=50, allowance__concurrency=1)
    assert refused(change, other, by(giver), limits=Limits(tokens_per_day=51)).field == "tokens_per_day"
    assert refused(change, other, by(giver), limits=Limits()).field == "tokens_per_day"
    refused(keys.rotate, key=other, actor=by(giver))
    change(other, by(giver), limits=Limits(tokens_per_day=49))
    with every_tenant("test"):
        assert ApiKey.objects.get(id=other.id).allowance.limits == Limits(tokens_per_day=49)


def test_a_limited_key_replaces_itself_and_both_stay_limited() -> None:
    giver = ApiKeyFactory(scopes=["admin"], allowance__tokens_per_day=1000)
    successor = keys.rotate(key=giver, actor=by(giver)).key
    assert successor.allowance_id == giver.allowance_id
    for key, actor in ((giver, successor), (successor, giver)):
        with pytest.raises(ChangeRefused) as refusal:
            change(key, by(actor), limits=Limits(tokens_per_day=1001))
        assert refusal.value.code is ChangeRefusal.WIDER_THAN_GIVER


def test_an_operators_key_that_is_narrowed_gives_no_other_tenant_more_either() -> None:
    giver = ApiKeyFactory(scopes=["operator"], allowed_lanes=["low"])
    other = TenantFactory()
    assert refused(keys.create, tenant=other, name="app", actor=by(giver)).field == "allowed_lanes"
    keys.create(tenant=other, name="app", allowed_lanes=["low"], actor=by(giver))


def test_a_key_that_was_revoked_while_its_request_waited_gives_nothing(giver: ApiKey) -> None:
    other = ApiKeyFactory(tenant=giver.tenant, **WITHIN)
    with every_tenant("test"):
        ApiKey.objects.filter(id=giver.id).update(revoked_at=NOON)
    made = refused(keys.create, tenant=giver.tenant, name="app", actor=by(giver), **WITHIN)
    assert "revoked" in made.message
    refused(keys.rotate, key=other, actor=by(giver))
    refused(change, other, by(giver), name="renamed")


def test_a_rotated_key_whose_successor_was_revoked_gives_itself_no_longer_life(giver: ApiKey) -> None:
    successor = keys.rotate(key=giver, actor=ACTOR, overlap=timedelta(minutes=5)).key
    keys.revoke(key=successor, actor=ACTOR)
    with pytest.raises(ChangeRefused, match="no longer life"):
        keys.rotate(key=giver, actor=by(giver))
    assert stored(keys.rotate(key=giver, actor=ACTOR).key)["expires_at"] == END


def test_one_whose_answer_was_lost_hands_on_the_life_that_it_had(giver: ApiKey) -> None:
    keys.rotate(key=giver, actor=by(giver), overlap=timedelta(minutes=5))
    assert stored(keys.rotate(key=giver, actor=by(giver)).key)["expires_at"] == END
