"""The audit's events: searched, narrowed, and each on a page of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html
from unfold.decorators import display

from accounts.admin import audit_exports, audit_state
from accounts.admin.audit_event_page import page_of_event
from accounts.admin.audit_filters import (
    ActorKindFilter,
    EventDaysFilter,
    FamilyFilter,
    SealsFilter,
    TenantFilter,
)
from accounts.admin.base import RecordAdmin
from accounts.admin.filters import generation_id_in
from accounts.admin.trail import entries_of
from accounts.audience import Audience
from accounts.audit.names import as_id
from accounts.audit.reading import disclosable
from accounts.formatting import EMPTY, exactly, unbroken
from accounts.models import AuditArchive, AuditEvent, AuditPersonalValue, Tenant

#: Fields of events that addresses may narrow the list by, beside its filters, and what that is called.
_NARROWED_BY: Final[Mapping[str, str]] = {
    "actor_id": "by",
    "actor_name": "by",
    "object_kind": "about this kind of object",
    "object_id": "about the object",
    "request_id": "of the request",
    "session": "in the browser session",
    "action": "with the action",
}
_NAMED_FIELDS: Final = 3


@admin.register(AuditEvent)
class AuditEventAdmin(RecordAdmin):
    audience = Audience.AUDITORS
    list_display = ("when", "by", "action_code", "what", "changed", "tenant", "from_address")
    list_display_links = ("when", "action_code")
    list_filter = (FamilyFilter, ActorKindFilter, EventDaysFilter, TenantFilter, SealsFilter)
    search_fields = ("action",)
    search_help_text = "By person, action, object, id, address, request"
    list_before_template = "admin/audit_narrowed.html"
    sortable_by = ()

    class Media:
        css = {"all": ("signalbox/admin/audit.css",)}

    def get_urls(self) -> list[Any]:
        """The pages about the audit as a whole lie below the list of its events."""
        viewed = self.admin_site.admin_view
        pages = audit_state.AuditPages(self)
        exports = audit_exports.AuditExports(self)
        return [
            path("state/", viewed(pages.state), name="accounts_audit"),
            path("state/verify/", viewed(pages.verify), name="accounts_audit_verify"),
            path("state/checkpoint/", viewed(pages.checkpoint), name="accounts_audit_checkpoint"),
            path("state/settings/", viewed(pages.change_settings), name="accounts_audit_settings"),
            path("export/", viewed(exports.export), name="accounts_audit_export"),
            path("export/verify_export.py", viewed(exports.script), name="accounts_audit_script"),
            *super().get_urls(),
        ]

    @display(description="When")
    def when(self, event: AuditEvent) -> str:
        return unbroken(exactly(event.at))

    @display(description="Who")
    def by(self, event: Any) -> str:
        return event.entry.said.actor_name or EMPTY

    @display(description="Action")
    def action_code(self, event: AuditEvent) -> str:
        kind, _, verb = event.action.partition(".")
        return format_html('<code class="sb-audit-action">{}.<wbr>{}</code>', kind, verb)

    @display(description="Object")
    def what(self, event: Any) -> str:
        return event.entry.said.object_name or event.object_id or EMPTY

    @display(description="Changed")
    def changed(self, event: Any) -> str:
        """The first fields that changed, by their names."""
        names = [field.name for field in event.entry.fields if field.changed]
        more = len(names) - _NAMED_FIELDS
        named = ", ".join(names[:_NAMED_FIELDS])
        return format_html('<span class="sb-faint">{}</span>', f"{named} +{more}" if more > 0 else named)

    @display(description="Tenant")
    def tenant(self, event: Any) -> str:
        return event.entry.tenant or EMPTY

    @display(description="From")
    def from_address(self, event: Any) -> str:
        return event.entry.said.address or EMPTY

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return disclosable(super().get_queryset(request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        found = queryset.filter(_said_in(term)) if term else queryset
        return self.few_for_search(request, found), False

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        for event, entry in zip(page.result_list, entries_of(page.result_list), strict=True):
            event.entry = entry
        page.narrowed = [
            (said, _narrowed_to(name, str(page.filter_params[name][-1]), page.result_list), name)
            for name, said in _NARROWED_BY.items()
            if name in page.filter_params
        ]
        page.wide_url = page.get_query_string(remove=list(_NARROWED_BY))
        return page

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """One event: nothing about it is a form."""
        if request.method != "GET" or object_id is None or not self.has_view_permission(request):
            raise PermissionDenied
        event = self.get_object(request, unquote(object_id))
        if event is None:
            return self._say_where(request, unquote(object_id))
        [entry] = entries_of([event])
        context = {
            **self.admin_site.each_context(request),
            "title": event.action,
            "opts": self.opts,
            "original": event,
            "media": self.media,
            "page": page_of_event(request, entry),
        }
        return TemplateResponse(request, "admin/audit_event.html", context)

    def _say_where(self, request: HttpRequest, number: str) -> HttpResponseBase:
        """Of an event that is not in the database: that there is none, or in which archive it lies."""
        archive = None
        if number.isdecimal():
            archive = AuditArchive.objects.filter(
                first_sequence__lte=int(number), last_sequence__gte=int(number)
            ).first()
        said = f"it lies in the archive {archive.file_name}" if archive else "there is none"
        messages.warning(request, f"Event {number} is not in the database: {said}.")
        return redirect(self.list_url())


def _said_in(term: str) -> Q:
    """Where ``term`` stands in an event: in what it says, or in what is kept beside it about people."""
    if term.isdecimal() and len(term) < 16:
        return Q(sequence=int(term))
    exact = as_id(term.lower()) or generation_id_in(term)
    if exact is not None:
        return Q(object_id=str(exact)) | Q(actor_id=str(exact)) | Q(tenant_id=exact)
    personal = AuditPersonalValue.objects.filter(value__icontains=term).values("event_id")
    return (
        Q(action__icontains=term)
        | Q(object_name__icontains=term)
        | Q(actor_name__icontains=term)
        | Q(address__startswith=term)
        | Q(request_id__icontains=term)
        | Q(object_id__istartswith=term)
        | Q(session=term)
        | Q(tenant_id__in=Tenant.objects.filter(name__icontains=term).values("id"))
        | Q(sequence__in=personal)
    )


def _narrowed_to(name: str, value: str, events: list[Any]) -> str:
    """What is said of a narrowed field: a name, where the events that are shown tell one."""
    if not events:
        return value
    said = events[0].entry.said
    match name:
        case "actor_id":
            return said.actor_name or value
        case "object_id":
            return said.object_name or value
        case "object_kind":
            return value.replace("_", " ")
        case _:
            return value
