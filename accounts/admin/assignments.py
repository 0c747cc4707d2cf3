from __future__ import annotations

from django.contrib import admin
from unfold.decorators import display

from accounts.admin.filters import titled
from accounts.admin.generation_records import GenerationRecordAdmin
from accounts.formatting import ago, code, exactly
from accounts.models import LaneAssignment


@admin.register(LaneAssignment)
class LaneAssignmentAdmin(GenerationRecordAdmin):
    list_display = ("short", "tenant", "asked", "given", "reason_text", "who", "when")
    list_display_links = ("short",)
    list_filter = (
        ("given_lane", titled("lane given", admin.AllValuesFieldListFilter)),
        ("reason", titled("why", admin.ChoicesFieldListFilter)),
        ("created_at", titled("when", admin.DateFieldListFilter)),
    )
    search_fields = ("tenant_name", "api_key_prefix")
    search_help_text = "By generation id (gen_…), tenant or key prefix"
    sortable_by = ()
    fieldsets = (
        (
            "The decision",
            {
                "fields": (
                    "generation",
                    "asked",
                    "given",
                    "reason_text",
                    "right",
                    "policy",
                ),
                "description": "Written in the transaction that accepted the generation, and never again.",
            },
        ),
        ("Who asked", {"fields": ("tenant", "who", "exact_time")}),
    )
    readonly_fields = (
        "generation",
        "asked",
        "given",
        "reason_text",
        "right",
        "policy",
        "tenant",
        "who",
        "exact_time",
    )

    @display(description="Lane asked for")
    def asked(self, assignment: LaneAssignment) -> str:
        return assignment.requested_lane or "none"

    @display(description="Lane given")
    def given(self, assignment: LaneAssignment) -> str:
        return assignment.given_lane

    @display(description="Tenant")
    def tenant(self, assignment: LaneAssignment) -> str:
        return assignment.tenant_name

    @display(description="By the entitlement")
    def right(self, assignment: LaneAssignment) -> str:
        return code(str(assignment.entitlement_id))

    @display(description="By the rule, version")
    def policy(self, assignment: LaneAssignment) -> int:
        return assignment.policy_version

    @display(description="Why")
    def reason_text(self, assignment: LaneAssignment) -> str:
        return str(assignment.get_reason_display())

    @display(description="By")
    def who(self, assignment: LaneAssignment) -> str:
        return f"user {assignment.user_id}" if assignment.user_id else f"key sb_{assignment.api_key_prefix}…"

    @display(description="When")
    def when(self, assignment: LaneAssignment) -> str:
        return ago(assignment.created_at)

    @display(description="When")
    def exact_time(self, assignment: LaneAssignment) -> str:
        return exactly(assignment.created_at)
