"""What the usage page is asked, from its address: the filters, and what is left out filled in."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import QueryDict
from django.utils import timezone
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from accounts.models import ApiKey, Lane, Tenant, UsageRollup
from accounts.usage_queries import EARLIEST, Bucket, Group
from accounts.usage_report import GROUPS, MOST_DAYS, Question

_DEFAULT_DAYS = 7
#: The days that can be asked for: no ledger is older, and every calendar knows what comes after the last one.
_EARLIEST, _LATEST = EARLIEST.date(), date(9998, 12, 31)
#: What each group is called.
BY = {Group.TENANT: "Tenant", Group.API_KEY: "API key", Group.MODEL: "Model", Group.LANE: "Lane"}


def _day(label: str) -> forms.DateField:
    return forms.DateField(
        label=label,
        required=False,
        widget=UnfoldAdminTextInputWidget(attrs={"type": "date"}),
        validators=[
            MinValueValidator(_EARLIEST, f"There is no day before {_EARLIEST} to look at."),
            MaxValueValidator(_LATEST, f"There is no day after {_LATEST} to look at."),
        ],
    )


class UsageForm(forms.Form):
    """The filters. Everything may be left out; ``question`` is what they come to."""

    first = _day("From")
    last = _day("To, that day included")
    bucket = forms.ChoiceField(
        label="In steps of",
        required=False,
        choices=[(Bucket.DAY.value, "days"), (Bucket.HOUR.value, "hours")],
        widget=UnfoldAdminSelectWidget,
    )
    by = forms.ChoiceField(
        label="Parted by",
        required=False,
        choices=[(group.value, BY[group]) for group in GROUPS],
        widget=UnfoldAdminSelectWidget,
    )
    tenant = forms.ModelChoiceField(
        Tenant.objects.all(), required=False, empty_label="every tenant", widget=UnfoldAdminSelectWidget
    )
    api_key = forms.ModelChoiceField(
        ApiKey.objects.none(),
        label="API key",
        required=False,
        empty_label="every key",
        widget=UnfoldAdminSelectWidget,
    )
    model = forms.ChoiceField(required=False, widget=UnfoldAdminSelectWidget)
    lane = forms.ModelChoiceField(
        Lane.objects.all(), required=False, empty_label="every lane", widget=UnfoldAdminSelectWidget
    )

    def __init__(self, asked: QueryDict) -> None:
        today = timezone.localdate()
        filled = asked.copy()
        defaults = {
            "last": today.isoformat(),
            "first": (today - timedelta(days=_DEFAULT_DAYS - 1)).isoformat(),
            "bucket": Bucket.DAY.value,
            "by": Group.TENANT.value,
        }
        for name, value in defaults.items():
            filled[name] = filled.get(name) or value
        super().__init__(filled, label_suffix="")
        fields: dict[str, Any] = self.fields
        # Of every tenant there may be thousands: a key is chosen after its tenant.
        tenant = forms.UUIDField(required=False)
        try:
            of = tenant.clean(filled.get("tenant"))
        except forms.ValidationError:
            of = None
        fields["api_key"].queryset = ApiKey.objects.filter(tenant=of) if of else ApiKey.objects.none()
        fields["api_key"].disabled = of is None
        models = UsageRollup.objects.order_by("model").values_list("model", flat=True).distinct()
        fields["model"].choices = [("", "every model"), *((model, model) for model in models)]

    def clean(self) -> dict[str, Any]:
        """Refuse a time that ends before it begins, or is too long for its steps."""
        values: dict[str, Any] = super().clean() or {}
        first, last, bucket = values.get("first"), values.get("last"), values.get("bucket")
        if not (first and last and bucket):
            return values
        most = MOST_DAYS[Bucket(bucket)]
        if last < first:
            self.add_error("last", "This is before the first day.")
        elif (last - first).days >= most:
            self.add_error(
                "last", f"At most {most} days are drawn in steps of {bucket}s. Choose fewer, or days."
            )
        return values

    @property
    def parted_by(self) -> Group:
        """What the page parts usage by."""
        return Group(self.cleaned_data["by"])

    @property
    def question(self) -> Question:
        """What is asked for. Of a valid form only."""
        values = self.cleaned_data
        tenant, key, lane = values["tenant"], values["api_key"], values["lane"]
        return Question(
            first=values["first"],
            last=values["last"],
            zone=ZoneInfo(tenant.time_zone if tenant else settings.TIME_ZONE),
            bucket=Bucket(values["bucket"]),
            tenant_id=tenant.id if tenant else None,
            api_key_id=key.id if key else None,
            model=values["model"] or None,
            lane=lane.name if lane else None,
        )
