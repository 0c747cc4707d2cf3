from __future__ import annotations

import hashlib
import logging
from typing import Any

import pytest
from django.utils import timezone

from accounts import pepper
from accounts.models import AuditEvent, WebhookEndpoint
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from accounts.webhooks import endpoints, signing
from tests.accounts.webhooks.conftest import Allow
from tests.factories import ACTOR, TenantFactory, WebhookEndpointFactory
from tests.fixtures.stored_text import stored_text

pytestmark = pytest.mark.django_db

URL = "https://hooks.example.com/budget"


def live_urls() -> list[str]:
    with every_tenant("test"):
        return [endpoint.url for endpoint in WebhookEndpoint.objects.filter(ended_at=None)]


def refused(verb: Any, **arguments: Any) -> ChangeRefused:
    with pytest.raises(ChangeRefused) as refusal:
        verb(**arguments, actor=ACTOR)
    return refusal.value


def test_a_new_endpoint_s_secret_is_returned_once_and_kept_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tenant = TenantFactory()
    issued = endpoints.create(tenant=tenant, url=f" {URL} ", description="chat ops", actor=ACTOR)
    assert issued.secret == signing.secret_of(issued.endpoint)
    assert issued.endpoint.url == URL
    assert issued.endpoint.pepper_id == pepper.current_id()
    bare = issued.secret.removeprefix("whsec_")
    assert bare not in stored_text()
    assert bare not in caplog.text
    assert bare not in repr(issued)
    event = AuditEvent.objects.get()
    assert (event.action, event.object_name, event.tenant_id) == (
        "webhook_endpoint.create",
        "hooks.example.com",
        tenant.id,
    )
    assert event.after is not None
    assert event.after["url"] == "https://hooks.example.com/***"
    assert event.after["url_sha256"] == hashlib.sha256(URL.encode()).hexdigest()


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://127.0.0.1/",
        "https://[::1]:8443/",
        "https://169.254.169.254/latest/meta-data",
        "https://user:password@hooks.example.com/",
        "https://hooks.example.com/?key=sb_0123456789ab_" + "x" * 49,
        "not a URL",
    ],
)
def test_a_url_that_nothing_is_sent_to_is_refused_at_its_field(url: str) -> None:
    refusal = refused(endpoints.create, tenant=TenantFactory(), url=url)
    assert refusal.field == "url"
    assert live_urls() == []
    assert not AuditEvent.objects.exists()


def test_an_address_that_the_operator_allows_is_taken(allow: Allow) -> None:
    allow("10.0.0.0/8")
    endpoints.create(tenant=TenantFactory(), url="https://10.1.2.3/", actor=ACTOR)
    assert live_urls() == ["https://10.1.2.3/"]


def test_a_url_is_told_once_and_tenants_do_not_mind_each_other() -> None:
    tenant = TenantFactory()
    endpoints.create(tenant=tenant, url=URL, actor=ACTOR)
    assert refused(endpoints.create, tenant=tenant, url=URL).code is ChangeRefusal.NAME_TAKEN
    endpoints.create(tenant=TenantFactory(), url=URL, actor=ACTOR)
    other = endpoints.create(tenant=tenant, url=URL + "/2", actor=ACTOR).endpoint
    refusal = refused(endpoints.change, endpoint=other, url=URL, description="")
    assert (refusal.code, refusal.field) == (ChangeRefusal.NAME_TAKEN, "url")


def test_a_tenant_has_ten_endpoints_at_most_and_ended_ones_do_not_count() -> None:
    tenant = TenantFactory()
    made = [
        endpoints.create(tenant=tenant, url=f"{URL}/{n}", actor=ACTOR).endpoint
        for n in range(endpoints.MOST_ENDPOINTS)
    ]
    refusal = refused(endpoints.create, tenant=tenant, url=URL)
    assert refusal.code is ChangeRefusal.TOO_MANY_ENDPOINTS
    endpoints.end(endpoint=made[0], actor=ACTOR)
    endpoints.create(tenant=tenant, url=URL, actor=ACTOR)


def test_a_closed_tenant_gets_none() -> None:
    tenant = TenantFactory(closed_at=timezone.now())
    assert refused(endpoints.create, tenant=tenant, url=URL).code is ChangeRefusal.TENANT_CLOSED


def test_a_change_keeps_the_secret_and_is_recorded_once() -> None:
    issued = endpoints.create(tenant=TenantFactory(), url=URL, actor=ACTOR)
    moved = endpoints.change(endpoint=issued.endpoint, url=URL + "/v2", description="new", actor=ACTOR)
    endpoints.change(endpoint=issued.endpoint, url=URL + "/v2", description="new", actor=ACTOR)
    assert live_urls() == [URL + "/v2"]
    assert signing.secret_of(moved) == issued.secret
    assert [event.action for event in AuditEvent.objects.order_by("sequence")] == [
        "webhook_endpoint.create",
        "webhook_endpoint.change",
    ]


def test_a_new_secret_replaces_the_old_one() -> None:
    issued = endpoints.create(tenant=TenantFactory(), url=URL, actor=ACTOR)
    renewed = endpoints.renew_secret(endpoint=issued.endpoint, actor=ACTOR)
    assert renewed.secret != issued.secret
    assert signing.secret_of(renewed.endpoint) == renewed.secret
    event = AuditEvent.objects.order_by("sequence").last()
    assert event is not None
    assert event.before is not None
    assert event.after is not None
    assert (event.action, event.before["secret_version"], event.after["secret_version"]) == (
        "webhook_endpoint.renew_secret",
        1,
        2,
    )


def test_an_ended_endpoint_stays_ended() -> None:
    endpoint: WebhookEndpoint = WebhookEndpointFactory()
    ended = endpoints.end(endpoint=endpoint, actor=ACTOR)
    again = endpoints.end(endpoint=endpoint, actor=ACTOR)
    assert ended.ended_at == again.ended_at is not None
    assert [event.action for event in AuditEvent.objects.all()] == ["webhook_endpoint.end"]
    for verb, arguments in (
        (endpoints.change, {"url": URL, "description": ""}),
        (endpoints.renew_secret, {}),
    ):
        assert refused(verb, endpoint=endpoint, **arguments).code is ChangeRefusal.ENDPOINT_ENDED
