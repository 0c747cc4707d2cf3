"""The forms that a tenant's keys are made, changed and rotated with."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.utils import timezone

from accounts import allowances, keys, model_names, permissions
from accounts.consumption import TITLES
from accounts.key_words import NO_DEFAULT_LANE
from accounts.limits import LimitName, Limits
from accounts.lines_field import LinesField
from accounts.models import ApiKey, Lane, Role, Scope, Tenant
from accounts.site.site_form import SiteForm

_MOST_OVERLAP_H: Final = 24 * 90
_TO_THE_SECOND: Final = "%Y-%m-%dT%H:%M:%S"


def scopes_to_give(role: Role) -> tuple[Scope, ...]:
    """What a member of that role may give to a key: owners let a key administer the tenant, nobody the platform."""
    match role:
        case Role.OWNER:
            return (Scope.INFERENCE, Scope.READ, Scope.ADMIN)
        case Role.ADMIN:
            return (Scope.INFERENCE, Scope.READ)
        case _:
            return ()


def may_handle(role: Role, key: ApiKey) -> bool:
    """Whether a member of that role may change and rotate ``key``: not one that may do more than they could give it.

    Else a rotation, which shows a new key with the same rights, would give them what they do not have.
    """
    return set(key.scopes) <= {scope.value for scope in scopes_to_give(role)}


def _limit(name: LimitName) -> forms.IntegerField:
    return forms.IntegerField(label=TITLES[name], required=False, min_value=0, max_value=allowances.MOST)


class KeyForm(SiteForm):
    """All that a member may say of a key: it narrows what the tenant has, so that no other lane is offered."""

    name = forms.CharField(
        max_length=100,
        help_text="What uses it, so that you know it again.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    scopes = forms.MultipleChoiceField(
        widget=forms.CheckboxSelectMultiple, help_text="Give no more than the application needs."
    )
    default_lane = forms.ChoiceField(
        required=False, help_text="The lane of requests that ask for none (service_tier absent or auto)."
    )
    allowed_lanes = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Its requests get no other lane. None ticked: every lane that the tenant has.",
    )
    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="It may use no other model. None ticked: every model.",
    )
    allowed_networks = LinesField(
        label="Allowed addresses",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "autocapitalize": "none"}),
        help_text="Addresses and networks that it may be used from, one a line, as in 192.0.2.0/24. Empty: anywhere.",
    )
    expires_at = forms.DateTimeField(
        label="Expires",
        required=False,
        widget=forms.DateTimeInput(format=_TO_THE_SECOND, attrs={"type": "datetime-local", "step": "1"}),
    )
    tokens_per_day = _limit(LimitName.TOKENS_PER_DAY)
    tokens_per_week = _limit(LimitName.TOKENS_PER_WEEK)
    tokens_per_month = _limit(LimitName.TOKENS_PER_MONTH)
    requests_per_minute = _limit(LimitName.REQUESTS_PER_MINUTE)
    tokens_per_minute = _limit(LimitName.TOKENS_PER_MINUTE)
    concurrency = _limit(LimitName.CONCURRENCY)

    def __init__(
        self, *args: Any, tenant: Tenant, role: Role, key: ApiKey | None = None, **kwargs: Any
    ) -> None:
        initial = _values_of(key) if key else {"scopes": [scope.value for scope in keys.DEFAULT_SCOPES]}
        super().__init__(*args, initial=initial, **kwargs)
        self._key = key
        # What the key has and is not offered any more may stay, or be taken out.
        has = permissions.lanes_of(tenant.id, timezone.now()).values_list("name", flat=True)
        lanes = _choices(has, [*key.allowed_lanes, key.default_lane_id] if key else ())
        models = _choices(model_names.offered(), key.allowed_models if key else ())
        self._offer("scopes", [(scope.value, str(scope.label)) for scope in scopes_to_give(role)])
        self._offer("default_lane", [("", NO_DEFAULT_LANE), *lanes])
        self._offer("allowed_lanes", lanes)
        self._offer("allowed_models", models)
        self.fields["expires_at"].help_text = (
            "Nothing new starts with it from then on; what runs may finish. "
            f"In {timezone.get_current_timezone_name()} time. Empty: never."
        )

    def _offer(self, field: str, choices: list[tuple[str, str]]) -> None:
        self.fields[field].choices = choices  # type: ignore[attr-defined]

    @property
    def limit_fields(self) -> list[forms.BoundField]:
        """The fields of the limits, for the template."""
        return [self[name.value] for name in LimitName]

    def rights(self) -> dict[str, Any]:
        """What was filled in, as the verbs take it."""
        values = self.cleaned_data
        lane = values["default_lane"]
        expires_at = values["expires_at"]
        if self._key is not None and "expires_at" not in self.changed_data:
            # To the second in the form, and exact in the row.
            expires_at = self._key.expires_at
        lists = ("allowed_lanes", "allowed_models", "allowed_networks")
        return {
            "name": values["name"],
            "scopes": values["scopes"],
            "default_lane": Lane.objects.get(name=lane) if lane else None,
            **{name: values[name] for name in lists},
            "limits": Limits(**{name.value: values[name.value] for name in LimitName}),
            "expires_at": expires_at,
        }


class RotationForm(SiteForm):
    """How long the old key works on."""

    overlap = forms.IntegerField(
        label="Overlap, in hours",
        min_value=0,
        max_value=_MOST_OVERLAP_H,
        initial=24,
        help_text="How long the present key works on beside the new one. 0: it ends at once.",
    )

    def length(self) -> timedelta:
        """What was asked for."""
        return timedelta(hours=self.cleaned_data["overlap"])


def _choices(offered: Iterable[str], held: Iterable[str | None]) -> list[tuple[str, str]]:
    return [(name, name) for name in dict.fromkeys((*offered, *held)) if name]


def _values_of(key: ApiKey) -> dict[str, Any]:
    names = ("name", "scopes", "allowed_lanes", "allowed_models", "allowed_networks", "expires_at")
    values = {name: getattr(key, name) for name in names}
    return {**values, "default_lane": key.default_lane_id or "", **allowances.audited(key.allowance.limits)}
