"""Who may use a lane, and why: at the moment, or at one that has passed.

At the moment it is what ``accounts.admission`` decides by: the rows. Of the past the events tell it, up to then: terms
that were changed since are those of that time, and an entitlement that was approved later gave nothing yet. Either way
the events tell which rows there have to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Q, QuerySet
from django.utils.dateparse import parse_datetime

from accounts.audit.entitlement_records import MADE, EntitlementRecord, gave_by_events, records_of
from accounts.audit.history import History, histories
from accounts.audit.names import Names, as_id
from accounts.lane_resolution import TENANT_DEFAULT_LANE
from accounts.models import ApiKey, Approval, AuditEvent, Entitlement, Lane, Membership, Tenant
from accounts.models.entitlement import GIVING
from accounts.tenancy import every_tenant

_REASON = "who may use a lane is asked of every tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAccess:
    """A key that may reach the lane. ``by_default``: its requests that ask for none want it."""

    id: UUID
    name: str
    prefix: str
    by_default: bool
    #: When it ends by itself.
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A tenant that may use the lane: by which entitlements, in the order of their use, and through what."""

    tenant: Tenant
    rights: Sequence[EntitlementRecord]
    keys: Sequence[KeyAccess]
    #: How many people may use it in the browser.
    members: int


@dataclass(frozen=True, slots=True)
class LostRight:
    """An entitlement that gave the lane by its events, and whose row is gone. ``tenant``: the name that it has now."""

    tenant: str
    granted: AuditEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRights:
    """Who may use ``lane``. ``at``: when; None: now. ``tenants`` counts all; ``holders`` are those of a page."""

    lane: Lane
    at: datetime | None
    tenants: int
    holders: Sequence[Holder]
    lost: Sequence[LostRight]
    #: Entitlements that were asked for, or are to begin; they give nothing. Of the present only.
    not_yet: Sequence[Entitlement] = ()


def who_may_use(
    lane: Lane, now: datetime, *, at: datetime | None = None, first: int = 0, most: int = 50
) -> LaneRights:
    """Who may use ``lane`` at ``at`` (None: now), by the tenants' names; ``most`` of them from number ``first`` on."""
    with every_tenant(_REASON):
        moment = at or now
        granted = _granted(lane, moment)
        giving = _giving_now(lane, now) if at is None else _giving_then(lane, at, granted)
        tenants = sorted(
            {record.row.tenant for record in giving}, key=lambda tenant: (tenant.name, tenant.slug)
        )
        shown = tenants[first : first + most]
        keys, members = _keys(shown, lane.name, moment, past=at is not None), _members(shown, moment)
        return LaneRights(
            lane=lane,
            at=at,
            tenants=len(tenants),
            holders=[
                Holder(
                    tenant=tenant,
                    rights=_in_order(record for record in giving if record.row.tenant_id == tenant.id),
                    keys=keys.get(tenant.id, []),
                    members=members.get(tenant.id, 0),
                )
                for tenant in shown
            ],
            lost=_lost(granted, moment),
            not_yet=list(_not_yet(lane, now)) if at is None else (),
        )


def _granted(lane: Lane, at: datetime) -> set[UUID]:
    """The entitlements to ``lane`` that events up to ``at`` grant or request."""
    events = AuditEvent.objects.filter(action__in=MADE, at__lte=at, after__lane_id=lane.pk)
    return {one for text in events.values_list("object_id", flat=True) if (one := as_id(text)) is not None}


def _lost(granted: set[UUID], at: datetime) -> list[LostRight]:
    """Those of ``granted`` that gave their rights at ``at``, and whose rows are gone."""
    gone = granted.difference(Entitlement.objects.filter(id__in=granted).values_list("id", flat=True))
    if not gone:
        return []
    told = [history for history in histories("entitlement", gone, at).values() if gave_by_events(history, at)]
    made = [event for history in told if (event := history.first(*MADE)) is not None]
    tenants = Names.of(event.tenant_id for event in made)
    return [LostRight(tenants.get(event.tenant_id) or str(event.tenant_id), event) for event in made]


def _entitlements(lane: Lane) -> QuerySet[Entitlement]:
    return _with_what_is_shown(Entitlement.objects.filter(lane=lane))


def _with_what_is_shown(rows: QuerySet[Entitlement]) -> QuerySet[Entitlement]:
    return rows.select_related("tenant", "allowance__tenant", "granted_by", "decided_by")


def _giving_now(lane: Lane, now: datetime) -> list[EntitlementRecord]:
    rows = _entitlements(lane).filter(
        Q(ends_at=None) | Q(ends_at__gt=now),
        Q(starts_at=None) | Q(starts_at__lte=now),
        ended_at=None,
        approval__in=GIVING,
        tenant__closed_at=None,
    )
    return list(records_of(rows).values())


def _giving_then(lane: Lane, at: datetime, granted: set[UUID]) -> list[EntitlementRecord]:
    # By their rows those whose events are archived.
    by_row = Q(Q(ended_at=None) | Q(ended_at__gt=at), lane=lane, created_at__lte=at)
    rows = _with_what_is_shown(Entitlement.objects.filter(by_row | Q(id__in=granted)))
    records = [
        record
        for record in records_of(rows, at).values()
        if record.gave_at(at) and record.history.fields.get("lane_id", record.row.lane_id) == lane.pk
    ]
    closed = _closed_then({record.row.tenant for record in records}, at)
    return [record for record in records if record.row.tenant_id not in closed]


def _closed_then(tenants: Iterable[Tenant], at: datetime) -> set[UUID]:
    """Those of ``tenants`` that were closed at ``at``: a tenant can be reopened."""
    by_id = {str(tenant.id): tenant for tenant in tenants}
    closed = set()
    for tenant_id, history in histories("tenant", by_id.keys(), at).items():
        tenant = by_id[tenant_id]
        said = history.fields.get("closed_at") if history.events else tenant.closed_at
        closed_at = parse_datetime(said) if isinstance(said, str) else said
        if closed_at is not None and closed_at <= at:
            closed.add(tenant.id)
    return closed


def _not_yet(lane: Lane, now: datetime) -> QuerySet[Entitlement]:
    return (
        _entitlements(lane)
        .filter(Q(ends_at=None) | Q(ends_at__gt=now), ended_at=None)
        .filter(Q(approval=Approval.REQUESTED) | Q(starts_at__gt=now, approval__in=GIVING))
        .order_by("tenant__name", "created_at")
    )


def _in_order(records: Iterable[EntitlementRecord]) -> list[EntitlementRecord]:
    """As they are used up: the temporary one that ends first before the others, then the standing one."""
    return sorted(
        records,
        key=lambda one: (one.terms.ends_at is None, one.terms.ends_at or one.row.created_at, one.row.id),
    )


def _keys(
    tenants: Sequence[Tenant], lane: str, at: datetime, *, past: bool
) -> Mapping[UUID, list[KeyAccess]]:
    rows = list(
        ApiKey.objects.filter(
            Q(revoked_at=None) | Q(revoked_at__gt=at), tenant__in=tenants, created_at__lte=at
        ).order_by("name", "created_at")
    )
    told = histories("api_key", [key.id for key in rows], at) if past else {}
    found: dict[UUID, list[KeyAccess]] = {}
    for key in rows:
        access = _access(key, told.get(str(key.id), History()), lane, at)
        if access is not None:
            found.setdefault(key.tenant_id, []).append(access)
    return found


def _access(key: ApiKey, history: History, lane: str, at: datetime) -> KeyAccess | None:
    """How ``key`` reaches ``lane``, by what its events say, else by its row; None: it does not."""
    said = history.fields
    allowed = said.get("allowed_lanes", key.allowed_lanes)
    expires = said.get("expires_at", key.expires_at)
    until = parse_datetime(expires) if isinstance(expires, str) else expires
    if (allowed and lane not in allowed) or (until is not None and until <= at):
        return None
    default = said.get("default_lane_id", key.default_lane_id)
    return KeyAccess(
        id=key.id,
        name=str(said.get("name", key.name)),
        prefix=key.prefix,
        by_default=(default or TENANT_DEFAULT_LANE) == lane,
        until=until,
    )


def _members(tenants: Sequence[Tenant], at: datetime) -> Mapping[UUID, int]:
    live = Membership.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=at),
        tenant__in=tenants,
        created_at__lte=at,
        user__is_active=True,
    )
    return dict(live.order_by().values_list("tenant").annotate(n=Count("id")))
