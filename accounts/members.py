"""Who belongs to a tenant, as what. A membership is ended, never deleted; a tenant with members keeps an owner."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.models import Membership, Role, Tenant, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import tenant_scope

_AUDITED = ("user_id", "role", "ended_at")


def add(*, tenant: Tenant, user: User, role: Role, actor: Actor) -> Membership:
    """Make ``user`` a member of ``tenant``. Raises ``ChangeRefused`` if either is closed, or they already are one."""
    with tenant_scope(tenant.id), transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if tenant.closed_at:
            raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{tenant} is closed: nobody can join it.")
        if not user.is_active:
            raise ChangeRefused(ChangeRefusal.USER_CLOSED, f"{user} is closed and cannot join.", field="user")
        if Membership.objects.filter(user=user, ended_at=None).exists():
            raise ChangeRefused(
                ChangeRefusal.ALREADY_A_MEMBER,
                f"{user} is a member of {tenant} already. Change the role there.",
                field="user",
            )
        membership: Membership = Membership.objects.create(tenant=tenant, user=user, role=role)
        audit.record(actor, "membership.add", membership, None, audit.fields_of(membership, *_AUDITED))
    return membership


def change_role(*, membership: Membership, role: Role, actor: Actor) -> Membership:
    """Give a live member another role. Raises ``ChangeRefused`` for the tenant's last owner."""
    with tenant_scope(membership.tenant_id), transaction.atomic():
        membership = _locked(membership)
        if membership.ended_at:
            raise ChangeRefused(
                ChangeRefusal.MEMBERSHIP_ENDED,
                f"{membership.user} is no longer a member. Add them again instead.",
            )
        if membership.role != role:
            _refuse_for_last_owner(membership, "give them another role")
            before = audit.fields_of(membership, *_AUDITED)
            membership.role = role
            membership.save(update_fields=["role"])
            audit.record(
                actor, "membership.change_role", membership, before, audit.fields_of(membership, *_AUDITED)
            )
    return membership


def end(*, membership: Membership, actor: Actor) -> Membership:
    """End a membership now; the member's running generations are cancelled. Ending an ended one changes nothing."""
    with tenant_scope(membership.tenant_id), transaction.atomic():
        membership = _locked(membership)
        if membership.ended_at is None:
            _refuse_for_last_owner(membership, "end their membership")
            before = audit.fields_of(membership, *_AUDITED)
            membership.ended_at = timezone.now()
            membership.save(update_fields=["ended_at"])
            audit.record(actor, "membership.end", membership, before, audit.fields_of(membership, *_AUDITED))
    return membership


def _locked(membership: Membership) -> Membership:
    # The tenant's row serializes changes of its members, so that two owners cannot end each other at once.
    Tenant.objects.select_for_update(no_key=True).get(id=membership.tenant_id)
    locked: Membership = Membership.objects.select_related("tenant", "user").get(id=membership.id)
    return locked


def _refuse_for_last_owner(membership: Membership, what: str) -> None:
    owners = Membership.objects.filter(role=Role.OWNER, ended_at=None)
    if membership.role == Role.OWNER and not owners.exclude(id=membership.id).exists():
        raise ChangeRefused(
            ChangeRefusal.LAST_OWNER,
            f"{membership.user} is the last owner of {membership.tenant}. Make somebody else an owner, then {what}.",
            field="role",
        )
