from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from unfold.decorators import display

from accounts import approvals, consumption, entitlements
from accounts.actors import actor_of
from accounts.admin.entitlement_decisions import EntitlementDecisions
from accounts.admin.entitlement_effect import Plan, effect_of, plan_of_request, planned
from accounts.admin.entitlement_form import EntitlementForm
from accounts.admin.entitlement_sections import (
    CONSUMPTION_FIELDS,
    LIMITS_TABLE,
    TO_CHANGE,
    TO_GRANT,
    to_look_at,
)
from accounts.admin.entitlement_words import STATE_LABELS, EntitlementStateFilter, reset_words, state_words
from accounts.admin.filters import titled
from accounts.admin.preview import Previewed
from accounts.admin.trail import trail_of
from accounts.audience import Audience
from accounts.consumption import Consumption
from accounts.consumption_lists import fullest, read_limited
from accounts.entitlement_states import LIVE, State, state_of
from accounts.formatting import EMPTY, ago, link, time_field
from accounts.limits import LimitName
from accounts.models import Approval, Entitlement, OnExhausted, User

_RIGHTS: Final = (
    "weight",
    "speculation",
    "starts_at",
    "ends_at",
    "on_exhausted",
    "step_down_to",
    "longest_queue_wait_s",
    "reason",
)


def _consumption_field(name: LimitName) -> Callable[[Any, Any], str]:
    """A read-only field of the page: what is used of the limit beside it, and when its window ends for the tenant."""

    def shown(page: Any, entitlement: Any) -> str:
        [row] = [row for row in _consumption(entitlement) if row.name is name]
        with timezone.override(ZoneInfo(entitlement.tenant.time_zone)):
            window = format_html('<p class="sb-faint">{}</p>', reset_words(row)) if reset_words(row) else ""
            return format_html("{}{}", consumption.rendered([row], titled=False), window)

    shown.short_description = "Used now"  # type: ignore[attr-defined]
    return shown


def _consumption(entitlement: Any) -> tuple[Consumption, ...]:
    """Of the entitlement's limits, asked once for all fields of the page."""
    if not hasattr(entitlement, "consumption"):
        entitlement.consumption = consumption.read(entitlement.allowance, timezone.now())
    rows: tuple[Consumption, ...] = entitlement.consumption
    return rows


@admin.register(Entitlement)
class EntitlementAdmin(EntitlementDecisions):
    audience = Audience.STAFF_AND_AUDITORS
    may_add = may_change = True
    form = EntitlementForm
    preview_template = "admin/entitlement_preview.html"
    change_form_outer_before_template = "admin/entitlement_waits.html"
    change_form_outer_after_template = "admin/entitlement_record.html"

    class Media:
        css = {"all": ("signalbox/admin/consumption.css", "signalbox/admin/entitlements.css")}

    list_display = (
        "tenant_link",
        "lane_name",
        "state",
        "most_used",
        "weight",
        "granted",
        "since",
    )
    list_display_links = ("lane_name",)
    list_filter = (
        EntitlementStateFilter,
        "lane",
        ("tenant", admin.RelatedOnlyFieldListFilter),
        ("created_at", titled("since", admin.DateFieldListFilter)),
    )
    list_select_related = ("tenant", "lane", "granted_by", "allowance__tenant")
    search_fields = ("tenant__name", "tenant__slug", "reason")
    search_help_text = "By tenant or reason"
    autocomplete_fields = ("tenant",)
    ordering = ("tenant__name", "lane__rank")
    add_fieldsets = TO_GRANT
    fieldsets = TO_CHANGE
    readonly_fields = (
        "tenant_link",
        "state_line",
        *CONSUMPTION_FIELDS,
        LIMITS_TABLE,
        "granted_by",
        "granted_exactly",
        "ended_exactly",
        "approval_words",
        "decided_by",
        "decided_exactly",
        "decision_reason",
        "replaces_link",
        "replaced_by_link",
    )
    granted_exactly = time_field("created_at", "Granted")
    ended_exactly = time_field("ended_at", "Ended")
    decided_exactly = time_field("decided_at", "Decided")

    tokens_per_day_consumption = _consumption_field(LimitName.TOKENS_PER_DAY)
    tokens_per_week_consumption = _consumption_field(LimitName.TOKENS_PER_WEEK)
    tokens_per_month_consumption = _consumption_field(LimitName.TOKENS_PER_MONTH)
    requests_per_minute_consumption = _consumption_field(LimitName.REQUESTS_PER_MINUTE)
    tokens_per_minute_consumption = _consumption_field(LimitName.TOKENS_PER_MINUTE)
    concurrency_consumption = _consumption_field(LimitName.CONCURRENCY)

    @display(description="Tenant", ordering="tenant__name")
    def tenant_link(self, entitlement: Entitlement) -> str:
        return link(entitlement.tenant)

    @display(description="Lane", ordering="lane__rank")
    def lane_name(self, entitlement: Entitlement) -> str:
        return entitlement.lane_id

    @display(description="State", label=STATE_LABELS)
    def state(self, entitlement: Entitlement) -> tuple[str, str]:
        return state_words(entitlement)

    @display(description="State")
    def state_line(self, entitlement: Entitlement) -> str:
        return state_words(entitlement)[1]

    @display(description="Limits")
    def limits_table(self, entitlement: Entitlement) -> str:
        with timezone.override(ZoneInfo(entitlement.tenant.time_zone)):
            return consumption.rendered(_consumption(entitlement))

    @display(description="Most used limit")
    def most_used(self, entitlement: Any) -> str:
        if entitlement.limits_now is None:
            return EMPTY
        row = fullest(entitlement.limits_now)
        if row is None:
            return "unknown" if entitlement.limits_now else "no limits"
        return f"{row.title}: {row.percent} %"

    @display(description="Granted by", ordering="granted_by__username")
    def granted(self, entitlement: Entitlement) -> str:
        return str(entitlement.granted_by or EMPTY)

    @display(description="Since", ordering="created_at")
    def since(self, entitlement: Entitlement) -> str:
        return ago(entitlement.created_at)

    @display(description="Second operator's approval")
    def approval_words(self, entitlement: Entitlement) -> str:
        return str(entitlement.get_approval_display())

    @display(description="Replaces")
    def replaces_link(self, entitlement: Entitlement) -> str:
        return link(entitlement.replaces)

    @display(description="Replaced by")
    def replaced_by_link(self, entitlement: Entitlement) -> str:
        return link(entitlement.replaced_by.filter(approval=Approval.APPROVED).first())

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        now = timezone.now()
        live = [row.allowance for row in page.result_list if state_of(row, now) in LIVE]
        limits = read_limited(live, now)
        for row in page.result_list:
            row.limits_now = limits.get(row.allowance_id)
        return page

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("tenant", "allowance__tenant", "replaces__allowance")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Who may not change it reads words where the form has fields."""
        fieldsets = super().get_fieldsets(request, obj)
        changes = obj is None or self.has_change_permission(request, obj)
        return fieldsets if changes else to_look_at(fieldsets)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.readonly_fields if obj is None else ("lane", *self.readonly_fields)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        live = not isinstance(obj, Entitlement) or state_of(obj, timezone.now()) in LIVE
        return live and super().has_change_permission(request, obj)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """What a requested one would do, and what the audit says of it, stand below it."""
        context = dict(extra_context or {})
        entitlement = self.get_object(request, unquote(object_id)) if object_id is not None else None
        if entitlement is not None:
            context["trail"] = trail_of(request, entitlement)
            if state_of(entitlement, timezone.now()) is State.REQUESTED:
                context["effect"] = effect_of(plan_of_request(entitlement), timezone.now())
                context["may_decide"] = approvals.may_decide(entitlement, cast(User, request.user))
        return super().changeform_view(request, object_id, form_url, context)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        seen = self.version_seen(request)
        if seen is None:
            plan, version = planned(
                lambda: self._write(request, obj, form, change, seen),
                tenant=obj.tenant,
                lane=obj.lane_id,
                entitlement=obj if change else None,
            )
            raise Previewed(plan, version)
        obj.written = self._write(request, obj, form, change, seen)

    def _write(
        self, request: HttpRequest, obj: Any, form: Any, change: bool, seen: str | None
    ) -> Entitlement:
        values: dict[str, Any] = {name: form.cleaned_data[name] for name in _RIGHTS}
        values |= {
            "on_exhausted": OnExhausted(form.cleaned_data["on_exhausted"]),
            "limits": form.limits(),
            "granted_by": cast(User, request.user),
            "actor": actor_of(request),
            "seen": seen,
        }
        if change:
            return entitlements.change(entitlement=obj, **values)
        return entitlements.grant(tenant=obj.tenant, lane=obj.lane, **values)

    def preview_context(self, request: HttpRequest, plan: Plan) -> dict[str, Any]:
        return {"effect": effect_of(plan, timezone.now())}

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return self.say_written(request, obj.written, f"Granted: {obj.written}")

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        return self.say_written(request, obj.written, f"Saved: {obj.written}")
