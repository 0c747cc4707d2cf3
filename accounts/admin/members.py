from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.http import HttpRequest, HttpResponseBase
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts import members
from accounts.actors import actor_of
from accounts.admin.base import Question, SiteModelAdmin
from accounts.admin.filters import EndedFilter, titled
from accounts.audience import Audience
from accounts.formatting import ago, link, time_field
from accounts.models import Membership, Role


@admin.register(Membership)
class MembershipAdmin(SiteModelAdmin):
    audience = Audience.STAFF_AND_AUDITORS
    may_add = may_change = True
    list_display = ("person", "tenant_link", "role_label", "state", "since")
    list_display_links = ("person",)
    list_filter = (
        EndedFilter,
        "role",
        ("tenant", admin.RelatedOnlyFieldListFilter),
        ("created_at", titled("since", admin.DateFieldListFilter)),
    )
    list_select_related = ("tenant", "user")
    search_fields = ("user__username", "user__email", "tenant__name", "tenant__slug")
    search_help_text = "By user or tenant"
    autocomplete_fields = ("tenant", "user")
    ordering = ("tenant__name", "user__username")
    actions_detail = ("end",)
    add_fieldsets = (
        (
            None,
            {
                "description": "Owners, admins and members chat in the tenant's name and on its entitlements; viewers "
                "look only.",
                "fields": ("tenant", "user", "role"),
            },
        ),
    )
    fieldsets = (
        (None, {"fields": ("user_link", "tenant_link", "role", "state")}),
        ("Membership", {"fields": ("joined_exactly", "ended_exactly")}),
    )
    readonly_fields = ("user_link", "tenant_link", "state", "joined_exactly", "ended_exactly")
    joined_exactly = time_field("created_at", "Joined")
    ended_exactly = time_field("ended_at", "Ended")

    @display(description="Member", header=True, ordering="user__username")
    def person(self, membership: Membership) -> list[str]:
        return [membership.user.get_username(), membership.user.email]

    @display(description="User")
    def user_link(self, membership: Membership) -> str:
        return link(membership.user)

    @display(description="Tenant", ordering="tenant__name")
    def tenant_link(self, membership: Membership) -> str:
        return link(membership.tenant)

    @display(description="Role", ordering="role", label={"Owner": "primary", "Admin": "info"})
    def role_label(self, membership: Membership) -> str:
        return str(membership.get_role_display())

    @display(description="State", label={"Member": "success", "Ended": "warning"})
    def state(self, membership: Membership) -> str:
        return "Ended" if membership.ended_at else "Member"

    @display(description="Since", ordering="created_at")
    def since(self, membership: Membership) -> str:
        return ago(membership.created_at)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The least that lets a person work: more is chosen."""
        return {"role": Role.MEMBER, **super().get_changeform_initial_data(request)}

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        ended = isinstance(obj, Membership) and obj.ended_at is not None
        return not ended and super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = form.cleaned_data
        role = Role(values["role"])
        if change:
            members.change_role(membership=obj, role=role, actor=actor_of(request))
            return
        added = members.add(tenant=values["tenant"], user=values["user"], role=role, actor=actor_of(request))
        obj.pk = added.pk

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        membership = self.get_object(request, object_id)
        live = membership is not None and membership.ended_at is None
        return cast(list[Any], super().get_actions_detail(request, object_id)) if live else []

    @action(
        description="End membership",
        icon="person_remove",
        url_path="end",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def end(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        membership = self.object_or_404(request, object_id)
        question = Question(
            title=f"End {membership.user}'s membership of {membership.tenant}?",
            meaning=[
                "They can no longer chat in the tenant's name, and what they run there is cancelled within a second.",
                "Their conversations stay, for when they are added again.",
            ],
            submit="End the membership",
            danger=True,
        )

        def end(values: dict[str, Any]) -> str:
            members.end(membership=membership, actor=actor_of(request))
            return f"{membership.user} is no longer a member of {membership.tenant}."

        return self.ask(request, membership, question, end)
