from __future__ import annotations

from django.contrib import admin
from unfold.decorators import display

from accounts.admin.generation_records import GenerationRecordAdmin
from accounts.formatting import ago, exactly
from accounts.models import LaneAssignment


@admin.register(LaneAssignment)
class LaneAssignmentAdmin(GenerationRecordAdmin):
    list_display = ("short", "tenant_name", "asked", "given_lane", "reason_text", "who", "when")
    list_display_links = ("short",)
    list_filter = ("given_lane", "reason", "created_at")
    search_fields = ("tenant_name", "api_key_prefix", "user_name")
    search_help_text = "By generation id (gen_…), tenant, key prefix or user"
    sortable_by = ()
    fieldsets = (
        (
            "The decision",
            {
                "fields": (
                    "generation",
                    "asked",
                    "given_lane",
                    "reason_text",
                    "entitlement_id",
                    "policy_version",
                ),
                "description": "Written in the transaction that accepted the generation, and never again.",
            },
        ),
        ("Who asked", {"fields": ("tenant_name", "who", "exact_time")}),
    )
    readonly_fields = ("generation", "asked", "reason_text", "who", "exact_time")

    @display(description="Asked for")
    def asked(self, assignment: LaneAssignment) -> str:
        return assignment.requested_lane or "nothing in particular"

    @display(description="Why")
    def reason_text(self, assignment: LaneAssignment) -> str:
        return str(assignment.get_reason_display())

    @display(description="By")
    def who(self, assignment: LaneAssignment) -> str:
        return assignment.user_name or f"key sb_{assignment.api_key_prefix}…"

    @display(description="When")
    def when(self, assignment: LaneAssignment) -> str:
        return ago(assignment.created_at)

    @display(description="When")
    def exact_time(self, assignment: LaneAssignment) -> str:
        return exactly(assignment.created_at)
