from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from accounts import lanes
from accounts.actors import actor_of
from accounts.admin.base import SiteModelAdmin
from accounts.formatting import code, number
from accounts.models import Lane


@admin.register(Lane)
class LaneAdmin(SiteModelAdmin):
    may_add = may_change = True
    list_display = ("name", "rank", "tier", "tenant_count", "description")
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
    )
    fieldsets = (
        (
            None,
            {
                "description": "Requests and records go by a lane's name and rank, so only the description changes.",
                "fields": ("name", "rank", "service_tier", "description"),
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        annotated: QuerySet[Any] = rows.annotate(
            tenants=Count("entitlements", filter=Q(entitlements__ended_at=None))
        )
        return annotated

    @display(description="Service tier", ordering="service_tier")
    def tier(self, lane: Lane) -> str:
        return code(lane.service_tier)

    @display(description="Entitled tenants", ordering="tenants")
    def tenant_count(self, lane: Any) -> str:
        return number(lane.tenants)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("name", "rank", "service_tier")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            lanes.describe(lane=obj, description=form.cleaned_data["description"], actor=actor_of(request))
            return
        names = ("name", "rank", "service_tier", "description")
        lanes.add(**{name: form.cleaned_data[name] for name in names}, actor=actor_of(request))
