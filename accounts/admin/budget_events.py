"""What budgets have come to, and when it was told."""

from __future__ import annotations

from django.contrib import admin
from unfold.decorators import display

from accounts.admin.base import RecordAdmin
from accounts.admin.filters import titled
from accounts.formatting import ago, link, number, time_field
from accounts.models import BudgetEvent


@admin.register(BudgetEvent)
class BudgetEventAdmin(RecordAdmin):
    list_display = ("subject_text", "tenant_link", "share", "budget", "figures", "when", "told")
    list_display_links = ("subject_text",)
    list_filter = (
        "percent",
        ("window__period", titled("budget", admin.AllValuesFieldListFilter)),
        ("tenant", admin.RelatedOnlyFieldListFilter),
        ("created_at", titled("when", admin.DateFieldListFilter)),
    )
    list_select_related = ("tenant", "window")
    search_fields = ("subject", "tenant__name", "tenant__slug")
    search_help_text = "By lane, key or tenant"
    sortable_by = ()
    fieldsets = (
        (
            "What it came to",
            {
                "fields": (
                    "subject_text",
                    "budget",
                    "share",
                    "limit_number",
                    "used_number",
                    "reserved_number",
                    "resets_exactly",
                ),
                "description": "Written once for each window, in the transaction that moved it there. 100 % is also "
                "where a request was refused because it did not fit in what was left.",
            },
        ),
        ("Whose, and when", {"fields": ("tenant_link", "made_exactly", "told_exactly")}),
    )
    readonly_fields = (
        "subject_text",
        "budget",
        "share",
        "limit_number",
        "used_number",
        "reserved_number",
        "resets_exactly",
        "tenant_link",
        "made_exactly",
        "told_exactly",
    )
    resets_exactly = time_field("resets_at", "Resets")
    made_exactly = time_field("created_at", "Happened")
    told_exactly = time_field("told_at", "Told")

    @display(description="Budget of")
    def subject_text(self, event: BudgetEvent) -> str:
        return event.subject

    @display(description="Tenant")
    def tenant_link(self, event: BudgetEvent) -> str:
        return link(event.tenant)

    @display(description="Came to", label={"80 %": "warning", "100 %": "danger"})
    def share(self, event: BudgetEvent) -> str:
        return f"{event.percent} %"

    @display(description="Budget")
    def budget(self, event: BudgetEvent) -> str:
        return f"tokens a {event.window.period}"

    @display(description="Used")
    def figures(self, event: BudgetEvent) -> str:
        return f"{number(event.used)} of {number(event.limit)}"

    @display(description="Limit, tokens")
    def limit_number(self, event: BudgetEvent) -> str:
        return number(event.limit)

    @display(description="Used, tokens")
    def used_number(self, event: BudgetEvent) -> str:
        return number(event.used)

    @display(description="Reserved besides, tokens")
    def reserved_number(self, event: BudgetEvent) -> str:
        return number(event.reserved)

    @display(description="When")
    def when(self, event: BudgetEvent) -> str:
        return ago(event.created_at)

    @display(description="Told")
    def told(self, event: BudgetEvent) -> str:
        return ago(event.told_at, never="not yet")
