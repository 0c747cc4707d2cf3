"""The forms that a key is made, changed and rotated with."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminExpandableTextareaWidget,
    UnfoldAdminIntegerFieldWidget,
)

from accounts import keys, model_names
from accounts.admin.limit_fields import LimitFieldsForm
from accounts.lines_field import LinesField
from accounts.models import Lane, Scope

_MOST_OVERLAP_H: Final = 24 * 90


class KeyForm(LimitFieldsForm):
    """All that an operator may say of a key."""

    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=[scope.value for scope in keys.DEFAULT_SCOPES],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="What requests with this key may do. Give no more than the application needs.",
    )
    allowed_lanes = forms.MultipleChoiceField(
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="Its requests get no other lane, whatever they ask for. None ticked: every lane of the tenant.",
    )
    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="It sees and uses no other model. None ticked: every model, those that are added later as well.",
    )
    allowed_networks = LinesField(
        widget=UnfoldAdminExpandableTextareaWidget(attrs={"spellcheck": "false"}),
        help_text="One address or network a line, as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32. Empty: from anywhere.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        models = model_names.offered()
        # What it holds can stay, though it is no longer offered, and is not taken away unasked.
        held = [name for name in self.instance.allowed_models if name not in models]
        self._choose("allowed_lanes", list(Lane.objects.values_list("name", flat=True)))
        self._choose("allowed_models", [*models, *held])

    def _choose(self, field: str, names: list[str]) -> None:
        if field in self.fields:  # who may only look has no fields
            self.fields[field].choices = [(name, name) for name in names]  # type: ignore[attr-defined]


class RotationForm(forms.Form):
    """How long the present key works on."""

    overlap = forms.IntegerField(
        label="Overlap, in hours",
        min_value=0,
        max_value=_MOST_OVERLAP_H,
        initial=24,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="How long the present key works on beside the new one. 0: it ends at once.",
    )
