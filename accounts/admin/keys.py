from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts import consumption, key_narrowing, keys
from accounts.actors import actor_of
from accounts.admin.base import AlreadyMade, Question, ShownOnce, SiteModelAdmin
from accounts.admin.filters import DefaultLaneFilter, KeyStateFilter, titled
from accounts.admin.key_form import KeyForm, RotationForm
from accounts.admin.key_sections import CONSUMPTION_FIELDS, READ_AS, TO_CHANGE, TO_MAKE, to_look_at
from accounts.audience import Audience
from accounts.authentication import refusal_of
from accounts.consumption import Consumption
from accounts.form_tickets import taken_once
from accounts.formatting import EMPTY, ago, code, exactly, link, time_field
from accounts.key_rights import Rights
from accounts.key_words import ENDS, NO_DEFAULT_LANE, WORKS, default_lane_of, key_state, scopes_of
from accounts.limits import LimitName
from accounts.models import ApiKey, User


def _consumption_field(name: LimitName) -> Callable[[Any, Any], str]:
    """A read-only field of the page: what is used of the limit beside it."""

    def shown(page: Any, key: Any) -> str:
        return consumption.rendered([row for row in _consumption(key) if row.name is name], titled=False)

    shown.short_description = "Used now"  # type: ignore[attr-defined]
    return shown


def _consumption(key: Any) -> tuple[Consumption, ...]:
    """Of the key's limits, asked once for all fields of the page."""
    if not hasattr(key, "consumption"):
        key.allowance.tenant = key.tenant
        key.consumption = consumption.read(key.allowance, timezone.now())
    rows: tuple[Consumption, ...] = key.consumption
    return rows


@admin.register(ApiKey)
class ApiKeyAdmin(SiteModelAdmin):
    audience = Audience.STAFF_AND_AUDITORS
    may_add = may_change = True
    already_made = AlreadyMade(
        title="This key was made already",
        meaning=[
            "The same form came again, as when a page is reloaded. No second key was made.",
            "The key's text was shown once and cannot be shown again: if it is lost, open the key and rotate it.",
        ],
    )
    form = KeyForm
    list_display = (
        "named",
        "tenant_link",
        "state",
        "scopes_column",
        "lane",
        "narrowing",
        "used",
    )
    list_display_links = ("named",)
    list_filter = (
        KeyStateFilter,
        ("default_lane", DefaultLaneFilter),
        ("tenant", admin.RelatedOnlyFieldListFilter),
        ("created_at", titled("created", admin.DateFieldListFilter)),
    )
    list_select_related = ("default_lane",)
    search_fields = ("name", "prefix", "tenant__name", "tenant__slug")
    search_help_text = "By name, by the prefix that the key begins with, or by tenant"
    autocomplete_fields = ("tenant",)
    actions_detail = ("rotate", "revoke")
    add_fieldsets = TO_MAKE
    fieldsets = TO_CHANGE
    readonly_fields = (
        "tenant_link",
        "prefix_code",
        "state_words",
        *CONSUMPTION_FIELDS,
        "limits_table",
        "counted_for",
        "created_exactly",
        "created_by",
        "last_used",
        "rotated_from_link",
        "replaced_by_link",
        "revoked_exactly",
    )

    class Media:
        css = {"all": ("signalbox/admin/consumption.css",)}

    created_exactly = time_field("created_at", "Created")
    revoked_exactly = time_field("revoked_at", "Revoked")
    tokens_per_day_consumption = _consumption_field(LimitName.TOKENS_PER_DAY)
    tokens_per_week_consumption = _consumption_field(LimitName.TOKENS_PER_WEEK)
    tokens_per_month_consumption = _consumption_field(LimitName.TOKENS_PER_MONTH)
    requests_per_minute_consumption = _consumption_field(LimitName.REQUESTS_PER_MINUTE)
    tokens_per_minute_consumption = _consumption_field(LimitName.TOKENS_PER_MINUTE)
    concurrency_consumption = _consumption_field(LimitName.CONCURRENCY)

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

    @display(description="Narrowed to")
    def narrowing(self, key: ApiKey) -> str:
        return key_narrowing.narrowing_of(key) or EMPTY

    @display(description="Allowed lanes")
    def lanes_words(self, key: ApiKey) -> str:
        return key_narrowing.lanes_of(key)

    @display(description="Allowed models")
    def models_words(self, key: ApiKey) -> str:
        return key_narrowing.models_of(key)

    @display(description="Allowed networks")
    def networks_words(self, key: ApiKey) -> str:
        return key_narrowing.networks_of(key)

    @display(description="Limits")
    def limits_table(self, key: ApiKey) -> str:
        return consumption.rendered(_consumption(key))

    @display(description="Counted for")
    def counted_for(self, key: ApiKey) -> str:
        sharing = ApiKey.objects.filter(allowance=key.allowance_id).exclude(id=key.id)
        others = format_html_join(", ", "{}", ((link(other, f"sb_{other.prefix}…"),) for other in sharing))
        return format_html("this key and {}", others) if others else "this key alone"

    @display(description="Last used", ordering="last_used_at")
    def used(self, key: ApiKey) -> str:
        return ago(key.last_used_at, never="never")

    @display(description="Last used (to about a minute)")
    def last_used(self, key: ApiKey) -> str:
        return ago(key.last_used_at, never="never")

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

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("tenant", "allowance")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Who may not change the key reads words where the form has choices."""
        fieldsets = super().get_fieldsets(request, obj)
        changes = obj is None or self.has_change_permission(request, obj)
        return fieldsets if changes else to_look_at(fieldsets)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *READ_AS.values())

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
        rights = {
            **{name: values[name] for name in ("name", *Rights.__annotations__, "expires_at")},
            "limits": form.limits(),
        }
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
                "They share the key's limits: what either uses counts for both.",
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
