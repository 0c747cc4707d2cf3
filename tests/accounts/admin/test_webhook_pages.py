from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AuditEvent, User, WebhookDelivery, WebhookEndpoint
from accounts.tenancy import every_tenant
from accounts.webhooks import signing
from tests.factories import (
    BudgetEventFactory,
    TenantFactory,
    WebhookDeliveryFactory,
    WebhookEndpointFactory,
)
from tests.fixtures.admin import filled, save
from tests.fixtures.stored_text import stored_text

_SECRET = re.compile(r"whsec_[0-9A-Za-z+/]{43}=")
URL = "https://hooks.example.com/budget"


def _url(name: str, *arguments: object, model: str = "webhookendpoint") -> str:
    return reverse(f"admin:accounts_{model}_{name}", args=arguments)


def secrets_in(answer: Any) -> set[str]:
    return set(_SECRET.findall(answer.content.decode()))


def test_a_new_endpoint_s_secret_is_shown_once_and_kept_nowhere(
    as_operator: Client, operator: User, valkey: Any
) -> None:
    tenant = TenantFactory(name="Rail")
    values = {"tenant": tenant.id, "url": URL, "description": "chat ops"}
    answer = save(as_operator, _url("add"), values)
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    [secret] = secrets_in(answer)
    with every_tenant("test"):
        endpoint = WebhookEndpoint.objects.get()
    assert secret == signing.secret_of(endpoint)
    assert endpoint.created_by == operator
    bare = secret.removeprefix("whsec_")
    assert bare not in stored_text()
    assert bare not in str([session.get_decoded() for session in Session.objects.all()])
    assert all(bare.encode() not in (valkey.dump(name) or b"") for name in valkey.scan_iter())
    for page in (_url("changelist"), _url("change", endpoint.pk), _url("history", endpoint.pk)):
        shown = as_operator.get(page)
        assert shown.status_code == 200
        assert not secrets_in(shown)
    assert AuditEvent.objects.get().action == "webhook_endpoint.create"
    assert "webhook_endpoint.create" in as_operator.get(_url("history", endpoint.pk)).content.decode()


def test_reloading_that_page_makes_no_second_endpoint(as_operator: Client) -> None:
    sent = filled(as_operator, _url("add"), {"tenant": TenantFactory().id, "url": URL, "description": ""})
    assert secrets_in(as_operator.post(_url("add"), sent))
    again = as_operator.post(_url("add"), sent)
    assert "This endpoint was made already" in again.content.decode()
    assert not secrets_in(again)
    with every_tenant("test"):
        assert WebhookEndpoint.objects.count() == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://hooks.example.com/", "https only"),
        ("https://10.0.0.7/", "not public"),
        ("", "This field is required"),
    ],
)
def test_a_url_that_nothing_is_sent_to_is_refused_in_the_form(
    as_operator: Client, url: str, said: str
) -> None:
    answer = save(as_operator, _url("add"), {"tenant": TenantFactory().id, "url": url, "description": ""})
    assert said in answer.content.decode()
    with every_tenant("test"):
        assert not WebhookEndpoint.objects.exists()


def test_an_endpoint_is_changed_renewed_and_ended_through_its_verbs(as_operator: Client) -> None:
    endpoint: Any = WebhookEndpointFactory()
    old = signing.secret_of(endpoint)
    as_operator.post(_url("change", endpoint.pk), {"url": URL, "description": "moved"})
    assert "not with the old" in as_operator.get(_url("renew_secret", endpoint.pk)).content.decode()
    [new] = secrets_in(save(as_operator, _url("renew_secret", endpoint.pk)))
    with every_tenant("test"):
        endpoint = WebhookEndpoint.objects.get()
    assert (endpoint.url, endpoint.description, endpoint.secret_version) == (URL, "moved", 2)
    assert new == signing.secret_of(endpoint) != old
    assert as_operator.get(_url("end", endpoint.pk)).status_code == 200
    as_operator.post(_url("end", endpoint.pk))
    with every_tenant("test"):
        assert WebhookEndpoint.objects.get().ended_at is not None
    page = as_operator.get(_url("change", endpoint.pk)).content.decode()
    assert _url("end", endpoint.pk) not in page
    assert 'name="url"' not in page
    assert [event.action for event in AuditEvent.objects.order_by("sequence")] == [
        "webhook_endpoint.change",
        "webhook_endpoint.renew_secret",
        "webhook_endpoint.end",
    ]


def test_the_delivery_log_shows_what_became_of_a_message_and_sends_it_again(as_operator: Client) -> None:
    delivery = WebhookDeliveryFactory(
        state="failed", attempts=8, next_attempt_at=None, last_status=503, last_error="Answered 503."
    )
    listed = as_operator.get(_url("changelist", model="webhookdelivery"), {"state": "failed"})
    assert "Answered 503." in listed.content.decode()
    page = as_operator.get(_url("change", delivery.pk, model="webhookdelivery")).content.decode()
    assert f"evt_{delivery.event_id.hex}" in page
    assert "&quot;percent&quot;: 80" in page
    assert (
        "stays the same"
        in as_operator.get(_url("replay", delivery.pk, model="webhookdelivery")).content.decode()
    )
    as_operator.post(_url("replay", delivery.pk, model="webhookdelivery"))
    with every_tenant("test"):
        after = WebhookDelivery.objects.get()
    assert (after.state, after.attempts) == ("pending", 0)
    assert after.next_attempt_at is not None
    assert AuditEvent.objects.get().action == "webhook_delivery.replay"


def test_several_messages_are_sent_again_at_once_or_none(as_operator: Client) -> None:
    made = [WebhookDeliveryFactory(state="failed", next_attempt_at=None) for _ in range(2)]
    gone = WebhookDeliveryFactory(state="failed", next_attempt_at=None, endpoint__ended_at=timezone.now())
    sent = {"action": "replay_selected", "_selected_action": [str(one.pk) for one in (*made, gone)]}
    url = _url("changelist", model="webhookdelivery")
    assert "None of the selected" in as_operator.post(url, sent, follow=True).content.decode()
    sent["_selected_action"].pop()
    assert "2 messages will be sent again" in as_operator.post(url, sent, follow=True).content.decode()
    with every_tenant("test"):
        assert WebhookDelivery.objects.filter(state="pending").count() == 2
    assert AuditEvent.objects.count() == 2


def test_whoever_may_only_look_sees_the_log_and_changes_nothing(as_onlooker: Client) -> None:
    delivery = WebhookDeliveryFactory(state="failed", next_attempt_at=None)
    event = BudgetEventFactory()
    endpoint = delivery.endpoint
    for page in (
        _url("change", delivery.pk, model="webhookdelivery"),
        _url("change", event.pk, model="budgetevent"),
        _url("change", endpoint.pk),
    ):
        assert as_onlooker.get(page).status_code == 200
    for page in (
        _url("replay", delivery.pk, model="webhookdelivery"),
        _url("renew_secret", endpoint.pk),
        _url("end", endpoint.pk),
    ):
        assert as_onlooker.post(page).status_code == 403
    assert not AuditEvent.objects.exists()


def test_budget_events_are_listed_with_their_figures(as_operator: Client) -> None:
    BudgetEventFactory(subject="lane high", percent=100, used=1000)
    BudgetEventFactory(told_at=timezone.now())
    page = as_operator.get(_url("changelist", model="budgetevent"), {"percent": "100"}).content.decode()
    assert "lane high" in page
    assert "1,000 of 1,000" in page
    assert "not yet" in page
    assert "812 of 1,000" not in page


def test_lists_cost_as_much_for_many_messages_as_for_few(
    as_operator: Client, django_assert_max_num_queries: Any
) -> None:
    url = _url("changelist", model="webhookdelivery")
    WebhookDeliveryFactory()
    with django_assert_max_num_queries(14) as few:
        as_operator.get(url)
    for _ in range(12):
        WebhookDeliveryFactory()
    with django_assert_max_num_queries(len(few)):
        as_operator.get(url)
