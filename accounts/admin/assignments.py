"""Lane assignments: who ran in which lane, by what right, and whether the record is still what was sealed."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from django.utils.html import format_html
from unfold.decorators import display

from accounts.admin import audit_rights
from accounts.admin.audit_assignment_answer import answer_of
from accounts.admin.audit_decision import page_of_decision
from accounts.admin.audit_filters import DaysFilter, KeyFilter, LaneGivenFilter, ReasonFilter, TenantFilter
from accounts.admin.audit_questions import lane_questions
from accounts.admin.filters import generation_id_in
from accounts.admin.generation_records import GenerationRecordAdmin
from accounts.audience import Audience
from accounts.audit import assignment_proofs
from accounts.audit.assignment_proofs import Held
from accounts.audit.entitlement_records import EntitlementRecord, records_of
from accounts.audit.names import Names
from accounts.audit.reading import disclose
from accounts.formatting import EMPTY, exactly, link, unbroken
from accounts.models import ApiKey, AssignmentReason, AuditEvent, Entitlement, LaneAssignment, Tenant, User

#: Why, in a word or two for lists.
_REASONS: Final = {
    AssignmentReason.REQUESTED: "asked for",
    AssignmentReason.KEY_DEFAULT: "the key's default",
    AssignmentReason.TENANT_DEFAULT: "asked for none",
    AssignmentReason.NOT_ENTITLED: "not entitled to more",
    AssignmentReason.NOT_ALLOWED_BY_KEY: "its key allows no more",
    AssignmentReason.STEPPED_DOWN: "stepped down",
}
#: How a row stands against its batch, in a word, and how the theme marks that.
_PROOFS: Final = {Held.YES: "Sealed", Held.NOT_YET: "Not sealed yet", Held.NO: "Changed"}
_PROOF_LABELS: Final = {"Sealed": "success", "Not sealed yet": "info", "Changed": "danger"}


@admin.register(LaneAssignment)
class LaneAssignmentAdmin(GenerationRecordAdmin):
    audience = Audience.AUDITORS
    list_display = ("when", "who", "asked", "given", "reason_words", "right", "proof")
    list_display_links = ("when",)
    list_filter = (LaneGivenFilter, DaysFilter, ReasonFilter, TenantFilter, KeyFilter)
    search_fields = ("tenant_name",)
    search_help_text = "By generation (gen_…), tenant, key or person"
    list_before_template = "admin/audit_assignments_answer.html"
    sortable_by = ()

    class Media:
        css = {"all": ("signalbox/admin/audit.css",)}

    def get_urls(self) -> list[Any]:
        viewed = self.admin_site.admin_view
        rights = audit_rights.RightsPages(self)
        return [
            path("who-may/", viewed(rights.first_lane), name="accounts_lanes_rights"),
            path("who-may/<slug:lane>/", viewed(rights.lane), name="accounts_lane_rights"),
            *super().get_urls(),
        ]

    @display(description="When")
    def when(self, assignment: LaneAssignment) -> str:
        return unbroken(exactly(assignment.created_at))

    @display(description="Tenant, key or person")
    def who(self, assignment: Any) -> str:
        who = f"sb_{assignment.api_key_prefix}…"
        if assignment.user_id:
            who = assignment.person or str(assignment.user_id)
        return format_html('<span>{}<br><span class="sb-faint">{}</span></span>', assignment.tenant_name, who)

    @display(description="Asked")
    def asked(self, assignment: LaneAssignment) -> str:
        return assignment.requested_lane or "none"

    @display(description="Given")
    def given(self, assignment: LaneAssignment) -> str:
        return assignment.given_lane

    @display(description="Why")
    def reason_words(self, assignment: LaneAssignment) -> str:
        return _REASONS[AssignmentReason(assignment.reason)]

    @display(description="By the entitlement")
    def right(self, assignment: Any) -> str:
        record: EntitlementRecord | None = assignment.right
        if record is None:
            return EMPTY
        named = link(record.row, "temporary" if record.row.ends_at else "standing")
        event = record.granted
        if event is None:
            return str(named)
        return format_html("{}, granted by {}", named, link(event, disclose(event).actor_name))

    @display(description="Record", label=_PROOF_LABELS)
    def proof(self, assignment: Any) -> str:
        return _PROOFS[assignment.standing]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        generation_id = generation_id_in(term)
        if generation_id is not None:
            return queryset.filter(generation_id=generation_id), False
        return self.few_for_search(request, queryset.filter(_named(term)) if term else queryset), False

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        _attach(page.result_list)
        page.answer = answer_of(request, page)
        page.lanes = lane_questions()
        return page

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """One decision, explained and proved: nothing about it is a form."""
        if request.method != "GET" or object_id is None or not self.has_view_permission(request):
            raise PermissionDenied
        return self._explained(request, object_id)

    def _explained(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        assignment = self.get_object(request, unquote(object_id))
        if assignment is None:
            raise Http404("There is no such lane assignment in the database. Old ones are in archive files.")
        context = {
            **self.admin_site.each_context(request),
            "title": f"Why gen_{assignment.generation_id.hex[:12]}… ran in {assignment.given_lane}",
            "opts": self.opts,
            "original": assignment,
            "media": self.media,
            "page": page_of_decision(request, assignment),
        }
        return TemplateResponse(request, "admin/audit_decision.html", context)


def _attach(assignments: list[Any]) -> None:
    """People's names, rights and standings of the rows of a page: as few questions for fifty as for one."""
    people = Names.of(
        (one.user_id for one in assignments),
        until=max((one.created_at for one in assignments), default=None),
    )
    rows = Entitlement.objects.filter(id__in={one.entitlement_id for one in assignments})
    rights = records_of(rows.select_related("tenant", "allowance"))
    standings = assignment_proofs.standings(assignments, timezone.now())
    for one in assignments:
        one.person = people.get(one.user_id)
        one.right = rights.get(one.entitlement_id)
        one.standing = standings[one.pk]


def _named(term: str) -> Q:
    """Assignments of whoever ``term`` names: tenants by any name they had, keys, people. By ids, which are few."""
    renamed = AuditEvent.objects.filter(object_kind="tenant", object_name__icontains=term).values_list(
        "object_id", flat=True
    )
    tenants = Tenant.objects.filter(Q(name__icontains=term) | Q(slug=term) | Q(id__in=list(renamed)))
    beginning = term.removeprefix("sb_").rstrip("…_")
    keys = ApiKey.objects.filter(Q(name__icontains=term) | Q(prefix__startswith=beginning))
    return (
        Q(tenant_id__in=tenants.values("id"))
        | Q(api_key_id__in=keys.values("id"))
        | Q(user_id__in=User.objects.filter(username__icontains=term).values("id"))
    )
