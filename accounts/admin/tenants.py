from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin
from django.db.models import Count, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminSelectWidget

from accounts import lanes, tenants
from accounts.actors import actor_of
from accounts.admin.base import Question, SiteModelAdmin
from accounts.admin.filters import ClosedFilter, titled
from accounts.admin.tenant_inlines import EntitlementsOfTenant, KeysOfTenant, MembersOfTenant
from accounts.audience import Audience
from accounts.formatting import EMPTY, ago, code, number, time_field
from accounts.models import ApiKey, Entitlement, Lane, Membership, Tenant, User
from accounts.models.entitlement import giving_from
from accounts.time_zones import time_zones


class TenantForm(forms.ModelForm):  # type: ignore[type-arg]
    lanes = forms.ModelMultipleChoiceField(
        queryset=Lane.objects.all(),
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="The lanes that it is entitled to from the start. Requests for a lane that it is not entitled to get "
        "the next lower one that it is. A lane above normal goes before everybody else's work: it is never ticked for "
        "you.",
    )

    time_zone = forms.ChoiceField(
        required=False,
        widget=UnfoldAdminSelectWidget,
        help_text=str(Tenant._meta.get_field("time_zone").help_text),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "lanes" in self.fields:
            self.initial.setdefault("lanes", [lane.name for lane in lanes.from_normal_down()])
        if "time_zone" in self.fields:
            self.fields["time_zone"].choices = _zones(self.instance.time_zone)  # type: ignore[attr-defined]

    def clean_time_zone(self) -> str:
        """One that is not sent stays as it is."""
        return str(self.cleaned_data["time_zone"] or self.instance.time_zone)


def _zones(present: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """All time zones by region; the present one even where it is no longer offered."""
    regions: dict[str, list[tuple[str, str]]] = {"Most used": [("UTC", "UTC")]}
    for zone in sorted(time_zones() | {present}):
        region, slash, place = zone.partition("/")
        if zone != "UTC":
            regions.setdefault(region if slash else "Others", []).append(
                (zone, place.replace("_", " ") or zone)
            )
    return list(regions.items())


class LaneFilter(admin.SimpleListFilter):
    title = "lane it is entitled to"
    parameter_name = "lane"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in Lane.objects.values_list("name", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        granted = Entitlement.objects.filter(giving_from(timezone.now()), lane=self.value())
        return queryset.filter(id__in=granted.values("tenant"))


@admin.register(Tenant)
class TenantAdmin(SiteModelAdmin):
    audience = Audience.STAFF_AND_AUDITORS
    may_add = may_change = True
    form = TenantForm

    class Media:
        css = {"all": ("signalbox/admin/consumption.css",)}

    list_display = ("named", "state", "lanes_column", "key_count", "member_count", "created")
    list_display_links = ("named",)
    list_filter = (ClosedFilter, LaneFilter, ("created_at", titled("created", admin.DateFieldListFilter)))
    search_fields = ("name", "slug")
    search_help_text = "By name or short name"
    prepopulated_fields = {"slug": ("name",)}
    inlines = (KeysOfTenant, EntitlementsOfTenant, MembersOfTenant)
    actions_detail = ("new_key", "grant", "add_member", "close", "reopen")
    add_fieldsets = (
        (
            None,
            {
                "description": "A tenant is a team, or the owner of an application. Keys, members, entitlements and "
                "usage belong to it, and nothing of it is visible to another.",
                "fields": ("name", "slug"),
            },
        ),
        ("What it may use", {"fields": ("lanes",)}),
        ("Its calendar", {"fields": ("time_zone",)}),
    )
    fieldsets = (
        (None, {"fields": ("name", "short_name", "state", "created_exactly", "closed_exactly")}),
        ("Its calendar", {"fields": ("time_zone",)}),
        ("What is learned from it", {"fields": ("suffix_pool",)}),
    )
    readonly_fields = ("short_name", "state", "created_exactly", "closed_exactly")
    created_exactly = time_field("created_at", "Created")
    closed_exactly = time_field("closed_at", "Closed")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        now = timezone.now()
        working = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)
        granted = Entitlement.objects.filter(giving_from(now)).order_by("lane__rank")
        annotated: QuerySet[Any] = rows.annotate(
            key_total=_count_of(working),
            member_total=_count_of(Membership.objects.filter(ended_at=None)),
        ).prefetch_related(Prefetch("entitlements", granted, to_attr="granted"))
        return annotated

    @display(description="Tenant", header=True, ordering="name")
    def named(self, tenant: Tenant) -> list[str]:
        return [tenant.name, tenant.slug]

    @display(description="State", label={"Open": "success", "Closed": "warning"})
    def state(self, tenant: Tenant) -> str:
        return "Closed" if tenant.closed_at else "Open"

    @display(description="Lanes")
    def lanes_column(self, tenant: Any) -> str:
        return ", ".join(dict.fromkeys(entitlement.lane_id for entitlement in tenant.granted)) or EMPTY

    @display(description="Working keys", ordering="key_total")
    def key_count(self, tenant: Any) -> str:
        return number(tenant.key_total)

    @display(description="Members", ordering="member_total")
    def member_count(self, tenant: Any) -> str:
        return number(tenant.member_total)

    @display(description="Created", ordering="created_at")
    def created(self, tenant: Tenant) -> str:
        return ago(tenant.created_at)

    @display(description="Short name")
    def short_name(self, tenant: Tenant) -> str:
        return code(tenant.slug)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "slug":
            field.label = "Short name"
        if db_field.name == "suffix_pool":
            field.label = "Learn from its answers"
        return field

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return self.prepopulated_fields if obj is None else {}

    def get_inlines(self, request: HttpRequest, obj: Any) -> tuple[Any, ...]:
        return self.inlines if obj is not None else ()

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = form.cleaned_data
        if change:
            actor = actor_of(request)
            tenants.rename(tenant=obj, name=values["name"], actor=actor)
            tenants.set_time_zone(tenant=obj, time_zone=values["time_zone"], actor=actor)
            tenants.set_suffix_pool(tenant=obj, suffix_pool=values["suffix_pool"], actor=actor)
            return
        made = tenants.create(
            name=values["name"],
            slug=values["slug"],
            lanes=values["lanes"],
            time_zone=values["time_zone"],
            granted_by=cast(User, request.user),
            actor=actor_of(request),
        )
        obj.pk = made.pk

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        tenant = self.get_object(request, object_id)
        if tenant is None:
            return []
        hidden = {"new_key", "grant", "add_member", "close"} if tenant.closed_at else {"reopen"}
        return [
            item
            for item in super().get_actions_detail(request, object_id)
            if item.method.original_function_name not in hidden
        ]

    @action(description="New key", icon="key", url_path="new-key", permissions=["operate"])
    def new_key(self, request: HttpRequest, object_id: str) -> HttpResponseRedirect:
        return _add_page("apikey", object_id)

    @action(description="Grant a lane", icon="verified_user", url_path="grant", permissions=["operate"])
    def grant(self, request: HttpRequest, object_id: str) -> HttpResponseRedirect:
        return _add_page("entitlement", object_id)

    @action(description="Add a member", icon="person_add", url_path="add-member", permissions=["operate"])
    def add_member(self, request: HttpRequest, object_id: str) -> HttpResponseRedirect:
        return _add_page("membership", object_id)

    @action(
        description="Close tenant",
        icon="block",
        url_path="close",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def close(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        tenant = self.object_or_404(request, object_id)
        question = Question(
            title=f"Close {tenant}?",
            meaning=[
                "Its keys and members are refused from this moment on, and what it runs is cancelled within a second.",
                "Nothing is deleted: usage and audit stay, and reopening it brings everything back.",
            ],
            submit="Close the tenant",
            danger=True,
        )

        def close(values: dict[str, Any]) -> str:
            tenants.close(tenant=tenant, actor=actor_of(request))
            return f"{tenant} is closed."

        return self.ask(request, tenant, question, close)

    @action(description="Reopen", icon="lock_open", url_path="reopen", permissions=["operate"])
    def reopen(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        tenant = self.object_or_404(request, object_id)
        question = Question(
            title=f"Reopen {tenant}?",
            meaning=["Its members, and its keys that were neither revoked nor have expired, work again."],
            submit="Reopen the tenant",
        )

        def reopen(values: dict[str, Any]) -> str:
            tenants.reopen(tenant=tenant, actor=actor_of(request))
            return f"{tenant} is open again."

        return self.ask(request, tenant, question, reopen)


def _count_of(rows: QuerySet[Any]) -> Coalesce:
    """How many of ``rows`` each tenant has. A subquery: two joined counts would multiply."""
    of_tenant = rows.filter(tenant=OuterRef("pk")).order_by().values("tenant")
    return Coalesce(Subquery(of_tenant.annotate(n=Count("pk")).values("n")), 0)


def _add_page(model: str, tenant_id: str) -> HttpResponseRedirect:
    return HttpResponseRedirect(f"{reverse(f'admin:accounts_{model}_add')}?tenant={tenant_id}")
