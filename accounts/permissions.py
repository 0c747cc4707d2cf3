"""What a person may do to a tenant, and whose rows they see: one answer for the admin, the site and the commands.

Two things give permissions to a tenant, and nothing else does: to run the platform (an operator, ``is_superuser``), and
a live role in an open tenant. Operators decide what tenants have: they grant, extend, end and approve. Owners and
admins of a tenant decide inside of that: which keys there are, and what each of them narrows. Members and viewers look.
Auditors (``is_auditor``) read the audit, and may do nothing to any tenant by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from accounts.models import Entitlement, Lane, Membership, Role, Tenant, User
from accounts.models.entitlement import giving_from
from accounts.tenancy import every_tenant, tenant_scope


class Permission(StrEnum):
    """What may be done to one tenant."""

    #: See its usage, limits, lanes and keys.
    LOOK = "look"
    #: Make, narrow, rotate and revoke its keys.
    MANAGE_KEYS = "manage_keys"
    #: Grant it lanes and budgets; extend and end them, and approve what another operator granted.
    GRANT = "grant"


_OF_ROLE: Final[Mapping[Role, frozenset[Permission]]] = MappingProxyType(
    {
        Role.OWNER: frozenset({Permission.LOOK, Permission.MANAGE_KEYS}),
        Role.ADMIN: frozenset({Permission.LOOK, Permission.MANAGE_KEYS}),
        Role.MEMBER: frozenset({Permission.LOOK}),
        Role.VIEWER: frozenset({Permission.LOOK}),
    }
)


def permissions_of(*, operator: bool, role: Role | None) -> frozenset[Permission]:
    """The rule: what an operator, or somebody with ``role`` in a tenant (None: no member), may do to it. Pure."""
    if operator:
        return frozenset(Permission)
    return _OF_ROLE[role] if role is not None else frozenset()


def is_operator(user: User | AnonymousUser) -> bool:
    """Whether ``user`` runs the platform. Until a one-time password is replaced it gives no permission at all."""
    return isinstance(user, User) and _may_act(user) and user.is_superuser


def may_read_audit(user: User | AnonymousUser) -> bool:
    """Whether ``user`` may read the audit of every tenant: auditors and operators."""
    return isinstance(user, User) and _may_act(user) and (user.is_auditor or user.is_superuser)


def may(user: User | AnonymousUser, permission: Permission, tenant_id: UUID) -> bool:
    """Whether ``user`` may do that to the tenant."""
    return permission in permissions_of(operator=is_operator(user), role=role_in(user, tenant_id))


def may_grant(user: User | AnonymousUser) -> bool:
    """Whether ``user`` may grant, extend, end and approve entitlements, of any tenant."""
    return Permission.GRANT in permissions_of(operator=is_operator(user), role=None)


def may_manage_keys(user: User | AnonymousUser, tenant_id: UUID) -> bool:
    """Whether ``user`` may make, narrow, rotate and revoke the tenant's keys."""
    return may(user, Permission.MANAGE_KEYS, tenant_id)


def role_in(user: User | AnonymousUser, tenant_id: UUID) -> Role | None:
    """The live role of ``user`` in an open tenant; None: they have none."""
    if not isinstance(user, User) or not _may_act(user):
        return None
    with every_tenant("a user's membership says what they may do in a tenant"):
        role = (
            Membership.objects.filter(user=user, tenant_id=tenant_id, ended_at=None, tenant__closed_at=None)
            .values_list("role", flat=True)
            .first()
        )
    return None if role is None else Role(role)


def tenants_of(user: User | AnonymousUser, permission: Permission = Permission.LOOK) -> QuerySet[Tenant]:
    """The open tenants that ``user`` has a role in which gives ``permission``, by name. Which rows are theirs to see.

    By membership only: an operator sees the others in the admin, which shows whose they are.
    """
    if not isinstance(user, User) or not _may_act(user):
        return Tenant.objects.none()
    roles = [role for role in Role if permission in _OF_ROLE[role]]
    with every_tenant("a user's memberships say which tenants are theirs"):
        memberships = Membership.objects.filter(user=user, role__in=roles, ended_at=None)
        return Tenant.objects.filter(id__in=memberships.values("tenant"), closed_at=None).order_by("name")


def lanes_of(tenant_id: UUID, now: datetime) -> QuerySet[Lane]:
    """The lanes that the tenant has a right to at ``now`` or later, highest first: what its keys may be let into."""
    with tenant_scope(tenant_id):
        rights = Entitlement.objects.filter(giving_from(now))
        return Lane.objects.filter(name__in=rights.values("lane"))


def _may_act(user: User) -> bool:
    return user.is_active and not user.must_change_password
