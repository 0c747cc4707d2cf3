from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import time_machine
from django.db import transaction
from django.utils import timezone

from accounts import admission, key_rights, keys, tenants
from accounts.authentication import InvalidKey, authenticate_key
from accounts.lane_resolution import Refused, Wish
from accounts.limits import Limits
from accounts.models import Allowance, ApiKey, AuditEvent, Lane, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    EntitlementFactory,
    LanguageModelFactory,
    OperatorFactory,
    TenantFactory,
    UserFactory,
)
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


def test_a7_a_successor_is_in_use_from_its_first_request_on() -> None:
    old = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR)
    new = keys.rotate(key=old.key, actor=ACTOR)
    assert works(new.raw)
    with pytest.raises(ChangeRefused) as refusal:
        keys.rotate(key=old.key, overlap=timedelta(0), actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.KEY_ALREADY_ROTATED
    assert (works(old.raw), works(new.raw)) == (True, True)


@pytest.mark.parametrize("narrowed", ["the key", "its successor"])
def test_what_was_narrowed_on_one_side_of_a_rotation_is_not_widened_by_rotating_again(narrowed: str) -> None:
    low = Lane.objects.get(name="low")
    old = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR)
    new = keys.rotate(key=old.key, actor=ACTOR)
    keys.change(
        key=old.key if narrowed == "the key" else new.key,
        name="app",
        scopes=keys.DEFAULT_SCOPES,
        default_lane=low,
        allowed_lanes=["low"],
        expires_at=None if narrowed == "its successor" else old.key.expires_at,
        actor=ACTOR,
    )
    with pytest.raises(ChangeRefused) as refusal:
        keys.rotate(key=old.key, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.KEY_ALREADY_ROTATED
    assert new.key.prefix in refusal.value.message
    with every_tenant("test"):
        assert ApiKey.objects.count() == 2


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


@pytest.fixture
def models() -> None:
    for name in ("small", "large", "old"):
        LanguageModelFactory(name=name, retired_at=NOON if name == "old" else None)


NARROWED: dict[str, Any] = {
    "allowed_lanes": ["low", "normal"],
    "allowed_models": ["small"],
    "allowed_networks": ["192.0.2.0/24", "2001:db8::1"],
    "limits": Limits(tokens_per_day=1000, requests_per_minute=2),
}


@pytest.mark.usefixtures("models")
def test_a_key_is_narrowed_as_it_was_said_and_all_of_it_is_audited() -> None:
    issued = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR, **NARROWED)
    with every_tenant("test"):
        key = ApiKey.objects.select_related("allowance").get(id=issued.key.id)
    assert key.allowed_lanes == ["normal", "low"]
    assert key.allowed_models == ["small"]
    assert key.allowed_networks == ["192.0.2.0/24", "2001:db8::1"]
    assert key.allowance.limits == NARROWED["limits"]
    assert key.allowance.tenant_id == key.tenant_id
    principal = authenticate_key(issued.raw, "192.0.2.9")
    assert principal.allowed_lanes == {"normal", "low"}
    assert principal.may_use("small")
    assert not principal.may_use("large")
    assert principal.key_allowance_id == key.allowance_id
    after = AuditEvent.objects.get().after
    assert after["allowed_networks"] == ["192.0.2.0/24", "2001:db8::1"]
    assert (after["tokens_per_day"], after["requests_per_minute"], after["concurrency"]) == (1000, 2, None)


@pytest.mark.usefixtures("models")
def test_what_narrows_a_key_is_changed_and_audited_with_what_it_was() -> None:
    key = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR, **NARROWED).key
    rest: dict[str, Any] = {"name": "app", "scopes": key.scopes, "default_lane": None, "expires_at": None}
    keys.change(key=key, **rest, actor=ACTOR)
    assert not AuditEvent.objects.filter(action="api_key.change").exists()
    changed = keys.change(
        key=key,
        **rest,
        allowed_lanes=[],
        allowed_networks=["203.0.113.0/24"],
        limits=Limits(tokens_per_day=500),
        actor=ACTOR,
    )
    assert (changed.allowed_lanes, changed.allowed_models) == ([], ["small"])
    with every_tenant("test"):
        assert ApiKey.objects.get().allowance.limits == Limits(tokens_per_day=500)
    event = AuditEvent.objects.get(action="api_key.change")
    assert (event.before["tokens_per_day"], event.after["tokens_per_day"]) == (1000, 500)
    assert (event.before["requests_per_minute"], event.after["requests_per_minute"]) == (2, None)
    assert (event.before["allowed_lanes"], event.after["allowed_lanes"]) == (["normal", "low"], [])
    assert event.after["allowed_networks"] == ["203.0.113.0/24"]


@pytest.mark.usefixtures("models")
def test_a_model_that_was_retired_stays_where_it_is_and_is_not_given_anew() -> None:
    key = ApiKeyFactory(allowed_models=["old"])
    rest: dict[str, Any] = {"name": "app", "scopes": key.scopes, "default_lane": None, "expires_at": None}
    changed = keys.change(key=key, **rest, allowed_models=["old", "small"], actor=ACTOR)
    assert changed.allowed_models == ["old", "small"]
    with pytest.raises(ChangeRefused, match=r"There is no model 'old'\. There are: large, small"):
        keys.change(key=ApiKeyFactory(), **rest, allowed_models=["old"], actor=ACTOR)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("arguments", "field", "said"),
    [
        ({"allowed_lanes": ["express"]}, "allowed_lanes", "no lane 'express'. There are: high, normal, low"),
        ({"allowed_lanes": ["low"], "default_lane": "high"}, "default_lane", "not among the lanes"),
        ({"allowed_lanes": ["high"]}, "default_lane", "needs one of them as its default"),
        ({"allowed_models": ["none"]}, "allowed_models", "no model 'none'. There are: large, small"),
        ({"allowed_networks": ["192.0.2.7/24"]}, "allowed_networks", "write 192.0.2.0/24 for the network"),
        (
            {"allowed_networks": [f"10.0.{n}.0/24" for n in range(101)]},
            "allowed_networks",
            "100 entries at most",
        ),
        ({"limits": Limits(concurrency=-1)}, "concurrency", "0 (none at all) or more"),
    ],
)
def test_what_cannot_narrow_a_key_is_refused_at_its_field_and_nothing_is_left(
    arguments: dict[str, Any], field: str, said: str
) -> None:
    if "default_lane" in arguments:
        arguments = {**arguments, "default_lane": Lane.objects.get(name=arguments["default_lane"])}
    with pytest.raises(ChangeRefused) as refusal:
        keys.create(tenant=TenantFactory(), name="app", actor=ACTOR, **arguments)
    assert refusal.value.field == field
    assert said in refusal.value.message
    with every_tenant("test"):
        assert not ApiKey.objects.exists()
        assert not Allowance.objects.exists()


def test_a_key_pasted_where_a_network_belongs_is_not_repeated() -> None:
    canary = ApiKeyFactory()
    with pytest.raises(ChangeRefused) as refusal:
        keys.create(tenant=canary.tenant, name="x", allowed_networks=[canary.raw], actor=ACTOR)
    assert canary.raw not in refusal.value.message


@pytest.mark.usefixtures("models")
def test_a_rotation_gives_the_same_rights_and_no_second_budget() -> None:
    tenant = TenantFactory()
    EntitlementFactory(tenant=tenant)
    old = keys.create(
        tenant=tenant,
        name="app",
        default_lane=Lane.objects.get(name="normal"),
        actor=ACTOR,
        **{**NARROWED, "limits": Limits(tokens_per_day=100)},
    )
    new = keys.rotate(key=old.key, actor=ACTOR)
    for right, value in key_rights.rights_of(old.key).items():
        assert getattr(new.key, right) == value, right
    assert new.key.allowance_id == old.key.allowance_id
    created = AuditEvent.objects.filter(action="api_key.create", after__rotated_from=old.key.prefix).get()
    assert created.after["tokens_per_day"] == 100

    def admitted(raw: str) -> str:
        principal = authenticate_key(raw, "192.0.2.1")
        wish = Wish(requested=None, tokens=60, prompt_tokens=10)
        try:
            with transaction.atomic():
                plan = admission.plan(principal, wish, timezone.now())
                admission.admit(principal, plan, plan.choose(), uuid.uuid4())
        except Refused as refusal:
            return refusal.subject
        return "admitted"

    assert [admitted(old.raw), admitted(new.raw), admitted(old.raw)] == ["admitted", *["this API key"] * 2]


def test_a_limit_changed_on_one_side_of_a_rotation_holds_on_both() -> None:
    old = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR)
    new = keys.rotate(key=old.key, actor=ACTOR)
    keys.change(
        key=new.key,
        name="app",
        scopes=["read"],
        default_lane=None,
        expires_at=None,
        limits=Limits(tokens_per_month=7),
        actor=ACTOR,
    )
    with every_tenant("test"):
        limits = [key.allowance.limits for key in ApiKey.objects.select_related("allowance")]
    assert limits == [Limits(tokens_per_month=7)] * 2


def _actor_of(user: User) -> Actor:
    return Actor(kind="user", id=str(user.pk), name=user.username)


@pytest.mark.parametrize(
    "actor",
    [
        lambda: ACTOR,
        lambda: _actor_of(UserFactory()),
        lambda: _actor_of(OperatorFactory(is_active=False)),
        lambda: _actor_of(UserFactory(is_auditor=True, is_staff=True)),
        lambda: Actor(
            kind="api_key", id=str(ApiKeyFactory(scopes=["operator"]).id), name="an operators' key"
        ),
    ],
    ids=["unknown", "member", "closed operator", "auditor", "operators' key"],
)
@pytest.mark.parametrize("scope", ["operator", "audit"])
def test_nobody_but_an_operator_makes_changes_or_rotates_a_key_that_reaches_every_tenant(
    actor: Callable[[], Actor], scope: str
) -> None:
    by = actor()
    key = ApiKeyFactory(scopes=[scope, "read"])
    rest: dict[str, Any] = {"name": "x", "default_lane": None, "expires_at": None, "actor": by}
    refused: list[Callable[[], object]] = [
        lambda: keys.create(tenant=key.tenant, name="x", scopes=[scope], actor=by),
        lambda: keys.change(key=ApiKeyFactory(), scopes=[scope], **rest),
        # Its networks must not be opened by somebody who could not make it, nor its text be told them.
        lambda: keys.change(key=key, scopes=["read"], **rest),
        lambda: keys.rotate(key=key, actor=by),
    ]
    for verb in refused:
        with pytest.raises(ChangeRefused) as refusal:
            verb()
        assert refusal.value.code is ChangeRefusal.OPERATORS_ONLY
        assert scope in refusal.value.message
    assert not AuditEvent.objects.exists()
    assert keys.revoke(key=key, actor=by).revoked_at


@pytest.mark.parametrize("scope", ["operator", "audit"])
def test_operators_and_commands_give_every_scope_and_it_is_audited(scope: str) -> None:
    tenant = TenantFactory()
    for by in (_actor_of(OperatorFactory()), Actor.system("manage.py key create")):
        key = keys.create(tenant=tenant, name="x", scopes=[scope], actor=by).key
        keys.change(key=key, name="y", scopes=[scope], default_lane=None, expires_at=None, actor=by)
        keys.rotate(key=key, actor=by)
    assert AuditEvent.objects.filter(after__scopes=[scope]).count() == 8
    assert keys.create(tenant=tenant, name="x", scopes=["admin"], actor=ACTOR).key.scopes == ["admin"]


def test_two_changes_of_a_shared_limit_are_audited_one_after_the_other() -> None:
    old = keys.create(tenant=TenantFactory(), name="app", actor=ACTOR)
    new = keys.rotate(key=old.key, actor=ACTOR)
    for key, limit in ((old.key, 10), (new.key, 20)):
        keys.change(
            key=key,
            name="app",
            scopes=key.scopes,
            default_lane=None,
            expires_at=key.expires_at,
            limits=Limits(concurrency=limit),
            actor=ACTOR,
        )
    changes = AuditEvent.objects.filter(action="api_key.change").order_by("sequence")
    assert [(event.before["concurrency"], event.after["concurrency"]) for event in changes] == [
        (None, 10),
        (10, 20),
    ]
