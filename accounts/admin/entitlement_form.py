"""The forms in which operators grant, change and extend entitlements."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.conf import settings
from django.utils import timezone
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts.admin.limit_fields import LimitFieldsForm
from accounts.entitlement_terms import Terms, checked
from accounts.models import Entitlement, Lane, OnExhausted
from accounts.refusals import ChangeRefused

_TERMS: Final = ("weight", "speculation", "starts_at", "ends_at", "longest_queue_wait_s", "reason")


class EntitlementForm(LimitFieldsForm):
    """Everything that is granted."""

    class Meta:
        model = Entitlement
        fields = (
            "tenant",
            "lane",
            "weight",
            "speculation",
            "starts_at",
            "ends_at",
            "on_exhausted",
            "step_down_to",
            "longest_queue_wait_s",
            "reason",
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("starts_at", "ends_at"):
            if name in self.fields:
                self.fields[name].help_text = f"{self.fields[name].help_text} {in_zone()}"
        step_down_to = self.fields.get("step_down_to")  # who may only look has no fields
        if isinstance(step_down_to, forms.ModelChoiceField):
            step_down_to.empty_label = "None"
            if self.instance.lane_id is not None:
                step_down_to.queryset = Lane.objects.filter(rank__gt=self.instance.lane.rank)

    def clean(self) -> dict[str, Any] | None:
        """Ask the rule itself, before the row's constraints would say the same in worse words."""
        cleaned = super().clean()
        lane = self.cleaned_data.get("lane", self.instance.lane_id)
        if not self.errors and lane is not None:
            try:
                checked(
                    self.terms(),
                    lane=getattr(lane, "name", lane),
                    ranks=dict(Lane.objects.values_list("name", "rank")),
                    now=timezone.now(),
                )
            except ChangeRefused as refusal:
                self.add_error(refusal.field, refusal.message)
        return cleaned

    def terms(self) -> Terms:
        """What the form asks for, once its fields are clean."""
        values = {name: self.cleaned_data[name] for name in _TERMS}
        lower = self.cleaned_data["step_down_to"]
        return Terms(
            limits=self.limits(),
            on_exhausted=OnExhausted(self.cleaned_data["on_exhausted"]),
            step_down_to=lower.name if lower is not None else None,
            **values,
        )


class _Moment(UnfoldAdminTextInputWidget):  # type: ignore[misc]
    input_type = "datetime-local"


class ExtensionForm(forms.Form):
    """Until when, and why."""

    ends_at = forms.DateTimeField(label="Ends", widget=_Moment)
    reason = forms.CharField(
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="Why, for the auditor. Takes the place of the reason that it was granted for.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["ends_at"].help_text = f"It gives nothing from then on; what runs may finish. {in_zone()}"


class ApprovalForm(forms.Form):
    """Why it is approved, if there is anything to say."""

    reason = forms.CharField(
        required=False, max_length=200, widget=UnfoldAdminTextInputWidget, help_text="For the auditor."
    )


class RefusalForm(forms.Form):
    """Why it is refused."""

    reason = forms.CharField(
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="For whoever asked, and for the auditor.",
    )


def in_zone() -> str:
    """The zone that the admin's forms read times in."""
    return f"Times are those of the site: {settings.TIME_ZONE}."
