"""The fields of the six limits, for forms of what has an allowance: a key, an entitlement."""

from __future__ import annotations

from typing import Any, Final, cast

from django import forms
from django.db import models
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from accounts import allowances
from accounts.consumption import TITLES
from accounts.limits import LimitName, Limits
from accounts.models import Allowance

#: Names of the form's fields, which are the limits' own: a verb's refusal finds its field.
LIMIT_FIELDS: Final = tuple(name.value for name in LimitName)


def _field(name: LimitName) -> forms.IntegerField:
    column = cast("models.Field[Any, Any]", Allowance._meta.get_field(name.value))
    return forms.IntegerField(
        label=TITLES[name],
        required=False,
        min_value=0,
        max_value=allowances.MOST,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=column.help_text,
    )


class LimitFieldsForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form of a row with an ``allowance``: its limits are fields beside the row's own."""

    tokens_per_day = _field(LimitName.TOKENS_PER_DAY)
    tokens_per_week = _field(LimitName.TOKENS_PER_WEEK)
    tokens_per_month = _field(LimitName.TOKENS_PER_MONTH)
    requests_per_minute = _field(LimitName.REQUESTS_PER_MINUTE)
    tokens_per_minute = _field(LimitName.TOKENS_PER_MINUTE)
    concurrency = _field(LimitName.CONCURRENCY)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.allowance_id is not None:
            self.initial = {**allowances.audited(self.instance.allowance.limits), **self.initial}

    def limits(self) -> Limits:
        """The limits of a valid form."""
        return Limits(**{name: self.cleaned_data[name] for name in LIMIT_FIELDS})
