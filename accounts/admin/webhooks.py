"""Where tenants are told by machine, and what became of each message."""

from __future__ import annotations

import json
from typing import Any, cast

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.html import format_html
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from accounts.actors import actor_of
from accounts.admin.base import AlreadyMade, Question, RecordAdmin, ShownOnce, SiteModelAdmin
from accounts.admin.filters import EndedFilter, titled
from accounts.form_tickets import taken_once
from accounts.formatting import EMPTY, ago, code, counted, link, time_field
from accounts.models import User, WebhookDelivery, WebhookEndpoint
from accounts.refusals import ChangeRefused
from accounts.webhooks import deliveries, endpoints

_STATE_COLOURS = {"Waiting": "info", "Delivered": "success", "Given up": "danger"}


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(SiteModelAdmin):
    may_add = may_change = True
    already_made = AlreadyMade(
        title="This endpoint was made already",
        meaning=[
            "The same form came again, as when a page is reloaded. No second endpoint was made.",
            "Its secret was shown once and cannot be shown again: if it is lost, open the endpoint and renew it.",
        ],
    )
    list_display = ("url_text", "tenant_link", "state", "description", "created")
    list_display_links = ("url_text",)
    list_filter = (
        EndedFilter,
        ("tenant", admin.RelatedOnlyFieldListFilter),
        ("created_at", titled("created", admin.DateFieldListFilter)),
    )
    list_select_related = ("tenant",)
    search_fields = ("url", "description", "tenant__name", "tenant__slug")
    search_help_text = "By URL, description or tenant"
    autocomplete_fields = ("tenant",)
    ordering = ("tenant__name", "url")
    actions_detail = ("renew_secret", "end")
    add_fieldsets = (
        (
            None,
            {
                "description": "The tenant is told here when a budget comes to 80 % and to 100 % of its limit. "
                "Messages are signed; the secret to check that with is shown once, right after this page, and "
                "stored nowhere.",
                "fields": ("tenant", "url", "description"),
            },
        ),
    )
    fieldsets = (
        (None, {"fields": ("tenant_link", "url", "description", "state")}),
        (
            "Its life",
            {
                "fields": ("secret_number", "created_exactly", "created_by", "ended_exactly"),
                "description": "Messages that wait go where the URL says when they are sent.",
            },
        ),
    )
    readonly_fields = (
        "tenant_link",
        "state",
        "secret_number",
        "created_exactly",
        "created_by",
        "ended_exactly",
    )
    created_exactly = time_field("created_at", "Created")
    ended_exactly = time_field("ended_at", "Ended")

    @display(description="URL", ordering="url")
    def url_text(self, endpoint: WebhookEndpoint) -> str:
        return endpoint.url

    @display(description="Tenant", ordering="tenant__name")
    def tenant_link(self, endpoint: WebhookEndpoint) -> str:
        return link(endpoint.tenant)

    @display(description="State", label={"Live": "success", "Ended": "warning"})
    def state(self, endpoint: WebhookEndpoint) -> str:
        return "Ended" if endpoint.ended_at else "Live"

    @display(description="Created", ordering="created_at")
    def created(self, endpoint: WebhookEndpoint) -> str:
        return ago(endpoint.created_at)

    @display(description="Secret, number")
    def secret_number(self, endpoint: WebhookEndpoint) -> int:
        return endpoint.secret_version

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "url":
            kwargs["assume_scheme"] = "https"
            kwargs["help_text"] = (
                "https only, of a host that the Internet reaches. Put nothing secret into it."
            )
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        ended = isinstance(obj, WebhookEndpoint) and obj.ended_at is not None
        return not ended and super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        values = form.cleaned_data
        fields = {"url": values["url"], "description": values["description"]}
        if change:
            endpoints.change(endpoint=obj, **fields, actor=actor_of(request))
            return
        with taken_once(request):
            issued = endpoints.create(
                tenant=values["tenant"],
                **fields,
                created_by=cast(User, request.user),
                actor=actor_of(request),
            )
        obj.pk = issued.endpoint.pk
        obj.issued = issued

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return self._show(request, obj.issued)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        endpoint = self.get_object(request, object_id)
        live = endpoint is not None and endpoint.ended_at is None
        return cast(list[Any], super().get_actions_detail(request, object_id)) if live else []

    @action(description="New secret", icon="autorenew", url_path="renew-secret", permissions=["operate"])
    def renew_secret(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        endpoint = self.object_or_404(request, object_id)
        question = Question(
            title="Give this endpoint a new secret?",
            meaning=[
                f"Messages to {endpoint.url} are signed with the new secret from this moment on, and not with the old "
                "one any more.",
                "What the receiver refuses until it knows the new one is sent again, for about a day.",
            ],
            submit="Renew and show the secret",
            already_made=AlreadyMade(
                title="The secret was renewed already",
                meaning=[
                    "The same form came again, as when a page is reloaded. Nothing was changed now.",
                    "The secret was shown once and cannot be shown again: if it is lost, renew it again.",
                ],
            ),
        )

        def renew(values: dict[str, Any]) -> HttpResponse:
            issued = endpoints.renew_secret(endpoint=endpoint, actor=actor_of(request))
            return self._show(request, issued)

        return self.ask(request, endpoint, question, renew)

    @action(
        description="End", icon="block", url_path="end", permissions=["operate"], variant=ActionVariant.DANGER
    )
    def end(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        endpoint = self.object_or_404(request, object_id)
        question = Question(
            title="End this endpoint?",
            meaning=[
                f"Nothing more is sent to {endpoint.url}, and what waits is given up.",
                "This cannot be undone; a new endpoint with the same URL gets a secret of its own.",
            ],
            submit="End the endpoint",
            danger=True,
        )

        def end(values: dict[str, Any]) -> str:
            endpoints.end(endpoint=endpoint, actor=actor_of(request))
            return "The endpoint has ended."

        return self.ask(request, endpoint, question, end)

    def _show(self, request: HttpRequest, issued: endpoints.IssuedEndpoint) -> HttpResponse:
        endpoint = issued.endpoint
        return self.show_once(
            request,
            ShownOnce(
                title="The endpoint's secret",
                secret=issued.secret,
                name=f"{endpoint.url}, for {endpoint.tenant}",
                meaning=[
                    "This is the only time that it is shown. Keep it where the receiver checks signatures, now.",
                    "If it gets lost, give the endpoint a new one.",
                ],
                next_url=self.url_of(endpoint),
                next_title="I have kept it",
            ),
        )


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(RecordAdmin):
    list_display = ("event", "tenant_link", "url_text", "state_label", "attempts", "answer", "made")
    list_display_links = ("event",)
    list_filter = (
        "state",
        ("event_type", titled("event", admin.AllValuesFieldListFilter)),
        ("endpoint__tenant", titled("tenant", admin.RelatedOnlyFieldListFilter)),
        ("created_at", titled("made", admin.DateFieldListFilter)),
    )
    list_select_related = ("endpoint__tenant",)
    search_fields = ("endpoint__url", "endpoint__tenant__name", "endpoint__tenant__slug", "event_type")
    search_help_text = "By URL, tenant or event"
    sortable_by = ()
    actions = ("replay_selected",)
    actions_detail = ("replay",)
    fieldsets = (
        (
            "The message",
            {
                "fields": ("event", "message_id", "payload_text"),
                "description": "Sent until it is taken, up to 8 times over about a day.",
            },
        ),
        (
            "What became of it",
            {
                "fields": (
                    "state_label",
                    "attempts",
                    "last_status",
                    "last_error",
                    "made_exactly",
                    "next_exactly",
                    "delivered_exactly",
                )
            },
        ),
        ("Whose", {"fields": ("tenant_link", "endpoint_link")}),
    )
    readonly_fields = (
        "event",
        "message_id",
        "payload_text",
        "state_label",
        "made_exactly",
        "next_exactly",
        "delivered_exactly",
        "tenant_link",
        "endpoint_link",
    )
    made_exactly = time_field("created_at", "Made")
    next_exactly = time_field("next_attempt_at", "Next attempt")
    delivered_exactly = time_field("delivered_at", "Delivered")

    @display(description="Event")
    def event(self, delivery: WebhookDelivery) -> str:
        return delivery.event_type

    @display(description="webhook-id")
    def message_id(self, delivery: WebhookDelivery) -> str:
        return code(deliveries.message_id(delivery))

    @display(description="Body")
    def payload_text(self, delivery: WebhookDelivery) -> str:
        return format_html(
            '<pre class="sb-code">{}</pre>', json.dumps(delivery.payload, indent=2, ensure_ascii=False)
        )

    @display(description="Tenant")
    def tenant_link(self, delivery: WebhookDelivery) -> str:
        return link(delivery.endpoint.tenant)

    @display(description="To")
    def url_text(self, delivery: WebhookDelivery) -> str:
        return delivery.endpoint.url

    @display(description="To")
    def endpoint_link(self, delivery: WebhookDelivery) -> str:
        return link(delivery.endpoint)

    @display(description="State", label=_STATE_COLOURS)
    def state_label(self, delivery: WebhookDelivery) -> str:
        return str(delivery.get_state_display())

    @display(description="Last answer")
    def answer(self, delivery: WebhookDelivery) -> str:
        return delivery.last_error or (str(delivery.last_status) if delivery.last_status else EMPTY)

    @display(description="Made")
    def made(self, delivery: WebhookDelivery) -> str:
        return ago(delivery.created_at)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        delivery = self.get_object(request, object_id)
        live = delivery is not None and delivery.endpoint.ended_at is None
        return cast(list[Any], super().get_actions_detail(request, object_id)) if live else []

    @action(description="Send again", icon="replay", url_path="replay", permissions=["operate"])
    def replay(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        delivery = self.object_or_404(request, object_id)
        question = Question(
            title="Send this message again?",
            meaning=[
                f"It goes to {delivery.endpoint.url} within seconds, and again until it is taken, as a new one does.",
                "Its webhook-id stays the same, so that a receiver that had it already can know it.",
            ],
            submit="Send it again",
        )

        def replay(values: dict[str, Any]) -> str:
            deliveries.replay(deliveries=[delivery], actor=actor_of(request))
            return "The message is sent again."

        return self.ask(request, delivery, question, replay)

    @admin.action(description="Send the selected messages again", permissions=["operate"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[WebhookDelivery]) -> None:
        try:
            count = deliveries.replay(deliveries=queryset, actor=actor_of(request))
        except ChangeRefused as refusal:
            messages.error(request, f"{refusal.message} None of the selected messages is sent again.")
            return
        messages.success(request, f"{counted(count, 'message')} will be sent again.")
