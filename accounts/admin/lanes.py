from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.decorators import display

from accounts import lanes
from accounts.actors import actor_of
from accounts.admin.base import SiteModelAdmin
from accounts.audience import Audience
from accounts.formatting import code, number
from accounts.models import Entitlement, Lane
from accounts.models.entitlement import giving_from

_APPROVAL: Final = (
    "Second operator",
    {
        "fields": ("approval_above_tokens",),
        "description": "How much one operator may grant a tenant in this lane alone. Holds for what is granted or "
        "widened from now on; what was granted stays.",
    },
)


@admin.register(Lane)
class LaneAdmin(SiteModelAdmin):
    audience = Audience.STAFF_AND_AUDITORS
    may_add = may_change = True
    list_display = ("name", "rank", "tier", "tenant_count", "approval", "description")
    search_fields = ("name", "service_tier", "description")
    add_fieldsets = (
        (
            None,
            {
                "description": "A lane is a priority class. Rank 0 is served first; a lane never starves, because the "
                "scheduler keeps a floor for each. A lane that was added stays.",
                "fields": ("name", "rank", "service_tier", "description"),
            },
        ),
        _APPROVAL,
    )
    fieldsets = (
        (
            None,
            {
                "description": "Requests and records go by a lane's name and rank, which stay.",
                "fields": ("name", "rank", "service_tier", "description"),
            },
        ),
        _APPROVAL,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        granted = Entitlement.objects.filter(giving_from(timezone.now()))
        annotated: QuerySet[Any] = rows.annotate(
            tenants=Count(
                "entitlements__tenant", distinct=True, filter=Q(entitlements__in=granted.values("id"))
            )
        )
        return annotated

    @display(description="Service tier", ordering="service_tier")
    def tier(self, lane: Lane) -> str:
        return code(lane.service_tier)

    @display(description="Entitled tenants", ordering="tenants")
    def tenant_count(self, lane: Any) -> str:
        return number(lane.tenants)

    @display(description="Second operator", ordering="approval_above_tokens")
    def approval(self, lane: Lane) -> str:
        match lane.approval_above_tokens:
            case None:
                return "never"
            case 0:
                return "always"
            case above:
                return f"above {number(above)} tokens a month"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("name", "rank", "service_tier")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor, values = actor_of(request), form.cleaned_data
        if change:
            lanes.describe(lane=obj, description=values["description"], actor=actor)
            lanes.set_approval(lane=obj, approval_above_tokens=values["approval_above_tokens"], actor=actor)
            return
        names = ("name", "rank", "service_tier", "description", "approval_above_tokens")
        lanes.add(**{name: values[name] for name in names}, actor=actor)
