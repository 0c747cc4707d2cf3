from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from accounts import permissions
from accounts.models import Approval, Lane, Role, User
from accounts.permissions import Permission
from tests.factories import (
    EntitlementFactory,
    MembershipFactory,
    OperatorFactory,
    TenantFactory,
    UserFactory,
)

LOOKS = {Permission.LOOK}
HANDLES_KEYS = {Permission.LOOK, Permission.MANAGE_KEYS}


@pytest.mark.parametrize(
    ("role", "permitted"),
    [
        (None, set()),
        (Role.VIEWER, LOOKS),
        (Role.MEMBER, LOOKS),
        (Role.ADMIN, HANDLES_KEYS),
        (Role.OWNER, HANDLES_KEYS),
    ],
)
def test_a_role_gives_what_it_says_and_only_operators_grant(
    role: Role | None, permitted: set[Permission]
) -> None:
    assert permissions.permissions_of(operator=False, role=role) == permitted
    assert permissions.permissions_of(operator=True, role=role) == set(Permission)


@pytest.mark.django_db
@pytest.mark.parametrize("role", Role)
def test_a_member_may_in_their_own_tenant_and_in_no_other(role: Role) -> None:
    membership, elsewhere = MembershipFactory(role=role), TenantFactory()
    user, tenant = membership.user, membership.tenant
    manages = role in (Role.OWNER, Role.ADMIN)
    assert permissions.role_in(user, tenant.id) is role
    assert permissions.may(user, Permission.LOOK, tenant.id)
    assert permissions.may_manage_keys(user, tenant.id) is manages
    assert list(permissions.tenants_of(user)) == [tenant]
    assert list(permissions.tenants_of(user, Permission.MANAGE_KEYS)) == ([tenant] if manages else [])
    assert not permissions.may_grant(user)
    assert not any(permissions.may(user, one, elsewhere.id) for one in Permission)


@pytest.mark.django_db
def test_an_operator_may_everything_to_every_tenant_and_sees_their_own_as_theirs() -> None:
    operator, tenant = OperatorFactory(), TenantFactory()
    own = MembershipFactory(user=operator, role=Role.VIEWER).tenant
    assert all(permissions.may(operator, one, tenant.id) for one in Permission)
    assert permissions.may_grant(operator)
    assert list(permissions.tenants_of(operator)) == [own]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "state",
    [{"is_active": False}, {"must_change_password": True}],
    ids=["a closed account", "a password that somebody else knows"],
)
def test_whoever_may_not_act_may_nothing(state: dict[str, Any]) -> None:
    for user in (UserFactory(**state), UserFactory(**state, is_auditor=True), OperatorFactory(**state)):
        tenant = MembershipFactory(user=user, role=Role.OWNER).tenant
        _may_nothing(user, tenant)


@pytest.mark.django_db
def test_operators_and_auditors_read_the_audit_and_auditors_may_nothing_else() -> None:
    tenant, auditor = TenantFactory(), UserFactory(is_auditor=True, is_staff=True)
    assert permissions.may_read_audit(auditor)
    _may_nothing_to(auditor, tenant)
    assert permissions.may_read_audit(OperatorFactory())
    owner = MembershipFactory(role=Role.OWNER).user
    for other in (UserFactory(), UserFactory(is_staff=True), owner, AnonymousUser()):
        assert not permissions.may_read_audit(other)


@pytest.mark.django_db
def test_an_ended_membership_and_a_closed_tenant_give_nothing() -> None:
    ended = MembershipFactory(role=Role.OWNER, ended_at=timezone.now())
    _may_nothing(ended.user, ended.tenant)
    closed = MembershipFactory(role=Role.OWNER, tenant=TenantFactory(closed_at=timezone.now()))
    _may_nothing(closed.user, closed.tenant)


@pytest.mark.django_db
def test_whoever_has_not_signed_in_may_nothing() -> None:
    _may_nothing(AnonymousUser(), TenantFactory())


@pytest.mark.django_db
def test_keys_are_let_into_the_lanes_that_their_tenant_has_or_will_have() -> None:
    tenant, now = TenantFactory(), timezone.now()
    high, normal, low = Lane.objects.order_by("rank")
    EntitlementFactory(tenant=tenant, lane=low)
    EntitlementFactory(tenant=tenant, lane=high, starts_at=now + timedelta(days=1))
    EntitlementFactory(tenant=tenant, lane=normal, approval=Approval.REQUESTED)
    EntitlementFactory(tenant=tenant, lane=normal, ended_at=now)
    EntitlementFactory(tenant=tenant, lane=normal, ends_at=now)
    EntitlementFactory(lane=normal)
    assert list(permissions.lanes_of(tenant.id, now)) == [high, low]


def _may_nothing(user: User | AnonymousUser, tenant: Any) -> None:
    assert not permissions.may_read_audit(user)
    _may_nothing_to(user, tenant)


def _may_nothing_to(user: User | AnonymousUser, tenant: Any) -> None:
    assert not any(permissions.may(user, one, tenant.id) for one in Permission)
    assert not permissions.may_grant(user)
    assert not permissions.tenants_of(user).exists()
