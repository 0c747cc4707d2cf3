from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from django.test import RequestFactory
from django.utils import timezone

from accounts.actors import actor_of_key
from accounts.administration import administered, administers_all, audited, audits_all
from accounts.models import Scope, Tenant
from accounts.principal import Actor, Principal
from tests.factories import TenantFactory

pytestmark = pytest.mark.django_db


def key_of(tenant: Tenant, *scopes: Scope) -> Principal:
    return Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        scopes=frozenset(scope.value for scope in scopes),
        name="key",
        api_key_id=uuid4(),
    )


@pytest.mark.parametrize("more", [(), (Scope.INFERENCE, Scope.READ)])
def test_an_admins_key_administers_its_own_tenant_and_no_other(more: tuple[Scope, ...]) -> None:
    own, _ = TenantFactory(), TenantFactory()
    principal = key_of(own, Scope.ADMIN, *more)
    assert list(administered(principal)) == [own]
    assert not administers_all(principal)


def test_an_operators_key_administers_every_tenant_closed_ones_too() -> None:
    tenants = {TenantFactory(), TenantFactory(), TenantFactory(closed_at=timezone.now())}
    principal = key_of(next(iter(tenants)), Scope.OPERATOR)
    assert set(administered(principal)) >= tenants
    assert administers_all(principal)


def test_a_key_for_use_administers_nothing() -> None:
    principal = key_of(TenantFactory(), Scope.INFERENCE, Scope.READ)
    assert not administered(principal).exists()
    assert not administers_all(principal)


def test_the_audit_of_every_tenant_is_for_operators_and_auditors_keys_and_an_admin_reads_its_own() -> None:
    own = TenantFactory()
    everything = {own, TenantFactory(), TenantFactory(closed_at=timezone.now())}
    for scope in (Scope.OPERATOR, Scope.AUDIT):
        assert audits_all(key_of(own, scope))
        assert set(audited(key_of(own, scope))) >= everything
    assert list(audited(key_of(own, Scope.ADMIN))) == [own]
    assert not audits_all(key_of(own, Scope.ADMIN))
    assert not audited(key_of(own, Scope.INFERENCE, Scope.READ)).exists()


def test_a_key_that_reads_the_audit_administers_nothing() -> None:
    principal = key_of(TenantFactory(), Scope.AUDIT)
    assert not administered(principal).exists()
    assert not administers_all(principal)


def test_the_actor_of_a_change_is_the_key_and_where_it_was_used_from() -> None:
    principal = key_of(TenantFactory(), Scope.ADMIN)
    request = RequestFactory().post("/", REMOTE_ADDR="192.0.2.7")
    request.META["signalbox.request_id"] = "req_1"
    assert actor_of_key(request, principal) == Actor(
        kind="api_key", id=str(principal.api_key_id), name="key", request_id="req_1", address="192.0.2.7"
    )
    member = replace(principal, api_key_id=None, user_id=uuid4())
    with pytest.raises(TypeError, match="no API key"):
        actor_of_key(request, member)
