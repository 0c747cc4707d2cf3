"""What tenants may do in which lane, how much of it and until when: granted, changed, ended.

Every verb locks the tenant's row first: what all of a tenant's grants come to together is decided by one at a time, so
that two grants at once cannot each slip under the mark above which a second operator has to approve. A grant that needs
that is written as requested, and gives nothing until it is approved (``accounts.approvals``). What is changed or ended
holds for what is admitted from then on; running generations finish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts import allowances, audit, reservations
from accounts.allowances import UNLIMITED
from accounts.audit.canonical import content_hash
from accounts.entitlement_states import LIVE, State, state_of
from accounts.entitlement_terms import Terms, checked, widens
from accounts.grant_sizes import needs_approval, size_of, together
from accounts.limits import Limits
from accounts.models import Approval, Entitlement, Lane, OnExhausted, Tenant, User
from accounts.models.entitlement import GIVING
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant, tenant_scope

_AUDITED: Final = (
    "lane_id",
    "starts_at",
    "ends_at",
    "weight",
    "speculation",
    "longest_queue_wait_s",
    "on_exhausted",
    "step_down_to_id",
    "reason",
    "approval",
    "granted_by_id",
    "decided_by_id",
    "decision_reason",
    "replaces_id",
    "ended_at",
)


class Unchanged(Enum):
    """The value of an argument that leaves things as they are: None means something already."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


def grant(
    *,
    tenant: Tenant,
    lane: Lane,
    actor: Actor,
    granted_by: User | None = None,
    limits: Limits = UNLIMITED,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    weight: int = 1,
    speculation: bool = True,
    longest_queue_wait_s: int | None = None,
    on_exhausted: OnExhausted = OnExhausted.REFUSE,
    step_down_to: Lane | None = None,
    reason: str = "",
    seen: str | None = None,
) -> Entitlement:
    """Entitle ``tenant`` to ``lane``: until ``ends_at``, or until it is ended. Read from the result's ``approval``
    whether it gives that now, or was requested only.

    ``seen``: the ``version_of`` what the person decided by; refused where it has changed since. Raises
    ``ChangeRefused``, also for a closed tenant, for a second standing grant of a lane, and where approval is needed
    and nobody is named who asks for it (``granted_by``).
    """
    terms = Terms(
        limits=limits,
        starts_at=starts_at,
        ends_at=ends_at,
        weight=weight,
        speculation=speculation,
        longest_queue_wait_s=longest_queue_wait_s,
        on_exhausted=on_exhausted,
        step_down_to=step_down_to.name if step_down_to is not None else None,
        reason=reason,
    )
    now = timezone.now()
    with tenant_scope(tenant.id), transaction.atomic():
        tenant = lock_tenant(tenant.id)
        if tenant.closed_at:
            raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{tenant} is closed: it gets no entitlements.")
        refuse_unless_seen(tenant, lane.name, now, seen)
        entitlement, recorded = write_grant(
            tenant=tenant, lane=lane, terms=terms, granted_by=granted_by, now=now
        )
        audit.record_all(actor, [recorded])
    return entitlement


def write_grant(
    *, tenant: Tenant, lane: Lane, terms: Terms, granted_by: User | None, now: datetime
) -> tuple[Entitlement, audit.Change]:
    """A new entitlement's row, and its event, which the caller records, in the tenant's scope, holding its row's lock.

    Raises ``ChangeRefused``.
    """
    terms = checked(terms, lane=lane.name, ranks=_ranks(), now=now)
    if terms.standing:
        refuse_second_standing(tenant, lane.name, now)
    approval = Approval.REQUESTED if _takes_approval(lane.name, terms, now) else Approval.NOT_NEEDED
    return _write(tenant, lane.name, terms, approval, granted_by)


def change(
    *,
    entitlement: Entitlement,
    actor: Actor,
    granted_by: User | None = None,
    limits: Limits | Unchanged = UNCHANGED,
    starts_at: datetime | Unchanged | None = UNCHANGED,
    ends_at: datetime | Unchanged | None = UNCHANGED,
    weight: int | Unchanged = UNCHANGED,
    speculation: bool | Unchanged = UNCHANGED,
    longest_queue_wait_s: int | Unchanged | None = UNCHANGED,
    on_exhausted: OnExhausted | Unchanged = UNCHANGED,
    step_down_to: Lane | Unchanged | None = UNCHANGED,
    reason: str | Unchanged = UNCHANGED,
    seen: str | None = None,
) -> Entitlement:
    """Change what a live entitlement gives, from now on; with a later ``ends_at`` it is extended.

    A change that widens it, so that the tenant's grants in the lane come to more than may be given without a second
    operator, leaves it as it is: the result is then another entitlement, requested, that replaces it when it is
    approved. ``seen``, ``granted_by``, and what is raised: as for ``grant``.
    """
    changes: dict[str, Any] = {
        "limits": limits,
        "starts_at": starts_at,
        "ends_at": ends_at,
        "weight": weight,
        "speculation": speculation,
        "longest_queue_wait_s": longest_queue_wait_s,
        "on_exhausted": on_exhausted,
        "step_down_to": step_down_to.name if isinstance(step_down_to, Lane) else step_down_to,
        "reason": reason,
    }
    now = timezone.now()
    with tenant_scope(entitlement.tenant_id), transaction.atomic():
        tenant = lock_tenant(entitlement.tenant_id)
        refuse_unless_seen(tenant, entitlement.lane_id, now, seen)
        entitlement = lock(entitlement.id)
        _refuse_unless_live(entitlement, now)
        before = Terms.of(entitlement)
        wanted = {name: value for name, value in changes.items() if value is not UNCHANGED}
        after = checked(replace(before, **wanted), lane=entitlement.lane_id, ranks=_ranks(), now=now)
        if after == before:
            return entitlement
        if after.standing and not before.standing:
            refuse_second_standing(tenant, entitlement.lane_id, now)
        if widens(before, after) and _takes_approval(entitlement.lane_id, after, now, besides=[entitlement]):
            _refuse_if_requested_already(entitlement)
            requested, recorded = _write(
                tenant, entitlement.lane_id, after, Approval.REQUESTED, granted_by, replaces=entitlement
            )
            audit.record_all(actor, [recorded])
            return requested
        said = audited(entitlement)
        _apply(entitlement, before, after)
        audit.record(actor, "entitlement.change", entitlement, said, audited(entitlement))
    return entitlement


def end(*, entitlement: Entitlement, actor: Actor) -> Entitlement:
    """End an entitlement now: nothing new starts by it. One that is only requested is withdrawn.

    Ending an ended one changes nothing.
    """
    end_all(entitlements=[entitlement], actor=actor)
    with tenant_scope(entitlement.tenant_id):
        ended: Entitlement = Entitlement.objects.get(id=entitlement.id)
    return ended


def end_all(*, entitlements: Collection[Entitlement], actor: Actor) -> int:
    """End several entitlements, of any tenants, all or none; returns how many had not ended."""
    with every_tenant("an operator ends entitlements of several tenants at once"), transaction.atomic():
        tenants = {entitlement.tenant_id for entitlement in entitlements}
        list(Tenant.objects.select_for_update(no_key=True).filter(id__in=tenants).order_by("id"))
        unended = _locked(
            Entitlement.objects.filter(id__in=[entitlement.id for entitlement in entitlements], ended_at=None)
        )
        now = let_admissions_finish(unended)
        changes = [end_one(entitlement, now) for entitlement in unended]
        audit.record_all(actor, changes)
    return len(changes)


def let_admissions_finish(entitlements: Iterable[Entitlement]) -> datetime:
    """Wait for whoever is being admitted by one of them, and keep others out until the transaction ends; the time then.

    An end that is written at that time or later has no admission behind it: those that come see it.
    """
    reservations.lock([entitlement.allowance_id for entitlement in entitlements])
    return timezone.now()


def end_one(entitlement: Entitlement, now: datetime) -> audit.Change:
    """End a row that is locked, after ``let_admissions_finish``; its event is the caller's to record."""
    before = audited(entitlement)
    entitlement.ended_at = now
    entitlement.save(update_fields=["ended_at"])
    requested = entitlement.approval == Approval.REQUESTED
    return audit.Change(
        action="entitlement.withdraw" if requested else "entitlement.end",
        obj=entitlement,
        before=before,
        after=audited(entitlement),
    )


def version_of(tenant: Tenant, lane: str, now: datetime) -> str:
    """A code for all that a decision about a grant in ``lane`` goes by: it changes when any of that does.

    In the tenant's scope.
    """
    seen = {
        "lane": [lane, Lane.objects.values_list("approval_above_tokens", flat=True).get(name=lane)],
        "tenant": audit.fields_of(tenant, "id", "time_zone", "closed_at"),
        "grants": [
            {"id": str(entitlement.id), **audited(entitlement)}
            for entitlement in counted(lane, now).select_related("allowance").order_by("id")
        ],
    }
    return content_hash(seen)


def refuse_unless_seen(tenant: Tenant, lane: str, now: datetime, seen: str | None) -> None:
    """Raise ``ChangeRefused`` where ``seen`` is a version of what ``tenant`` has in ``lane`` that is no longer so; None
    is of nothing that was shown. In its scope, holding its row's lock."""
    if seen is not None and seen != version_of(tenant, lane, now):
        raise ChangeRefused(
            ChangeRefusal.CHANGED_MEANWHILE,
            f"What {tenant} has in {lane} has changed since this was shown to you, and nothing was saved. Look at it "
            "again.",
        )


def counted(lane: str, now: datetime) -> QuerySet[Entitlement]:
    """The tenant's grants in ``lane`` that count together: all that are live, will be or are requested.

    In the tenant's scope.
    """
    return going_on(now).filter(lane=lane)


def going_on(now: datetime) -> QuerySet[Entitlement]:
    """The entitlements, of the scope's tenants, that are live, will be or are requested."""
    grants: QuerySet[Entitlement] = Entitlement.objects.filter(
        Q(ends_at=None) | Q(ends_at__gt=now), ended_at=None, approval__in=(*GIVING, Approval.REQUESTED)
    )
    return grants


def total_with(
    lane: str, limits: Limits, now: datetime, *, besides: Iterable[Entitlement] = ()
) -> int | None:
    """What the tenant's grants in ``lane`` come to together with one of ``limits``, those in ``besides`` left out;
    tokens a month, None: without limit. In the tenant's scope.
    """
    others = counted(lane, now).exclude(id__in=[one.id for one in besides]).select_related("allowance")
    return together([size_of(limits), *(size_of(other.allowance.limits) for other in others)])


def audited(entitlement: Entitlement) -> Mapping[str, Any]:
    """Everything that an event says of an entitlement, which has its allowance with it."""
    return {
        **audit.fields_of(entitlement, *_AUDITED),
        **allowances.audited(entitlement.allowance.limits),
    }


def lock_tenant(tenant_id: UUID) -> Tenant:
    """The tenant, with its row locked until the transaction ends: before any row of its entitlements."""
    return Tenant.objects.select_for_update(no_key=True).get(id=tenant_id)


def lock(entitlement_id: UUID) -> Entitlement:
    """The entitlement with its tenant and allowance, its row locked until the transaction ends. In its scope."""
    [entitlement] = _locked(Entitlement.objects.filter(id=entitlement_id))
    return entitlement


def refuse_second_standing(
    tenant: Tenant, lane: str, now: datetime, *, besides: Iterable[Entitlement] = ()
) -> None:
    """Raise ``ChangeRefused`` where ``tenant`` has a standing grant in ``lane``, or asks for one; in its scope."""
    standing = counted(lane, now).filter(ends_at=None).exclude(id__in=[one.id for one in besides]).first()
    if standing is None:
        return
    if standing.approval == Approval.REQUESTED:
        raise ChangeRefused(
            ChangeRefusal.ALREADY_REQUESTED,
            f"A standing entitlement of {tenant} to {lane} is requested already. Have that decided, or withdraw it.",
            field="lane",
        )
    raise ChangeRefused(
        ChangeRefusal.ALREADY_ENTITLED,
        f"{tenant} is entitled to {lane} already. Change that entitlement, or end it first.",
        field="lane",
    )


def _write(
    tenant: Tenant,
    lane: str,
    terms: Terms,
    approval: Approval,
    granted_by: User | None,
    *,
    replaces: Entitlement | None = None,
) -> tuple[Entitlement, audit.Change]:
    requested = approval is Approval.REQUESTED
    if requested and granted_by is None:
        raise ChangeRefused(
            ChangeRefusal.APPROVAL_NEEDED,
            f"So much of {lane} takes the approval of a second operator: say who asks for it, to be told apart from "
            "whoever approves.",
        )
    entitlement: Entitlement = Entitlement.objects.create(
        tenant=tenant,
        lane_id=lane,
        allowance=allowances.create(tenant, terms.limits),
        approval=approval,
        granted_by=granted_by,
        replaces=replaces,
        **terms.columns(),
    )
    return entitlement, audit.Change(
        action="entitlement.request" if requested else "entitlement.grant",
        obj=entitlement,
        before=None,
        after=audited(entitlement),
    )


def _apply(entitlement: Entitlement, before: Terms, after: Terms) -> None:
    if after.limits != before.limits:
        allowances.change(entitlement.allowance_id, after.limits)
        entitlement.allowance.refresh_from_db()
    for name, value in after.columns().items():
        setattr(entitlement, name, value)
    entitlement.save(update_fields=list(after.columns()))


def _takes_approval(lane: str, terms: Terms, now: datetime, *, besides: Iterable[Entitlement] = ()) -> bool:
    above = Lane.objects.values_list("approval_above_tokens", flat=True).get(name=lane)
    return needs_approval(above, total_with(lane, terms.limits, now, besides=besides))


def _locked(entitlements: QuerySet[Entitlement]) -> list[Entitlement]:
    return list(
        entitlements.select_for_update(of=("self",), no_key=True)
        .select_related("tenant", "allowance")
        .order_by("id")
    )


def _ranks() -> dict[str, int]:
    return dict(Lane.objects.values_list("name", "rank"))


def _refuse_unless_live(entitlement: Entitlement, now: datetime) -> None:
    state = state_of(entitlement, now)
    if state is State.REQUESTED:
        raise ChangeRefused(
            ChangeRefusal.ALREADY_REQUESTED,
            f"{entitlement} waits for approval as it is. To ask for something else, withdraw it first.",
        )
    if state not in LIVE:
        raise ChangeRefused(
            ChangeRefusal.ENTITLEMENT_ENDED, f"{entitlement} has ended. Grant a new one instead."
        )


def _refuse_if_requested_already(entitlement: Entitlement) -> None:
    if entitlement.replaced_by.filter(ended_at=None, approval=Approval.REQUESTED).exists():
        raise ChangeRefused(
            ChangeRefusal.ALREADY_REQUESTED,
            f"A wider {entitlement} is requested already. Have that decided, or withdraw it.",
        )
