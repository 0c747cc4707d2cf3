from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.urls import path
from unfold.decorators import display

from accounts.admin import usage_page
from accounts.admin.base import RecordAdmin
from accounts.admin.filters import titled
from accounts.admin.generation_records import GenerationRecordAdmin
from accounts.formatting import EMPTY, ago, exactly, money, number
from accounts.models import ApiKey, LedgerEntry, Tenant, UsageRollup


class _TenantNames:
    """Names for the rows of one page, which carry ids only."""

    def __init__(self, rows: list[Any]) -> None:
        tenants = Tenant.objects.in_bulk({row.tenant_id for row in rows})
        keys = ApiKey.objects.in_bulk({row.api_key_id for row in rows if row.api_key_id})
        for row in rows:
            row.tenant = tenants.get(row.tenant_id)
            row.api_key = keys.get(row.api_key_id)


class _NamedRecordAdmin(RecordAdmin):
    sortable_by = ()

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        _TenantNames(page.result_list)
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            _TenantNames([row])
        return row

    @display(description="Tenant")
    def tenant_name(self, row: Any) -> str:
        return str(row.tenant or row.tenant_id)

    @display(description="API key")
    def key_name(self, row: Any) -> str:
        return str(row.api_key or (row.api_key_id or EMPTY))

    @display(description="Prompt")
    def prompt(self, row: Any) -> str:
        return number(row.prompt_tokens)

    @display(description="Cached")
    def cached(self, row: Any) -> str:
        return number(row.cached_tokens)

    @display(description="Answer")
    def completion(self, row: Any) -> str:
        return number(row.completion_tokens)

    @display(description="Drafted and kept")
    def accepted(self, row: Any) -> str:
        return number(row.accepted_prediction_tokens)

    @display(description="Drafted in vain")
    def rejected(self, row: Any) -> str:
        return number(row.rejected_prediction_tokens)

    @display(description="Cost")
    def cost_words(self, row: Any) -> str:
        return f"{money(row.cost)} {row.currency}" if row.currency else EMPTY


class TenantIdFilter(admin.SimpleListFilter):
    title = "tenant"
    parameter_name = "tenant_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(pk), name) for pk, name in Tenant.objects.values_list("id", "name")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(tenant_id=self.value()) if self.value() else queryset


@admin.register(LedgerEntry)
class LedgerEntryAdmin(_NamedRecordAdmin, GenerationRecordAdmin):
    list_display = (
        "short",
        "tenant_name",
        "key_name",
        "model",
        "lane",
        "prompt",
        "cached",
        "completion",
        "cost_words",
        "when",
    )
    list_display_links = ("short",)
    list_filter = (TenantIdFilter, "lane", ("settled_at", titled("settled", admin.DateFieldListFilter)))
    search_fields = ("model",)
    search_help_text = "By generation id (gen_…) or model"
    fieldsets = (
        (
            "What it used",
            {
                "fields": (
                    "generation",
                    "model",
                    "lane",
                    "prompt",
                    "cached",
                    "completion",
                    "accepted",
                    "rejected",
                    "cost_words",
                ),
                "description": "Tokens, written once, in the transaction that ended the generation. Every other view "
                "of usage is a sum of these. What was drafted and kept is part of the answer; what was drafted in "
                "vain is part of nothing, and costs its tenant nothing. The cost is by the price of that time.",
            },
        ),
        ("Whose", {"fields": ("tenant_name", "key_name", "exact_time")}),
    )
    readonly_fields = (
        "generation",
        "tenant_name",
        "key_name",
        "prompt",
        "cached",
        "completion",
        "accepted",
        "rejected",
        "cost_words",
        "exact_time",
    )

    @display(description="Settled")
    def when(self, entry: LedgerEntry) -> str:
        return ago(entry.settled_at)

    @display(description="Settled")
    def exact_time(self, entry: LedgerEntry) -> str:
        return exactly(entry.settled_at)


@admin.register(UsageRollup)
class UsageRollupAdmin(_NamedRecordAdmin):
    list_display = (
        "hour_column",
        "tenant_name",
        "key_name",
        "model",
        "lane",
        "generation_count",
        "prompt",
        "cached",
        "completion",
        "cost_words",
    )
    list_display_links = ("hour_column",)
    list_filter = (TenantIdFilter, "lane", "hour")
    search_fields = ("model",)
    search_help_text = "By model"
    fieldsets = (
        (
            "One hour's use",
            {
                "fields": (
                    "hour_column",
                    "model",
                    "lane",
                    "generation_count",
                    "prompt",
                    "cached",
                    "completion",
                    "accepted",
                    "rejected",
                    "cost_words",
                ),
                "description": "Summed from the ledger about once a minute; can be made anew from it at any time.",
            },
        ),
        ("Whose", {"fields": ("tenant_name", "key_name")}),
    )
    readonly_fields = (
        "hour_column",
        "tenant_name",
        "key_name",
        "generation_count",
        "prompt",
        "cached",
        "completion",
        "accepted",
        "rejected",
        "cost_words",
    )

    def get_urls(self) -> list[Any]:
        viewed = self.admin_site.admin_view
        return [
            path("usage/", viewed(self.usage), name="accounts_usage"),
            path("usage/csv/", viewed(self.usage_as_csv), name="accounts_usage_csv"),
            *super().get_urls(),
        ]

    def usage(self, request: HttpRequest) -> HttpResponseBase:
        """What was used, of any time, in figures, plots and tables."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return usage_page.page(self.admin_site, request)

    def usage_as_csv(self, request: HttpRequest) -> HttpResponseBase:
        """The same, parted by everything."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return usage_page.export(request)

    @display(description="Hour from")
    def hour_column(self, rollup: UsageRollup) -> str:
        return exactly(rollup.hour)

    @display(description="Generations")
    def generation_count(self, rollup: UsageRollup) -> str:
        return number(rollup.generations)
