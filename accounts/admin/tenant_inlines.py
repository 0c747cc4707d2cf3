"""What belongs to a tenant, on the tenant's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.decorators import display

from accounts.admin.base import LookInline
from accounts.admin.entitlement_words import state_words
from accounts.consumption import Consumption, rendered
from accounts.consumption_lists import read_limited
from accounts.entitlement_states import LIVE, state_of
from accounts.entitlements import going_on
from accounts.formatting import EMPTY, ago
from accounts.key_words import default_lane_of, key_state
from accounts.models import ApiKey, Entitlement, Membership


class KeysOfTenant(LookInline):
    model = ApiKey
    verbose_name_plural = "API keys"
    fields = readonly_fields = ("key", "state", "lane", "used")

    @display(description="Key")
    def key(self, key: ApiKey) -> str:
        return f"{key.name} (sb_{key.prefix}…)"

    @display(description="State")
    def state(self, key: ApiKey) -> str:
        return key_state(key)[1]

    @display(description="Default lane")
    def lane(self, key: ApiKey) -> str:
        return default_lane_of(key)

    @display(description="Last used")
    def used(self, key: ApiKey) -> str:
        return ago(key.last_used_at, never="never")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("tenant", "default_lane")


class EntitlementsOfTenant(LookInline):
    model = Entitlement
    fields = readonly_fields = ("lane", "state", "limits", "weight", "speculation", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # One of these is made for each request: what all rows have used is read once, with the first of them.
        self._limits: Mapping[UUID, tuple[Consumption, ...]] | None = None

    @display(description="State")
    def state(self, entitlement: Entitlement) -> str:
        return state_words(entitlement)[1]

    @display(description="Limits")
    def limits(self, entitlement: Entitlement) -> str:
        now = timezone.now()
        if state_of(entitlement, now) not in LIVE:
            return EMPTY
        if self._limits is None:
            rows = going_on(now).filter(tenant=entitlement.tenant_id).select_related("allowance__tenant")
            self._limits = read_limited([row.allowance for row in rows], now)
        limits = self._limits.get(entitlement.allowance_id)
        return rendered(limits) if limits else "none"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("tenant", "lane").order_by(
            F("ended_at").asc(nulls_first=True), "lane__rank", "ends_at"
        )


class MembersOfTenant(LookInline):
    model = Membership
    verbose_name_plural = "members"
    fields = readonly_fields = ("user", "role", "since", "ended")

    @display(description="Since")
    def since(self, membership: Membership) -> str:
        return ago(membership.created_at)

    @display(description="Ended")
    def ended(self, membership: Membership) -> str:
        return ago(membership.ended_at)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("tenant", "user").order_by("ended_at", "user__username")
