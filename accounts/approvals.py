"""The second person: grants that are so large that another operator than whoever asked for them has to agree.

What is so large is ``accounts.grant_sizes``' rule, by the mark that operators set for each lane
(``Lane.approval_above_tokens``); ``accounts.entitlements`` applies it to every grant and to every change that widens
one. Here it is decided. A requested entitlement gives nothing, is never changed, and is decided once.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from accounts import allowances, audit, permissions
from accounts.entitlement_states import LIVE, State, state_of
from accounts.entitlements import (
    audited,
    end_one,
    let_admissions_finish,
    lock,
    lock_tenant,
    refuse_second_standing,
    refuse_unless_seen,
)
from accounts.models import Approval, Entitlement, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text
from accounts.tenancy import tenant_scope


def approve(
    *, entitlement: Entitlement, decided_by: User, actor: Actor, reason: str = "", seen: str | None = None
) -> Entitlement:
    """Let a requested entitlement give its rights. The one that it replaces ends in the same moment, and what was used
    of that one's limits is used of the new ones: nobody gets a budget twice.

    ``seen``: the ``entitlements.version_of`` what the person decided by; refused where it has changed since. Raises
    ``ChangeRefused`` where ``decided_by`` may not, where nothing is requested any more, and where it can no longer be
    given: the tenant is closed, its time is over, or what it replaces has ended.
    """
    now = timezone.now()
    with tenant_scope(entitlement.tenant_id), transaction.atomic():
        tenant = lock_tenant(entitlement.tenant_id)
        entitlement = _requested(entitlement, decided_by)
        if tenant.closed_at:
            raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{tenant} is closed: it gets no entitlements.")
        refuse_unless_seen(tenant, entitlement.lane_id, now, seen)
        if state_of(entitlement, now) is not State.REQUESTED:
            raise ChangeRefused(
                ChangeRefusal.ENTITLEMENT_ENDED,
                f"{entitlement} was asked for until a time that has passed. Refuse it, and have a later one requested.",
            )
        before = audited(entitlement)
        changes: list[audit.Change] = []
        replaced = _replaced(entitlement, now)
        if replaced is not None:
            now = let_admissions_finish([replaced])
            changes.append(end_one(replaced, now))
        if entitlement.ends_at is None:
            refuse_second_standing(tenant, entitlement.lane_id, now, besides=[entitlement])
        if replaced is not None:
            _take_over_allowance(entitlement, replaced)
        _decide(entitlement, Approval.APPROVED, decided_by, now, reason)
        changes.append(
            audit.Change(
                action="entitlement.approve", obj=entitlement, before=before, after=audited(entitlement)
            )
        )
        audit.record_all(actor, changes)
    return entitlement


def refuse(*, entitlement: Entitlement, decided_by: User, actor: Actor, reason: str) -> Entitlement:
    """Refuse a requested entitlement for good; the one that it was to replace stays as it is.

    Raises ``ChangeRefused`` where ``decided_by`` may not, where nothing is requested any more, or without a reason.
    """
    now = timezone.now()
    with tenant_scope(entitlement.tenant_id), transaction.atomic():
        lock_tenant(entitlement.tenant_id)
        entitlement = _requested(entitlement, decided_by)
        before = audited(entitlement)
        checked_text(reason, field="reason", most=200)
        entitlement.ended_at = now
        _decide(entitlement, Approval.REFUSED, decided_by, now, reason)
        audit.record(actor, "entitlement.refuse", entitlement, before, audited(entitlement))
    return entitlement


def may_decide(entitlement: Entitlement, user: User) -> bool:
    """Whether ``user`` is an operator, and another one than whoever asked for ``entitlement``."""
    return permissions.may_grant(user) and entitlement.granted_by_id not in (None, user.pk)


def _requested(entitlement: Entitlement, decided_by: User) -> Entitlement:
    entitlement = lock(entitlement.id)
    if entitlement.approval != Approval.REQUESTED or entitlement.ended_at:
        raise ChangeRefused(
            ChangeRefusal.NOT_REQUESTED, f"{entitlement} does not wait for approval (any more)."
        )
    if not may_decide(entitlement, decided_by):
        raise ChangeRefused(
            ChangeRefusal.MAY_NOT_DECIDE,
            f"{decided_by} may not decide about this: that takes an operator, and another one than whoever asked for "
            "it.",
        )
    return entitlement


def _replaced(entitlement: Entitlement, now: datetime) -> Entitlement | None:
    """The entitlement that ends when this one is approved, locked; None: it replaces none."""
    if entitlement.replaces_id is None:
        return None
    replaced = lock(entitlement.replaces_id)
    if state_of(replaced, now) not in LIVE:
        raise ChangeRefused(
            ChangeRefusal.ENTITLEMENT_ENDED,
            f"The {replaced} that it was to replace has ended meanwhile. Refuse it, and have a new one granted.",
        )
    return replaced


def _take_over_allowance(entitlement: Entitlement, replaced: Entitlement) -> None:
    """Hand what was used, reserved and is live of ``replaced`` on with its allowance, whose limits become the new ones.

    ``replaced`` keeps its own limits, to be read, in an allowance that nothing is reserved from.
    """
    unused, kept = entitlement.allowance, replaced.allowance
    limits = unused.limits
    replaced.allowance = allowances.create(entitlement.tenant, kept.limits)
    replaced.save(update_fields=["allowance"])
    entitlement.allowance = kept
    entitlement.save(update_fields=["allowance"])
    allowances.change(kept.id, limits)
    kept.refresh_from_db()
    unused.delete()


def _decide(
    entitlement: Entitlement, approval: Approval, decided_by: User, now: datetime, reason: str
) -> None:
    entitlement.approval = approval
    entitlement.decided_by = decided_by
    entitlement.decided_at = now
    entitlement.decision_reason = checked_text(reason, field="reason", least=0, most=200)
    entitlement.save(update_fields=["approval", "decided_by", "decided_at", "decision_reason", "ended_at"])
