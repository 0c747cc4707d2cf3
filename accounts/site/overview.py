"""Which tenants somebody belongs to; and what one of them may use now, why, until when, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from accounts import permissions
from accounts.authentication import principal_of_member
from accounts.consumption import Consumption
from accounts.models import Approval, Entitlement, OnExhausted, Reservation, User
from accounts.site.area import Area, for_user, in_area
from accounts.standing import EntitlementStanding, Standing, standing


@dataclass(frozen=True, slots=True, kw_only=True)
class RightRow:
    """An entitlement as the overview shows it. ``limits`` are those that are set."""

    until: datetime | None
    reason: str
    when_exhausted: str
    longest_queue_wait_s: int | None
    limits: tuple[Consumption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    """A lane that the tenant has now, and by which rights, in the order in which they are used."""

    name: str
    service_tier: str
    is_default: bool
    rights: tuple[RightRow, ...]


@for_user
def choose(request: HttpRequest, user: User) -> HttpResponse:
    """The user's tenants; where there is one only, and nobody asked to choose, straight on to it."""
    tenants = list(permissions.tenants_of(user))
    if len(tenants) == 1 and "choose" not in request.GET:
        return redirect("tenant", tenants[0].slug)
    return render(request, "signalbox/tenant/choose.html", {"tenants": tenants})


@in_area()
def overview(request: HttpRequest, area: Area) -> HttpResponse:
    """The tenant's lanes and limits at this moment."""
    now = timezone.now()
    stands = standing(principal_of_member(area.user.id, area.tenant.id), now)
    not_ended = (
        Entitlement.objects.filter(ended_at=None).exclude(approval=Approval.REFUSED).exclude(ends_at__lte=now)
    )
    entitlements = {one.id: one for one in not_ended.order_by("lane__rank", "starts_at")}
    return area.page(
        request,
        "overview",
        {
            "section": "overview",
            "lanes": _lanes(stands, entitlements),
            "to_come": [one for one in entitlements.values() if not one.gives_at(now)],
            "rates_known": stands.rates_known,
            "live": Reservation.objects.filter(settled_at=None).count(),
        },
    )


def _lanes(stands: Standing, entitlements: Mapping[UUID, Entitlement]) -> list[LaneRow]:
    return [
        LaneRow(
            name=of_lane.lane.name,
            service_tier=of_lane.lane.service_tier,
            is_default=of_lane.is_default,
            rights=tuple(
                _right(one, entitlements[one.entitlement_id])
                for one in of_lane.entitlements
                if one.entitlement_id in entitlements
            ),
        )
        for of_lane in stands.lanes
    ]


def _right(stands: EntitlementStanding, entitlement: Entitlement) -> RightRow:
    return RightRow(
        until=entitlement.ends_at,
        reason=entitlement.reason,
        when_exhausted=_when_exhausted(stands),
        longest_queue_wait_s=entitlement.longest_queue_wait_s,
        limits=tuple(Consumption(name=state.name, limit=state.limit, state=state) for state in stands.limits),
    )


def _when_exhausted(stands: EntitlementStanding) -> str:
    if stands.on_exhausted == OnExhausted.STEP_DOWN:
        return f"What does not fit in these limits goes to the lane {stands.step_down_to}."
    return "What does not fit in these limits is refused (429)."
