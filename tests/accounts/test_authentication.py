from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from accounts import key_text, keys, last_used, members, tenants, users
from accounts.authentication import (
    InvalidKey,
    KeyRefusal,
    NotAMember,
    authenticate_key,
    principal_of_member,
    principals_of_user,
)
from accounts.models import Role
from signalbox.web_metrics import REFUSED_KEYS
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    MembershipFactory,
    OperatorFactory,
    TenantFactory,
    UserFactory,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]


def _with_other_secret(raw: str) -> str:
    parsed = key_text.parse(raw)
    assert parsed is not None
    return str(key_text.KeyText(prefix=parsed.prefix, secret=key_text.draw().secret))


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        (KeyRefusal.MALFORMED, lambda key: key.raw[:-1]),
        (KeyRefusal.MALFORMED, lambda key: ""),
        (KeyRefusal.UNKNOWN, lambda key: str(key_text.draw())),
        (KeyRefusal.WRONG_SECRET, lambda key: _with_other_secret(key.raw)),
        (KeyRefusal.REVOKED, lambda key: keys.revoke(key=key, actor=ACTOR) and key.raw),
        (KeyRefusal.TENANT_CLOSED, lambda key: tenants.close(tenant=key.tenant, actor=ACTOR) and key.raw),
        (KeyRefusal.EXPIRED, lambda key: ApiKeyFactory(expires_at=timezone.now()).raw),
    ],
)
def test_every_kind_of_bad_key_is_told_the_same(reason: KeyRefusal, spoil: Callable[[Any], str]) -> None:
    with pytest.raises(InvalidKey) as invalid:
        authenticate_key(spoil(ApiKeyFactory()))
    assert invalid.value.reason == reason
    assert str(invalid.value) == "The API key is not valid."


def test_a6_a_revoked_key_is_refused_by_the_very_next_request() -> None:
    key = ApiKeyFactory()
    authenticate_key(key.raw)  # type: ignore[attr-defined]
    keys.revoke(key=key, actor=ACTOR)
    with pytest.raises(InvalidKey):
        authenticate_key(key.raw)  # type: ignore[attr-defined]


def test_a_reopened_tenant_s_keys_work_again() -> None:
    key = ApiKeyFactory()
    tenants.close(tenant=key.tenant, actor=ACTOR)
    tenants.reopen(tenant=key.tenant, actor=ACTOR)
    assert authenticate_key(key.raw).tenant_id == key.tenant_id  # type: ignore[attr-defined]


def test_authentication_costs_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    key = ApiKeyFactory()
    with django_assert_num_queries(1):
        authenticate_key(key.raw)  # type: ignore[attr-defined]
    with django_assert_num_queries(0), pytest.raises(InvalidKey):
        authenticate_key("sb_not_a_key")
    member = MembershipFactory()
    with django_assert_num_queries(1):
        principal_of_member(member.user_id, member.tenant_id)


@pytest.mark.parametrize("role", Role)
def test_everybody_but_a_viewer_may_generate(role: Role) -> None:
    membership = MembershipFactory(role=role)
    principal = principal_of_member(membership.user_id, membership.tenant_id)
    expected = {"read"} if role is Role.VIEWER else {"inference", "read"}
    assert principal.scopes == expected
    assert principal.api_key_id is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda membership: members.end(membership=membership, actor=ACTOR),
        lambda membership: users.close(user=membership.user, actor=ACTOR),
        lambda membership: tenants.close(tenant=membership.tenant, actor=ACTOR),
        lambda membership: users.issue_one_time_password(user=membership.user, actor=ACTOR),
    ],
    ids=["ended", "user closed", "tenant closed", "password not yet their own"],
)
def test_a_member_s_rights_end_at_once(spoil: Callable[[Any], object]) -> None:
    OperatorFactory()
    membership = MembershipFactory()
    principal_of_member(membership.user_id, membership.tenant_id)
    spoil(membership)
    with pytest.raises(NotAMember):
        principal_of_member(membership.user_id, membership.tenant_id)


def test_an_operator_is_no_member_of_every_tenant() -> None:
    with pytest.raises(NotAMember):
        principal_of_member(OperatorFactory().id, TenantFactory().id)
    with pytest.raises(NotAMember):
        principal_of_member(UserFactory().id, uuid.uuid4())


def test_a_user_s_principals_are_one_for_each_live_membership() -> None:
    user = UserFactory()
    MembershipFactory(user=user, tenant=TenantFactory(name="B"))
    MembershipFactory(user=user, tenant=TenantFactory(name="A"))
    MembershipFactory(user=user, tenant=TenantFactory(name="C"), ended_at=timezone.now())
    MembershipFactory()
    assert [principal.tenant_name for principal in principals_of_user(user.id)] == ["A", "B"]


@pytest.mark.parametrize("address", ["192.0.2.9", "::ffff:192.0.2.9", "2001:db8::1"])
def test_a_key_bound_to_networks_works_from_inside_of_them(address: str) -> None:
    key = ApiKeyFactory(allowed_networks=["192.0.2.0/24", "2001:db8::1"])
    assert authenticate_key(key.raw, address).api_key_id == key.id  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ["192.0.3.9", "2001:db8::2", "", "unix"])
def test_a_key_bound_to_networks_is_refused_from_elsewhere_like_any_bad_key(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    key: Any = ApiKeyFactory(allowed_networks=["192.0.2.0/24", "2001:db8::1"])
    counted = REFUSED_KEYS.labels(reason="address_not_allowed")
    before = counted._value.get()
    with pytest.raises(InvalidKey) as invalid:
        authenticate_key(key.raw, address)
    assert invalid.value.reason is KeyRefusal.ADDRESS_NOT_ALLOWED
    assert str(invalid.value) == "The API key is not valid."
    assert counted._value.get() == before + 1
    assert "address_not_allowed" in caplog.text
    assert key.prefix in caplog.text
    assert key.raw not in caplog.text


def test_a_key_that_is_not_bound_works_from_anywhere() -> None:
    key: Any = ApiKeyFactory()
    for address in ("", "192.0.2.9", "2001:db8::2"):
        assert authenticate_key(key.raw, address).api_key_id == key.id


def test_a_refused_key_was_not_used() -> None:
    key: Any = ApiKeyFactory(allowed_networks=["192.0.2.0/24"])
    with pytest.raises(InvalidKey):
        authenticate_key(key.raw, "203.0.113.1")
    assert last_used.collect() == 0
