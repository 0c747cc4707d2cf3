"""The page of the audit as a whole: questions, the chain's state, and what can be done about it."""

from __future__ import annotations

from typing import Any, Final

from celery.exceptions import OperationalError
from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts import tasks
from accounts.actors import actor_of
from accounts.admin.audit_condition import condition, last_held, verified
from accounts.admin.audit_exports import ExportForm
from accounts.admin.audit_questions import lane_questions
from accounts.audience import only_reads
from accounts.audit import checkpoints, settings, verification
from accounts.audit.checkpoints import CheckpointRefused
from accounts.audit.signing_keys import SigningKeyMissing
from accounts.models import AuditHead, AuditSettings, SealedAssignment
from accounts.refusals import ChangeRefused

#: Events and assignments that are walked while somebody waits: some seconds. Longer walks go to Celery.
WALKED_AT_ONCE: Final = 20_000


class SettingsForm(forms.Form):
    """What the operator sets."""

    checkpoint_minutes = forms.IntegerField(
        label="Minutes between checkpoints",
        min_value=1,
        max_value=settings.MOST_MINUTES,
        widget=UnfoldAdminTextInputWidget(attrs={"type": "number"}),
        help_text=str(AuditSettings._meta.get_field("checkpoint_minutes").help_text),
    )
    archive_after_days = forms.IntegerField(
        label="Days until records are archived",
        required=False,
        min_value=1,
        max_value=settings.MOST_DAYS,
        widget=UnfoldAdminTextInputWidget(attrs={"type": "number"}),
        help_text=str(AuditSettings._meta.get_field("archive_after_days").help_text),
    )


class AuditPages:
    """The page, and what its buttons send. ``page`` is the admin page of events, which says who may see them."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def state(self, request: HttpRequest) -> HttpResponseBase:
        """How it stands with the audit."""
        self._require(request)
        return self._show(request)

    @only_reads
    def verify(self, request: HttpRequest) -> HttpResponseBase:
        """Walk the chain: at once where that takes seconds, else by a task."""
        self._require(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        from_scratch = request.POST.get("from") == "scratch"
        if _length(from_scratch) > WALKED_AT_ONCE:
            self._verify_later(request, from_scratch)
        else:
            self._verify(request, from_scratch)
        return redirect(_back(request))

    def checkpoint(self, request: HttpRequest) -> HttpResponseBase:
        """Sign the head now."""
        self._require(request, operate=True)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            made = checkpoints.make(timezone.now())
        except (CheckpointRefused, SigningKeyMissing) as refusal:
            messages.error(request, str(refusal))
        else:
            if made is None:
                messages.info(request, "Nothing was recorded since the last checkpoint: none is needed.")
            else:
                messages.success(request, f"Signed: the chain up to event {made.sequence}.")
        return redirect(_back(request))

    def change_settings(self, request: HttpRequest) -> HttpResponseBase:
        """Change what the operator sets."""
        self._require(request, operate=True)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = SettingsForm(request.POST, label_suffix="")
        if form.is_valid():
            try:
                settings.change(**form.cleaned_data, actor=actor_of(request))
            except ChangeRefused as refusal:
                form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
            else:
                messages.success(request, "Saved: the audit's settings.")
                return redirect("admin:accounts_audit")
        return self._show(request, settings_form=form)

    def _show(self, request: HttpRequest, *, settings_form: SettingsForm | None = None) -> TemplateResponse:
        now = settings.current()
        kept = {
            "checkpoint_minutes": now.checkpoint_minutes,
            "archive_after_days": now.archive_after_days,
        }
        context = {
            **self._page.admin_site.each_context(request),
            "title": "Audit overview",
            "opts": self._page.opts,
            "condition": condition(),
            "lanes": lane_questions(),
            "settings_form": settings_form or SettingsForm(initial=kept, label_suffix=""),
            "export_form": ExportForm(),
            "operates": self._page.has_operate_permission(request),
        }
        return TemplateResponse(request, "admin/audit_state.html", context)

    def _require(self, request: HttpRequest, *, operate: bool = False) -> None:
        may = self._page.has_operate_permission if operate else self._page.has_view_permission
        if not may(request):
            raise PermissionDenied

    def _verify(self, request: HttpRequest, from_scratch: bool) -> None:
        found = verified(verification.verify_and_store(from_scratch=from_scratch))
        (messages.success if found.held else messages.error)(request, found.said)

    def _verify_later(self, request: HttpRequest, from_scratch: bool) -> None:
        try:
            tasks.verify_audit.delay(from_scratch=from_scratch)
        except OperationalError:
            messages.error(
                request,
                "The chain is too long to be verified while you wait, and the queue of tasks cannot be reached. "
                "On the command line: manage.py audit verify",
            )
        else:
            messages.info(
                request,
                "The chain is being verified in the background: look here again in a few minutes.",
            )


def _length(from_scratch: bool) -> int:
    """How much there is to walk: exactly, or somewhat more than is walked at once."""
    held = None if from_scratch else last_held()
    after = held.last_sequence if held else 0
    leaves = SealedAssignment.objects.filter(batch__gt=after)[: WALKED_AT_ONCE + 1].count()
    return AuditHead.objects.get(id=1).sequence - after + leaves


def _back(request: HttpRequest) -> str:
    """The page that the button was on, where it says so and is one of ours."""
    back = request.POST.get("back", "")
    if back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None):
        return back
    return reverse("admin:accounts_audit")
