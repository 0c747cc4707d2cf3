"""An export of the audit as a download, and the script that checks it."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from django import forms
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import FileResponse, HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.template.response import TemplateResponse
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts.actors import actor_of
from accounts.audience import only_reads
from accounts.audit import export, offline
from accounts.audit.archive_files import ArchiveDamaged
from accounts.audit.export import ExportRefused, Selection
from accounts.audit.stored import ChainBroken
from accounts.models import Lane, Tenant

SCRIPT: Final = Path(offline.__file__).with_name("verify_export.py")


def _day(label: str) -> forms.DateField:
    return forms.DateField(
        label=label, required=False, widget=UnfoldAdminTextInputWidget(attrs={"type": "date"})
    )


class ExportForm(forms.Form):
    """What is exported. Everything may be left out: then it is all that there is."""

    first = _day("From")
    last = _day("To, that day included")
    tenant = forms.ModelChoiceField(
        Tenant.objects.all(), required=False, empty_label="every tenant", widget=UnfoldAdminSelectWidget
    )
    lane = forms.ModelChoiceField(
        Lane.objects.all(), required=False, empty_label="every lane", widget=UnfoldAdminSelectWidget
    )
    personal = forms.BooleanField(
        label="With people's names and addresses",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Those that were not erased. Left out, the export proves the same.",
    )

    def __init__(self, sent: Any = None) -> None:
        super().__init__(sent, label_suffix="", auto_id="id_export_%s")

    def clean(self) -> dict[str, Any]:
        """Refuse a time that ends before it begins."""
        values: dict[str, Any] = super().clean() or {}
        first, last = values.get("first"), values.get("last")
        if first and last and last < first:
            self.add_error("last", "This is before the first day.")
        return values

    def selection(self) -> Selection:
        """What is asked for, in days of the tenant's calendar if one is chosen. Of a valid form only."""
        values = self.cleaned_data
        tenant, lane = values["tenant"], values["lane"]
        zone = ZoneInfo(tenant.time_zone if tenant else settings.TIME_ZONE)
        first, last = values["first"], values["last"]
        return Selection(
            tenant_id=tenant.id if tenant else None,
            lane=lane.name if lane else None,
            first_at=datetime.combine(first, time.min, zone) if first else None,
            last_at=datetime.combine(last + timedelta(days=1), time.min, zone) if last else None,
        )


class AuditExports:
    """The form's page, the download and the script. ``page``: the admin page of events, which says who may see them."""

    def __init__(self, page: Any) -> None:
        self._page = page

    @only_reads
    def export(self, request: HttpRequest) -> HttpResponseBase:
        """GET shows the form; POST answers with the file, or with the form and what is wrong."""
        self._require(request)
        form = ExportForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            try:
                begun = export.begin(
                    form.selection(), with_personal=form.cleaned_data["personal"], actor=actor_of(request)
                )
            except (ExportRefused, ChainBroken, ArchiveDamaged) as refusal:
                form.add_error(None, str(refusal))
            else:
                answer = StreamingHttpResponse(
                    export.pages_async(begun), content_type="application/jsonl; charset=utf-8"
                )
                answer["Content-Disposition"] = f'attachment; filename="{begun.file_name}"'
                return answer
        context = {
            **self._page.admin_site.each_context(request),
            "title": "Export the audit",
            "opts": self._page.opts,
            "export_form": form,
        }
        return TemplateResponse(request, "admin/audit_export.html", context)

    def script(self, request: HttpRequest) -> HttpResponseBase:
        """The script that checks an export, as it stands in this installation."""
        self._require(request)
        return FileResponse(
            SCRIPT.open("rb"), as_attachment=True, filename=SCRIPT.name, content_type="text/x-python"
        )

    def _require(self, request: HttpRequest) -> None:
        if not self._page.has_view_permission(request):
            raise PermissionDenied
