from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts import entitlements
from accounts.actors import actor_of
from accounts.admin.base import Question, SiteModelAdmin
from accounts.admin.filters import EndedFilter, titled
from accounts.formatting import EMPTY, ago, counted, link, time_field
from accounts.models import Entitlement, User


@admin.register(Entitlement)
class EntitlementAdmin(SiteModelAdmin):
    may_add = may_change = True
    list_display = (
        "tenant_link",
        "lane_name",
        "state",
        "weight",
        "speculates",
        "granted",
        "reason",
        "since",
    )
    list_display_links = ("lane_name",)
    list_filter = (
        EndedFilter,
        "lane",
        ("tenant", admin.RelatedOnlyFieldListFilter),
        ("created_at", titled("since", admin.DateFieldListFilter)),
    )
    list_select_related = ("tenant", "lane", "granted_by")
    search_fields = ("tenant__name", "tenant__slug", "reason")
    search_help_text = "By tenant or reason"
    autocomplete_fields = ("tenant",)
    ordering = ("tenant__name", "lane__rank")
    actions = ("end_selected",)
    actions_detail = ("end",)
    add_fieldsets = (
        (
            None,
            {
                "description": "Entitles a tenant to a lane until you end it. What its requests ask for beyond its "
                "entitlements becomes the next lower lane that it has.",
                "fields": ("tenant", "lane"),
            },
        ),
        ("What it may do there", {"fields": ("weight", "speculation")}),
        ("Why", {"fields": ("reason",)}),
    )
    fieldsets = (
        (None, {"fields": ("tenant_link", "lane", "state")}),
        (
            "What it may do there",
            {"fields": ("weight", "speculation"), "description": "Holds for what is admitted from now on."},
        ),
        ("Why", {"fields": ("reason", "granted_by", "granted_exactly", "ended_exactly")}),
    )
    readonly_fields = ("tenant_link", "state", "granted_by", "granted_exactly", "ended_exactly")
    granted_exactly = time_field("created_at", "Granted")
    ended_exactly = time_field("ended_at", "Ended")

    @display(description="Tenant", ordering="tenant__name")
    def tenant_link(self, entitlement: Entitlement) -> str:
        return link(entitlement.tenant)

    @display(description="Lane", ordering="lane__rank")
    def lane_name(self, entitlement: Entitlement) -> str:
        return entitlement.lane_id

    @display(description="State", label={"Standing": "success", "Ended": "warning"})
    def state(self, entitlement: Entitlement) -> str:
        return "Ended" if entitlement.ended_at else "Standing"

    @display(description="Speculates", boolean=True, ordering="speculation")
    def speculates(self, entitlement: Entitlement) -> bool:
        return entitlement.speculation

    @display(description="Granted by", ordering="granted_by__username")
    def granted(self, entitlement: Entitlement) -> str:
        return str(entitlement.granted_by or EMPTY)

    @display(description="Since", ordering="created_at")
    def since(self, entitlement: Entitlement) -> str:
        return ago(entitlement.created_at)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.readonly_fields if obj is None else ("lane", *self.readonly_fields)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        ended = isinstance(obj, Entitlement) and obj.ended_at is not None
        return not ended and super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = form.cleaned_data
        rights = {name: values[name] for name in ("weight", "speculation", "reason")}
        if change:
            entitlements.change(entitlement=obj, **rights, actor=actor_of(request))
            return
        granted = entitlements.grant(
            tenant=values["tenant"],
            lane=values["lane"],
            **rights,
            granted_by=cast(User, request.user),
            actor=actor_of(request),
        )
        obj.pk = granted.pk

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        entitlement = self.get_object(request, object_id)
        standing = entitlement is not None and entitlement.ended_at is None
        return cast(list[Any], super().get_actions_detail(request, object_id)) if standing else []

    @action(
        description="End", icon="block", url_path="end", permissions=["operate"], variant=ActionVariant.DANGER
    )
    def end(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        entitlement = self.object_or_404(request, object_id)
        question = Question(
            title=f"End {entitlement}?",
            meaning=[
                "Nothing new starts in this lane by this right. What runs or waits may finish.",
                "It can be granted again at any time.",
            ],
            submit="End the entitlement",
            danger=True,
        )

        def end(values: dict[str, Any]) -> str:
            entitlements.end(entitlement=entitlement, actor=actor_of(request))
            return f"{entitlement} has ended."

        return self.ask(request, entitlement, question, end)

    @admin.action(description="End the selected entitlements", permissions=["operate"])
    def end_selected(self, request: HttpRequest, queryset: QuerySet[Entitlement]) -> HttpResponse | None:
        standing = list(queryset.filter(ended_at=None))
        if "confirmed" in request.POST:
            ended = entitlements.end_all(entitlements=standing, actor=actor_of(request))
            messages.success(request, f"{counted(ended, 'entitlement')} ended.")
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "End these entitlements?",
            "opts": self.opts,
            "rows": standing,
            "action": "end_selected",
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/end_selected.html", context)
