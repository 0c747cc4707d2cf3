"""What tenants may do in which lane: granted, changed, ended. An ended entitlement lets running generations finish."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction
from django.utils import timezone

from accounts import allowances, audit
from accounts.models import Entitlement, Lane, Tenant, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text
from accounts.tenancy import every_tenant, tenant_scope

_AUDITED = ("lane_id", "weight", "speculation", "reason", "ended_at")


def grant(
    *,
    tenant: Tenant,
    lane: Lane,
    actor: Actor,
    weight: int = 1,
    speculation: bool = True,
    reason: str = "",
    granted_by: User | None = None,
) -> Entitlement:
    """Entitle ``tenant`` to ``lane`` until it is ended. Raises ``ChangeRefused`` if it already is, or is closed."""
    with tenant_scope(tenant.id), transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if tenant.closed_at:
            raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{tenant} is closed: it gets no entitlements.")
        if Entitlement.objects.filter(lane=lane, ended_at=None).exists():
            raise ChangeRefused(
                ChangeRefusal.ALREADY_ENTITLED,
                f"{tenant} is entitled to {lane} already. Change that entitlement, or end it first.",
                field="lane",
            )
        entitlement: Entitlement = Entitlement.objects.create(
            tenant=tenant,
            lane=lane,
            allowance=allowances.create(tenant),
            weight=_checked_weight(weight),
            speculation=speculation,
            reason=checked_text(reason, field="reason", least=0, most=200),
            granted_by=granted_by,
        )
        audit.record(actor, "entitlement.grant", entitlement, None, audit.fields_of(entitlement, *_AUDITED))
    return entitlement


def change(
    *, entitlement: Entitlement, weight: int, speculation: bool, reason: str, actor: Actor
) -> Entitlement:
    """Change a standing entitlement's rights; generations admitted before keep theirs. Raises ``ChangeRefused``."""
    with tenant_scope(entitlement.tenant_id), transaction.atomic():
        entitlement = _locked(entitlement)
        if entitlement.ended_at:
            raise ChangeRefused(
                ChangeRefusal.ENTITLEMENT_ENDED, f"{entitlement} has ended. Grant a new one instead."
            )
        before = audit.fields_of(entitlement, *_AUDITED)
        entitlement.weight = _checked_weight(weight)
        entitlement.speculation = speculation
        entitlement.reason = checked_text(reason, field="reason", least=0, most=200)
        after = audit.fields_of(entitlement, *_AUDITED)
        if after != before:
            entitlement.save(update_fields=["weight", "speculation", "reason"])
            audit.record(actor, "entitlement.change", entitlement, before, after)
    return entitlement


def end(*, entitlement: Entitlement, actor: Actor) -> Entitlement:
    """End an entitlement now: nothing new starts by it. Ending an ended one changes nothing."""
    end_all(entitlements=[entitlement], actor=actor)
    with tenant_scope(entitlement.tenant_id):
        ended: Entitlement = Entitlement.objects.get(id=entitlement.id)
    return ended


def end_all(*, entitlements: Collection[Entitlement], actor: Actor) -> int:
    """End several entitlements, of any tenants, all or none; returns how many were standing."""
    changes: list[audit.Change] = []
    with every_tenant("an operator ends entitlements of several tenants at once"), transaction.atomic():
        standing = (
            Entitlement.objects.select_for_update(of=("self",), no_key=True)
            .select_related("tenant")
            .filter(id__in=[entitlement.id for entitlement in entitlements], ended_at=None)
            .order_by("id")
        )
        now = timezone.now()
        for entitlement in standing:
            before = audit.fields_of(entitlement, *_AUDITED)
            entitlement.ended_at = now
            entitlement.save(update_fields=["ended_at"])
            changes.append(
                audit.Change(
                    action="entitlement.end",
                    obj=entitlement,
                    before=before,
                    after=audit.fields_of(entitlement, *_AUDITED),
                )
            )
        audit.record_all(actor, changes)
    return len(changes)


def _locked(entitlement: Entitlement) -> Entitlement:
    locked: Entitlement = (
        Entitlement.objects.select_for_update(of=("self",), no_key=True)
        .select_related("tenant")
        .get(id=entitlement.id)
    )
    return locked


def _checked_weight(weight: int) -> int:
    if not 1 <= weight <= 1000:
        raise ChangeRefused(
            ChangeRefusal.INVALID, f"A weight is between 1 and 1000; this is {weight}.", field="weight"
        )
    return weight
