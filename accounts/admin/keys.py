from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminIntegerFieldWidget

from accounts import keys
from accounts.actors import actor_of
from accounts.admin.base import AlreadyMade, Question, ShownOnce, SiteModelAdmin
from accounts.admin.filters import DefaultLaneFilter, KeyStateFilter, titled
from accounts.admin.key_words import ENDS, NO_DEFAULT_LANE, WORKS, default_lane_of, key_state, scopes_of
from accounts.admin.once import taken_once
from accounts.authentication import refusal_of
from accounts.formatting import EMPTY, ago, code, exactly, link, time_field
from accounts.models import ApiKey, Scope, User


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]
    scopes = forms.MultipleChoiceField(
        initial=[scope.value for scope in keys.DEFAULT_SCOPES],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="What requests with this key may do. Give no more than the application needs.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "scopes" in self.fields:
            held = self.instance.scopes
            self.fields["scopes"].choices = [  # type: ignore[attr-defined]
                (scope.value, scope.label) for scope in Scope if scope in keys.OFFERED_SCOPES or scope in held
            ]


class RotationForm(forms.Form):
    overlap = forms.IntegerField(
        label="Overlap, in hours",
        min_value=0,
        max_value=24 * 90,
        initial=24,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="How long the present key works on beside the new one. 0: it ends at once.",
    )


#: Fields of the form, and what is shown in their place to whoever may not change the key.
_READ_AS = {"scopes": "scope_words", "default_lane": "lane", "expires_at": "expires_exactly"}


@admin.register(ApiKey)
class ApiKeyAdmin(SiteModelAdmin):
    may_add = may_change = True
    already_made = AlreadyMade(
        title="This key was made already",
        meaning=[
            "The same form came again, as when a page is reloaded. No second key was made.",
            "The key's text was shown once and cannot be shown again: if it is lost, open the key and rotate it.",
        ],
    )
    form = KeyForm
    list_display = ("named", "tenant_link", "state", "scopes_column", "lane", "used", "created")
    list_display_links = ("named",)
    list_filter = (
        KeyStateFilter,
        ("default_lane", DefaultLaneFilter),
        ("tenant", admin.RelatedOnlyFieldListFilter),
        ("created_at", titled("created", admin.DateFieldListFilter)),
    )
    list_select_related = ("tenant", "default_lane")
    search_fields = ("name", "prefix", "tenant__name", "tenant__slug")
    search_help_text = "By name, by the prefix that the key begins with, or by tenant"
    autocomplete_fields = ("tenant",)
    actions_detail = ("rotate", "revoke")
    add_fieldsets = (
        (
            None,
            {
                "description": "A key is an application's credential. Its text is shown once, right after this page, "
                "and stored nowhere: keep it then.",
                "fields": ("tenant", "name"),
            },
        ),
        (
            "What it may do",
            {
                "fields": ("scopes", "default_lane"),
                "description": "The lane is what its requests get that ask for none.",
            },
        ),
        ("How long", {"fields": ("expires_at",)}),
    )
    fieldsets = (
        (None, {"fields": ("name", "tenant_link", "prefix_code", "state_words")}),
        (
            "What it may do",
            {"fields": ("scopes", "default_lane"), "description": "Holds from the next request on."},
        ),
        (
            "Its life",
            {
                "fields": (
                    "expires_at",
                    "created_exactly",
                    "created_by",
                    "last_used",
                    "rotated_from_link",
                    "replaced_by_link",
                    "revoked_exactly",
                ),
                "description": "When a key expires, what it runs may finish. When it is revoked, that is cancelled.",
            },
        ),
    )
    readonly_fields = (
        "tenant_link",
        "prefix_code",
        "state_words",
        "created_exactly",
        "created_by",
        "last_used",
        "rotated_from_link",
        "replaced_by_link",
        "revoked_exactly",
    )

    created_exactly = time_field("created_at", "Created")
    revoked_exactly = time_field("revoked_at", "Revoked")

    @display(description="Key", header=True, ordering="name")
    def named(self, key: ApiKey) -> list[str]:
        return [key.name, f"sb_{key.prefix}…"]

    @display(description="Tenant", ordering="tenant__name")
    def tenant_link(self, key: ApiKey) -> str:
        return link(key.tenant)

    @display(
        description="State",
        label={
            WORKS: "success",
            ENDS: "warning",
            "Revoked": "danger",
            "Expired": "warning",
            "Tenant closed": "warning",
        },
    )
    def state(self, key: ApiKey) -> tuple[str, str]:
        return key_state(key)

    @display(description="State")
    def state_words(self, key: ApiKey) -> str:
        return key_state(key)[1]

    @display(description="Scopes")
    def scopes_column(self, key: ApiKey) -> str:
        return ", ".join(key.scopes)

    @display(description="Default lane", ordering="default_lane__rank")
    def lane(self, key: ApiKey) -> str:
        return default_lane_of(key)

    @display(description="Scopes")
    def scope_words(self, key: ApiKey) -> str:
        return scopes_of(key)

    @display(description="Last used", ordering="last_used_at")
    def used(self, key: ApiKey) -> str:
        return ago(key.last_used_at, never="never")

    @display(description="Last used (to about a minute)")
    def last_used(self, key: ApiKey) -> str:
        return ago(key.last_used_at, never="never")

    @display(description="Created", ordering="created_at")
    def created(self, key: ApiKey) -> str:
        return ago(key.created_at)

    @display(description="Begins with")
    def prefix_code(self, key: ApiKey) -> str:
        return code(f"sb_{key.prefix}_")

    @display(description="Rotated from")
    def rotated_from_link(self, key: ApiKey) -> str:
        return link(key.rotated_from) if key.rotated_from else EMPTY

    @display(description="Replaced by")
    def replaced_by_link(self, key: ApiKey) -> str:
        return link(key.rotated_to.order_by("-created_at").first())

    @display(description="Expires at")
    def expires_exactly(self, key: ApiKey) -> str:
        return exactly(key.expires_at) if key.expires_at else "never"

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Who may not change the key reads words where the form has choices."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return [
            (
                title,
                {**options, "fields": [_READ_AS.get(name, name) for name in options["fields"]]},
            )
            for title, options in fieldsets
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *_READ_AS.values())

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        works = not isinstance(obj, ApiKey) or refusal_of(obj, timezone.now()) is None
        return works and super().has_change_permission(request, obj)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if db_field.name == "default_lane":
            field.empty_label = NO_DEFAULT_LANE
            field.help_text = "The lane of requests that ask for none (service_tier absent or auto)."
        return field

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = form.cleaned_data
        rights = {name: values[name] for name in ("name", "scopes", "default_lane", "expires_at")}
        if change:
            keys.change(key=obj, **rights, actor=actor_of(request))
            return
        with taken_once(request):
            issued = keys.create(
                tenant=values["tenant"],
                **rights,
                created_by=cast(User, request.user),
                actor=actor_of(request),
            )
        obj.pk = issued.key.pk
        obj.issued = issued

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return self._show(request, obj.issued)

    @action(description="Rotate", icon="autorenew", url_path="rotate", permissions=["operate"])
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        key = self.object_or_404(request, object_id)
        question = Question(
            title=f"Rotate {key.name}?",
            meaning=[
                "A new key with the same rights takes over. Both work until the overlap has passed; then the present "
                "one ends by itself.",
                "If the new key's text gets lost before anybody uses it, rotate the present key again.",
            ],
            submit="Rotate and show the new key",
            form=RotationForm,
            already_made=AlreadyMade(
                title="The successor was made already",
                meaning=[
                    "The same form came again, as when a page is reloaded. Nothing was changed now.",
                    "The new key's text was shown once and cannot be shown again: if it is lost, rotate again.",
                ],
            ),
        )

        def rotate(values: dict[str, Any]) -> HttpResponse:
            issued = keys.rotate(
                key=key,
                overlap=timedelta(hours=values["overlap"]),
                created_by=cast(User, request.user),
                actor=actor_of(request),
            )
            return self._show(request, issued)

        return self.ask(request, key, question, rotate)

    @action(
        description="Revoke",
        icon="block",
        url_path="revoke",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        key = self.object_or_404(request, object_id)
        question = Question(
            title=f"Revoke {key.name}?",
            meaning=[
                f"Requests with sb_{key.prefix}… are refused from this moment on, on every server.",
                "What the key runs is cancelled within a second. This cannot be undone.",
                *_of_predecessor(key),
            ],
            submit="Revoke the key",
            danger=True,
        )

        def revoke(values: dict[str, Any]) -> str:
            keys.revoke(key=key, actor=actor_of(request))
            return f"{key.name} is revoked."

        return self.ask(request, key, question, revoke)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        key = self.get_object(request, object_id)
        over = key is None or refusal_of(key, timezone.now())
        return [] if over else cast(list[Any], super().get_actions_detail(request, object_id))

    def _show(self, request: HttpRequest, issued: keys.IssuedKey) -> HttpResponse:
        key = issued.key
        return self.show_once(
            request,
            ShownOnce(
                title="The key is ready",
                secret=issued.raw,
                name=f"{key.name}, for {key.tenant}",
                meaning=[
                    "This is the only time that it is shown. Keep it in the application's secret store now.",
                    "Later it is known by its beginning only: if it is lost, rotate it or make a new one.",
                ],
                next_url=self.url_of(key),
                next_title="I have kept it",
            ),
        )


def _of_predecessor(key: ApiKey) -> list[str]:
    """What becomes of the key that ``key`` took over from, where that one still works: its end is not put off."""
    before = key.rotated_from
    if before is None or before.expires_at is None or refusal_of(before, timezone.now()):
        return []
    return [
        f"The key that it was to replace, sb_{before.prefix}…, ends all the same: it works until "
        f"{exactly(before.expires_at)}. Rotate that one again, or move its expiry, if it is still needed."
    ]
