from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.decorators import action, display

from accounts.admin.base import RecordAdmin
from accounts.admin.filters import titled
from accounts.admin.trail import TrailEntry, changes_of
from accounts.audit import verification
from accounts.formatting import ago, code, exactly, number
from accounts.models import AuditEvent

_KINDS = ("api_key", "entitlement", "lane", "language_model", "membership", "tenant", "user")


class ObjectKindFilter(admin.SimpleListFilter):
    title = "what was changed"
    parameter_name = "object_kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind, kind.replace("_", " ").capitalize()) for kind in _KINDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(object_kind=self.value()) if self.value() else queryset


class ActorKindFilter(admin.SimpleListFilter):
    title = "who"
    parameter_name = "actor_kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("user", "A user"),
            ("api_key", "An API key"),
            ("system", "The system, or a command"),
            ("anonymous", "Nobody who had signed in"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(actor_kind=self.value()) if self.value() else queryset


@admin.register(AuditEvent)
class AuditEventAdmin(RecordAdmin):
    list_display = ("number_column", "when", "by", "action_code", "what", "address")
    list_display_links = ("number_column", "action_code")
    list_filter = (ObjectKindFilter, ActorKindFilter, ("at", titled("when", admin.DateFieldListFilter)))
    search_fields = ("actor_name", "action", "object_name", "object_id", "request_id")
    search_help_text = "By who, action (api_key.revoke), object's name or id, or request id"
    sortable_by = ()
    actions_list = ("verify",)
    fieldsets = (
        ("What happened", {"fields": ("action_code", "what", "object_id", "changes")}),
        ("Who, when, from where", {"fields": ("actor", "exact_time", "address", "request_code")}),
        (
            "Its place in the chain",
            {
                "fields": ("sequence", "previous", "own"),
                "description": "The hash covers everything above and the hash before it.",
            },
        ),
    )
    readonly_fields = (
        "action_code",
        "what",
        "changes",
        "actor",
        "exact_time",
        "request_code",
        "previous",
        "own",
    )

    @display(description="No.")
    def number_column(self, event: AuditEvent) -> int:
        return event.sequence

    @display(description="When")
    def when(self, event: AuditEvent) -> str:
        return ago(event.at)

    @display(description="When")
    def exact_time(self, event: AuditEvent) -> str:
        return exactly(event.at)

    @display(description="Action")
    def action_code(self, event: AuditEvent) -> str:
        return code(event.action)

    @display(description="Object")
    def what(self, event: AuditEvent) -> str:
        return event.object_name or event.object_id

    @display(description="Who")
    def by(self, event: AuditEvent) -> str:
        return event.actor_name

    @display(description="Who")
    def actor(self, event: AuditEvent) -> str:
        kinds = {"user": "user", "api_key": "API key", "system": "system"}
        kind = kinds.get(event.actor_kind)
        return f"{event.actor_name} ({kind})" if kind else event.actor_name

    @display(description="What changed")
    def changes(self, event: AuditEvent) -> str:
        entry = TrailEntry(event, list(changes_of(event)))
        return render_to_string("admin/field_changes.html", {"entry": entry})

    @display(description="Request id")
    def request_code(self, event: AuditEvent) -> str:
        return code(event.request_id)

    @display(description="Hash before")
    def previous(self, event: AuditEvent) -> str:
        return code(event.previous_hash)

    @display(description="Own hash")
    def own(self, event: AuditEvent) -> str:
        return code(event.hash)

    @action(description="Verify the chain", icon="verified", url_path="verify")
    def verify(self, request: HttpRequest) -> HttpResponseBase:
        """Walks the whole chain, so it is asked for with a POST."""
        if request.method == "POST":
            found = verification.verify()
            if found.fault:
                messages.error(
                    request,
                    f"The chain is broken at event {found.fault.sequence} ({found.fault.reason}); the "
                    f"{found.events} events before it hold.",
                )
            else:
                messages.success(request, f"The chain holds: {number(found.events)} events.")
            return redirect(reverse("admin:accounts_auditevent_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "title": "Verify the audit chain",
            "opts": self.opts,
            "back_url": reverse("admin:accounts_auditevent_changelist"),
        }
        return TemplateResponse(request, "admin/verify_chain.html", context)
