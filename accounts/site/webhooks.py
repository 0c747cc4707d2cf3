"""Where a tenant is told of its budgets, and what became of each message; owners and admins decide it.

Members see hosts and not whole URLs: what stands behind the host may be as good as a password to whoever receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from accounts.actors import actor_of
from accounts.formatting import counted
from accounts.models import WebhookDelivery, WebhookEndpoint
from accounts.refusals import ChangeRefused
from accounts.site.area import FORM, Area, in_area
from accounts.site.once import Again, Question, Shown, ask_once, posted, show_refusal
from accounts.site.site_form import SiteForm
from accounts.webhooks import deliveries, endpoints
from accounts.webhooks.endpoints import IssuedEndpoint
from accounts.webhooks.targets import target_of

#: Deliveries on an endpoint's page, the newest.
_SHOWN: Final = 50
_SECTION = "webhooks"


class EndpointForm(SiteForm):
    """Where messages go."""

    url = forms.CharField(
        label="URL",
        max_length=500,
        help_text="Begins with https://. Messages are signed; there is no password in the URL.",
        widget=forms.URLInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    description = forms.CharField(
        required=False, max_length=200, help_text="What receives them.", widget=forms.TextInput()
    )


class SecretForm(SiteForm):
    """Nothing to fill in: the question is the form."""


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint as the list shows it."""

    endpoint: WebhookEndpoint
    host: str
    waiting: int
    failed: int


@in_area()
def endpoint_list(request: HttpRequest, area: Area) -> HttpResponse:
    """The live endpoints, and the ended ones."""
    rows = [EndpointRow(one, target_of(one.url).host, one.waiting, one.failed) for one in _counted()]
    live = [row for row in rows if row.endpoint.ended_at is None]
    ended = [row for row in rows if row.endpoint.ended_at is not None]
    return area.page(request, "webhooks", {"section": _SECTION, "live": live, "ended": ended})


@in_area(FORM, managing=True)
def new_endpoint(request: HttpRequest, area: Area) -> HttpResponse:
    """Make an endpoint, and show its secret once."""
    form = EndpointForm(posted(request))

    def make() -> Shown:
        issued = endpoints.create(
            tenant=area.tenant, **form.cleaned_data, created_by=area.user, actor=actor_of(request)
        )
        return _shown(area, issued)

    question = Question(template="webhook_new", section=_SECTION, form=form, again=_again(area), context={})
    return ask_once(request, area, question, make)


@in_area(FORM, managing=True)
def one_endpoint(request: HttpRequest, area: Area, endpoint_id: UUID) -> HttpResponse:
    """An endpoint, where it can be changed, and its newest messages."""
    endpoint = _endpoint(endpoint_id)
    form = None
    if endpoint.ended_at is None:
        initial = {"url": endpoint.url, "description": endpoint.description}
        form = EndpointForm(posted(request), initial=initial)
    if request.method == "POST":
        if form is None:
            raise PermissionDenied
        if form.is_valid():
            try:
                endpoints.change(endpoint=endpoint, **form.cleaned_data, actor=actor_of(request))
            except ChangeRefused as refusal:
                show_refusal(form, refusal)
            else:
                messages.success(request, "The endpoint is changed.")
                return redirect("tenant-webhook", area.tenant.slug, endpoint.id)
    newest = endpoint.deliveries.order_by("-created_at")[:_SHOWN]
    return area.page(
        request,
        "webhook",
        {
            "section": _SECTION,
            "endpoint": endpoint,
            "host": target_of(endpoint.url).host,
            "form": form,
            "deliveries": list(newest),
        },
    )


@in_area(FORM, managing=True)
def renew_secret(request: HttpRequest, area: Area, endpoint_id: UUID) -> HttpResponse:
    """Give an endpoint a new secret, and show it once."""
    endpoint = _endpoint(endpoint_id)
    question = Question(
        template="webhook_secret",
        section=_SECTION,
        form=SecretForm(posted(request)),
        again=_again(area),
        context={"endpoint": endpoint, "host": target_of(endpoint.url).host},
    )

    def renew() -> Shown:
        return _shown(area, endpoints.renew_secret(endpoint=endpoint, actor=actor_of(request)))

    return ask_once(request, area, question, renew)


@in_area(FORM, managing=True)
def end_endpoint(request: HttpRequest, area: Area, endpoint_id: UUID) -> HttpResponse:
    """Ask, then send nothing more there."""
    endpoint = _endpoint(endpoint_id)
    if request.method == "POST":
        endpoints.end(endpoint=endpoint, actor=actor_of(request))
        messages.success(request, "The endpoint has ended.")
        return redirect("tenant-webhooks", area.tenant.slug)
    context = {"section": _SECTION, "endpoint": endpoint, "host": target_of(endpoint.url).host}
    return area.page(request, "webhook_end", context)


@in_area(("POST",), managing=True)
def replay(request: HttpRequest, area: Area, endpoint_id: UUID, delivery_id: UUID) -> HttpResponse:
    """Send one message again."""
    delivery = WebhookDelivery.objects.filter(id=delivery_id, endpoint=endpoint_id).first()
    if delivery is None:
        raise Http404("The endpoint has no such message.")
    try:
        sent = deliveries.replay(deliveries=[delivery], actor=actor_of(request))
    except ChangeRefused as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, f"{counted(sent, 'message')} sent again.")
    return redirect("tenant-webhook", area.tenant.slug, endpoint_id)


def _counted() -> QuerySet[Any]:
    state = WebhookDelivery.State
    found: QuerySet[Any] = WebhookEndpoint.objects.annotate(
        waiting=Count("deliveries", filter=Q(deliveries__state=state.PENDING)),
        failed=Count("deliveries", filter=Q(deliveries__state=state.FAILED)),
    )
    return found.order_by("created_at")


def _endpoint(endpoint_id: UUID) -> WebhookEndpoint:
    endpoint = WebhookEndpoint.objects.filter(id=endpoint_id).first()
    if endpoint is None:
        raise Http404("The tenant has no such webhook endpoint.")
    return endpoint


def _shown(area: Area, issued: IssuedEndpoint) -> Shown:
    return Shown(
        title="The signing secret",
        secret=issued.secret,
        name=issued.endpoint.url,
        meaning=[
            "This is the only time that it is shown. Give it to the program that receives the messages, which checks "
            "their signatures with it.",
            "If it is lost, renew it.",
        ],
        next_url=reverse("tenant-webhook", args=[area.tenant.slug, issued.endpoint.id]),
    )


def _again(area: Area) -> Again:
    return Again(
        title="This was done already",
        meaning=[
            "The same form came again, as when a page is reloaded. Nothing was done now.",
            "The secret was shown once and cannot be shown again: if it is lost, renew it.",
        ],
        next_url=reverse("tenant-webhooks", args=[area.tenant.slug]),
        next_title="To the webhooks",
    )
