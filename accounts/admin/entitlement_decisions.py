"""What operators decide about an entitlement that is there: to extend, end, approve, refuse and withdraw it."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.decorators import action
from unfold.enums import ActionVariant

from accounts import approvals, entitlements
from accounts.actors import actor_of
from accounts.admin.base import VERSION_FIELD, Question
from accounts.admin.entitlement_effect import effect_of, plan_of_request
from accounts.admin.entitlement_form import ApprovalForm, ExtensionForm, RefusalForm
from accounts.admin.entitlement_words import state_words
from accounts.admin.preview import PreviewedAdmin
from accounts.entitlement_states import LIVE, State, state_of
from accounts.formatting import counted
from accounts.models import Approval, Entitlement, User
from accounts.tenancy import tenant_scope


class EntitlementDecisions(PreviewedAdmin):
    """The actions of the entitlements' pages. Those are offered that the state of an entitlement leaves open."""

    actions = ("end_selected",)
    actions_detail = ("extend", "end", "approve", "refuse", "withdraw")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        entitlement = self.get_object(request, object_id)
        shown: set[str] = set()
        if entitlement is not None:
            state = state_of(entitlement, timezone.now())
            if state in LIVE:
                shown = {"extend", "end"}
            elif state is State.REQUESTED:
                may_decide = approvals.may_decide(entitlement, cast(User, request.user))
                shown = {"approve", "refuse", "withdraw"} if may_decide else {"withdraw"}
        return [
            item
            for item in super().get_actions_detail(request, object_id)
            if item.method.original_function_name in shown
        ]

    @action(description="Extend", icon="event_repeat", url_path="extend", permissions=["operate"])
    def extend(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        entitlement = self.object_or_404(request, object_id)
        question = Question(
            title=f"Extend {entitlement}?",
            meaning=[
                f"Now: {state_words(entitlement)[1].lower()}. Everything but its end and its reason stays as it is.",
                "If the tenant's grants in this lane come to more than may be given without a second operator, the "
                "longer one is requested, and the present one stays as it is until then.",
            ],
            submit="Extend it",
            form=ExtensionForm,
        )

        def extend(values: dict[str, Any]) -> HttpResponse:
            written = entitlements.change(
                entitlement=entitlement,
                **values,
                granted_by=cast(User, request.user),
                actor=actor_of(request),
            )
            return self.say_written(request, written, f"{written} is {state_words(written)[1].lower()}.")

        return self.ask(request, entitlement, question, extend)

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

    @action(description="Approve", icon="check_circle", url_path="approve", permissions=["operate"])
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        entitlement, version = self._with_version(request, object_id)
        ends = (
            ["The entitlement that it replaces ends in the same moment. What is used of that one stays used."]
            if entitlement.replaces_id
            else []
        )
        question = Question(
            title=f"Approve {entitlement}?",
            meaning=["It gives its rights from then on, as they stand below.", *ends],
            submit="Approve it",
            form=ApprovalForm,
            template="admin/approval_question.html",
            shown={"effect": effect_of(plan_of_request(entitlement), timezone.now())},
            version=version,
        )

        def approve(values: dict[str, Any]) -> str:
            approvals.approve(
                entitlement=entitlement,
                decided_by=cast(User, request.user),
                actor=actor_of(request),
                reason=values["reason"],
                seen=request.POST.get(VERSION_FIELD, ""),
            )
            return f"{entitlement} is approved."

        return self.ask(request, entitlement, question, approve)

    @action(
        description="Refuse",
        icon="cancel",
        url_path="refuse",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def refuse(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        entitlement = self.object_or_404(request, object_id)
        question = Question(
            title=f"Refuse {entitlement}?",
            meaning=["It gives nothing, now or later. What the tenant has beside it stays as it is."],
            submit="Refuse it",
            form=RefusalForm,
            danger=True,
        )

        def refuse(values: dict[str, Any]) -> str:
            approvals.refuse(
                entitlement=entitlement,
                decided_by=cast(User, request.user),
                actor=actor_of(request),
                reason=values["reason"],
            )
            return f"{entitlement} is refused."

        return self.ask(request, entitlement, question, refuse)

    @action(description="Withdraw", icon="undo", url_path="withdraw", permissions=["operate"])
    def withdraw(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        entitlement = self.object_or_404(request, object_id)
        question = Question(
            title=f"Withdraw the request for {entitlement}?",
            meaning=["Nobody needs to decide about it any more. It can be requested again at any time."],
            submit="Withdraw it",
        )

        def withdraw(values: dict[str, Any]) -> str:
            entitlements.end(entitlement=entitlement, actor=actor_of(request))
            return f"The request for {entitlement} is withdrawn."

        return self.ask(request, entitlement, question, withdraw)

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

    def _with_version(self, request: HttpRequest, object_id: str) -> tuple[Entitlement, str]:
        """An entitlement, and the version of all that a decision about it goes by: read first, so that what is shown is
        never older."""
        entitlement: Entitlement = self.object_or_404(request, object_id)
        with tenant_scope(entitlement.tenant_id):
            version = entitlements.version_of(entitlement.tenant, entitlement.lane_id, timezone.now())
        return self.object_or_404(request, object_id), version

    def say_written(self, request: HttpRequest, written: Entitlement, said: str) -> HttpResponse:
        """Lead to what was written, and say so: ``said``, or that it waits for approval."""
        if written.approval == Approval.REQUESTED:
            messages.warning(request, _requested(written))
        else:
            messages.success(request, said)
        return redirect(self.url_of(written))


def _requested(entitlement: Entitlement) -> str:
    return f"Requested: {entitlement}. It gives nothing before another operator has approved it."
