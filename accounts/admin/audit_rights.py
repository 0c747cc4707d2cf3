"""Who may use a lane right now, or could at a time, and why: a page for each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts.admin.audit_grants import Grant, by_of, grants_of
from accounts.admin.audit_links import assignments_url, page_of
from accounts.admin.audit_questions import lane_questions
from accounts.audit.entitlement_records import EntitlementRecord
from accounts.audit.lane_rights import Holder, LaneRights, who_may_use
from accounts.consumption import TITLES, Consumption
from accounts.consumption_lists import read_limited
from accounts.formatting import exactly, number
from accounts.limits import LimitName
from accounts.models import Approval, Entitlement, Lane

#: Tenants of a page.
_TENANTS: Final = 50


class _Moment(UnfoldAdminTextInputWidget):  # type: ignore[misc]
    input_type = "datetime-local"


class MomentForm(forms.Form):
    """At what time; empty: now."""

    at = forms.DateTimeField(label="At", required=False, widget=_Moment(attrs={"step": "1"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RightShown:
    """One entitlement: until when, what of it is left, and by whose grant."""

    row: Entitlement
    until: str
    reason: str
    step_down_to: str
    limits: Sequence[tuple[str, str]]
    left: Sequence[Consumption]
    grant: Grant
    url: str
    assignments_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderShown:
    """One tenant, and its entitlements as they are shown."""

    holder: Holder
    rights: Sequence[RightShown]
    url: str


class RightsPages:
    """The page of each lane. ``page``: the admin page of lane assignments, which says who may see them."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def first_lane(self, request: HttpRequest) -> HttpResponseBase:
        """The highest lane's page."""
        self._require(request)
        lane = Lane.objects.order_by("rank").first()
        if lane is None:
            raise Http404("There is no lane.")
        return redirect("admin:accounts_lane_rights", lane.name)

    def lane(self, request: HttpRequest, lane: str) -> HttpResponseBase:
        """Who may use the lane, now or at the time that the address names."""
        self._require(request)
        row = Lane.objects.filter(name=lane).first()
        if row is None:
            raise Http404(f"There is no lane {lane}.")
        form = MomentForm(request.GET if request.GET.get("at") else None)
        at = form.cleaned_data["at"] if form.is_bound and form.is_valid() else None
        now = timezone.now()
        first = _page_number(request) * _TENANTS
        rights = who_may_use(row, now, at=at if at is None or at < now else None, first=first, most=_TENANTS)
        context = {
            **self._page.admin_site.each_context(request),
            "title": f"Who may use {row.name}",
            "opts": self._page.opts,
            "lane": row,
            "lane_url": page_of(request, "lane", row.name),
            "lanes": lane_questions(),
            "form": form,
            "zone": timezone.get_current_timezone_name(),
            "rights": rights,
            "holders": _shown(request, rights, now),
            "lost": [(one.tenant, by_of(one.granted)) for one in rights.lost],
            "not_yet": [
                (one, _not_yet(one), page_of(request, "entitlement", str(one.id))) for one in rights.not_yet
            ],
            "future": at is not None and at >= now,
            "shown_from": first + 1,
            "shown_to": first + len(rights.holders),
            "previous": first // _TENANTS,
            "next": first // _TENANTS + 2 if first + _TENANTS < rights.tenants else None,
        }
        return TemplateResponse(request, "admin/audit_rights.html", context)

    def _require(self, request: HttpRequest) -> None:
        if not self._page.has_view_permission(request):
            raise PermissionDenied


def _page_number(request: HttpRequest) -> int:
    """Which page is asked for, counted from 0."""
    text = request.GET.get("page", "1")
    return max(0, int(text) - 1) if text.isdecimal() and len(text) < 7 else 0


def _shown(request: HttpRequest, rights: LaneRights, now: datetime) -> list[HolderShown]:
    records = [record for holder in rights.holders for record in holder.rights]
    left = read_limited([record.row.allowance for record in records], now) if rights.at is None else {}
    grants = dict(zip((record.row.id for record in records), grants_of(records), strict=True))
    return [
        HolderShown(
            holder=holder,
            rights=[_right(request, record, grants[record.row.id], left) for record in holder.rights],
            url=page_of(request, "tenant", str(holder.tenant.id)),
        )
        for holder in rights.holders
    ]


def _right(
    request: HttpRequest,
    record: EntitlementRecord,
    grant: Grant,
    left: Mapping[UUID, Sequence[Consumption]],
) -> RightShown:
    row, terms = record.row, record.terms
    return RightShown(
        row=row,
        until=f"until {exactly(terms.ends_at)}" if terms.ends_at else "standing, until it is ended",
        reason=terms.reason,
        step_down_to=terms.step_down_to or "",
        limits=[
            (TITLES[name], number(limit))
            for name in LimitName
            if (limit := terms.limits.of(name)) is not None
        ],
        left=left.get(row.allowance_id, ()),
        grant=grant,
        url=page_of(request, "entitlement", str(row.id)),
        assignments_url=assignments_url(entitlement_id=str(row.id)),
    )


def _not_yet(row: Entitlement) -> str:
    if row.approval == Approval.REQUESTED:
        return "waits for a second operator's approval"
    return f"begins {exactly(row.starts_at)}" if row.starts_at else "has not begun"
