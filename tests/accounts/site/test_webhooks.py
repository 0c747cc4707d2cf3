"""Where a tenant is told of its budgets, in the hands of its own owners and admins."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from accounts.audit.reading import disclose
from accounts.models import AuditEvent, Role, Tenant, WebhookDelivery, WebhookEndpoint
from accounts.tenancy import every_tenant
from accounts.webhooks import endpoints
from tests.accounts.site.conftest import AsRole
from tests.factories import ACTOR, TenantFactory
from tests.fixtures.stored_text import stored_text

_SECRET = re.compile(r"whsec_[0-9A-Za-z+/=]+")
_URL = "https://example.com/hooks/a-token-of-ours"


def url(page: str, *arguments: Any) -> str:
    return reverse(page, args=["rail", *arguments])


def send(client: Client, where: str, **fields: Any) -> Any:
    return client.post(where, {"ticket": client.get(where).context["ticket"], **fields})


def endpoint_of(tenant: Tenant) -> WebhookEndpoint:
    return endpoints.create(tenant=tenant, url=_URL, actor=ACTOR).endpoint


def delivery_of(endpoint: WebhookEndpoint) -> WebhookDelivery:
    with every_tenant("test"):
        made: WebhookDelivery = WebhookDelivery.objects.create(
            endpoint=endpoint,
            event_id=uuid4(),
            event_type="budget.reached",
            payload={},
            state=WebhookDelivery.State.FAILED,
            attempts=9,
            last_status=503,
            last_error="Service unavailable",
        )
    return made


def reread(row: Any) -> Any:
    with every_tenant("test"):
        return type(row).objects.get(pk=row.pk)


def test_an_endpoint_is_made_and_its_secret_shown_once(rail: Tenant, as_owner: Client) -> None:
    where = url("tenant-webhook-new")
    sent = {"url": _URL, "description": "pager", "ticket": as_owner.get(where).context["ticket"]}
    answer = as_owner.post(where, sent)
    [secret] = _SECRET.findall(answer.content.decode())
    assert "no-store" in answer["Cache-Control"]
    assert secret not in stored_text()
    again = as_owner.post(where, sent).content.decode()
    assert "This was done already" in again
    assert not _SECRET.search(again)
    with every_tenant("test"):
        endpoint = WebhookEndpoint.objects.get()
    assert (endpoint.tenant_id, endpoint.url, endpoint.description) == (rail.id, _URL, "pager")
    assert not _SECRET.search(as_owner.get(url("tenant-webhook", endpoint.id)).content.decode())
    assert disclose(AuditEvent.objects.get()).actor_name == "the owner"


@pytest.mark.parametrize(
    "target", ["http://example.com/", "https://127.0.0.1/", "https://user:pass@example.com/"]
)
def test_a_url_that_nothing_is_sent_to_is_refused_at_its_field(as_owner: Client, target: str) -> None:
    answer = send(as_owner, url("tenant-webhook-new"), url=target)
    assert "url" in answer.context["form"].errors
    with every_tenant("test"):
        assert not WebhookEndpoint.objects.exists()


def test_a_secret_is_renewed_and_an_endpoint_moved_and_ended(rail: Tenant, as_owner: Client) -> None:
    endpoint = endpoint_of(rail)
    assert _SECRET.search(send(as_owner, url("tenant-webhook-secret", endpoint.id)).content.decode())
    assert reread(endpoint).secret_version == 2
    as_owner.post(url("tenant-webhook", endpoint.id), {"url": "https://example.org/", "description": ""})
    assert reread(endpoint).url == "https://example.org/"
    page = as_owner.post(url("tenant-webhook-end", endpoint.id), follow=True).content.decode()
    assert reread(endpoint).ended_at
    assert "Endpoints that have ended (1)" in page
    assert as_owner.get(url("tenant-webhook", endpoint.id)).context["form"] is None
    answer = as_owner.post(url("tenant-webhook", endpoint.id), {"url": _URL, "description": ""})
    assert answer.status_code == 403


def test_a_message_is_sent_again_by_hand(rail: Tenant, as_owner: Client) -> None:
    delivery = delivery_of(endpoint_of(rail))
    page = as_owner.get(url("tenant-webhook", delivery.endpoint_id)).content.decode()
    assert "503 Service unavailable" in page
    where = url("tenant-webhook-replay", delivery.endpoint_id, delivery.id)
    assert "1 message sent again." in as_owner.post(where, follow=True).content.decode()
    assert reread(delivery).state == WebhookDelivery.State.PENDING


@pytest.mark.parametrize("role", [Role.MEMBER, Role.VIEWER])
def test_who_only_looks_sees_hosts_and_sends_nothing(rail: Tenant, as_role: AsRole, role: Role) -> None:
    client = as_role(role)
    delivery = delivery_of(endpoint_of(rail))
    page = client.get(url("tenant-webhooks")).content.decode()
    assert "example.com" in page
    assert "a-token-of-ours" not in page
    where = url("tenant-webhook-replay", delivery.endpoint_id, delivery.id)
    assert client.post(where).status_code == 403
    assert reread(delivery).state == WebhookDelivery.State.FAILED


def test_another_tenant_s_message_is_not_there(rail: Tenant, as_owner: Client) -> None:
    own = endpoint_of(rail)
    foreign = delivery_of(endpoint_of(TenantFactory()))
    for endpoint_id in (own.id, foreign.endpoint_id):
        where = url("tenant-webhook-replay", endpoint_id, foreign.id)
        assert as_owner.post(where).status_code == 404
    assert reread(foreign).state == WebhookDelivery.State.FAILED


def test_the_list_costs_as_much_for_many_as_for_few(
    rail: Tenant, as_owner: Client, django_assert_max_num_queries: Any
) -> None:
    delivery_of(endpoint_of(rail))
    with django_assert_max_num_queries(9) as few:
        as_owner.get(url("tenant-webhooks"))
    for number in range(8):
        endpoints.create(tenant=rail, url=f"https://example.com/{number}", actor=ACTOR)
    with django_assert_max_num_queries(len(few)):
        as_owner.get(url("tenant-webhooks"))
