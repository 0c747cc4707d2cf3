"""From the queue in the database to a receiver, and what happens when it is not taken."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import time_machine
from structlog.testing import capture_logs

from accounts.models import AuditEvent, WebhookDelivery, WebhookEndpoint
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.sole_passes import sole_pass
from accounts.tenancy import every_tenant
from accounts.webhooks import deliveries, endpoints, sending, signing
from accounts.webhooks.retries import MOST_ATTEMPTS
from tests.accounts.webhooks.conftest import Allow
from tests.accounts.webhooks.receiver import HOST, OTHER_HOST, Receiver
from tests.factories import ACTOR, TenantFactory, WebhookDeliveryFactory, WebhookEndpointFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _allowed(allow: Allow) -> None:
    allow(HOST, OTHER_HOST)


def delivery_to(receiver: Receiver, **fields: Any) -> WebhookDelivery:
    endpoint = fields.pop("endpoint", None) or WebhookEndpointFactory(url=receiver.url())
    made: WebhookDelivery = WebhookDeliveryFactory(endpoint=endpoint, **fields)
    return made


def now_of(delivery: WebhookDelivery) -> WebhookDelivery:
    with every_tenant("test"):
        found: WebhookDelivery = WebhookDelivery.objects.select_related("endpoint").get(id=delivery.id)
    return found


def verified(message: Any, secret: str) -> bool:
    """What a receiver does by the convention, written as its documentation says."""
    signed = (
        f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode() + message.body
    )
    key = base64.b64decode(secret.split("_", 1)[1])
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    versions = [part.split(",", 1) for part in message.headers["webhook-signature"].split()]
    return any(version == "v1" and hmac.compare_digest(code, expected) for version, code in versions)


def test_an_event_goes_once_to_each_live_endpoint_of_its_tenant() -> None:
    tenant = TenantFactory()
    live = [WebhookEndpointFactory(tenant=tenant) for _ in range(2)]
    WebhookEndpointFactory(tenant=tenant, ended_at=NOON)
    WebhookEndpointFactory()
    event_id = uuid.uuid4()
    with every_tenant("test"):
        for _ in range(3):
            deliveries.queue(tenant, event_id, "budget.warning", {"percent": 80}, NOON)
        found = list(WebhookDelivery.objects.order_by("endpoint__url"))
    assert {one.endpoint_id for one in found} == {endpoint.id for endpoint in live}
    assert len(found) == 2
    assert found[0].payload == {
        "type": "budget.warning",
        "timestamp": "2026-03-01T12:00:00Z",
        "data": {"percent": 80},
    }


def test_a_closed_tenant_is_told_nothing() -> None:
    endpoint = WebhookEndpointFactory(tenant__closed_at=NOON)
    with every_tenant("test"):
        deliveries.queue(endpoint.tenant, uuid.uuid4(), "budget.warning", {}, NOON)
        assert not WebhookDelivery.objects.exists()


def test_what_is_due_is_sent_signed_and_marked_delivered(receiver: Receiver) -> None:
    issued = endpoints.create(tenant=TenantFactory(), url=receiver.url(), actor=ACTOR)
    delivery = delivery_to(receiver, endpoint=issued.endpoint, payload={"type": "x", "text": "größer"})
    assert deliveries.send_due() == 1
    [message] = receiver.received
    assert verified(message, issued.secret)
    assert not verified(message, signing.secret_of(WebhookEndpointFactory()))
    assert json.loads(message.body) == {"type": "x", "text": "größer"}
    assert message.headers["webhook-id"] == f"evt_{delivery.event_id.hex}"
    after = now_of(delivery)
    assert (after.state, after.attempts, after.last_status, after.last_error) == ("delivered", 1, 204, "")
    assert after.delivered_at is not None
    assert after.next_attempt_at is None
    assert deliveries.send_due() == 0


def test_a_renewed_secret_signs_what_waits(receiver: Receiver) -> None:
    issued = endpoints.create(tenant=TenantFactory(), url=receiver.url(), actor=ACTOR)
    delivery_to(receiver, endpoint=issued.endpoint)
    renewed = endpoints.renew_secret(endpoint=issued.endpoint, actor=ACTOR)
    deliveries.send_due()
    [message] = receiver.received
    assert verified(message, renewed.secret)
    assert not verified(message, issued.secret)


def test_what_is_not_taken_is_sent_again_later_with_its_id_and_given_up_in_the_end(
    receiver: Receiver,
) -> None:
    receiver.status = 503
    with time_machine.travel(NOON, tick=False) as clock, capture_logs() as log:
        delivery = delivery_to(receiver)
        waits = []
        for attempt in range(1, MOST_ATTEMPTS + 1):
            assert deliveries.send_due() == 1
            after = now_of(delivery)
            assert (after.attempts, after.last_status) == (attempt, 503)
            assert "503" in after.last_error
            if attempt < MOST_ATTEMPTS:
                assert after.state == "pending"
                assert after.next_attempt_at is not None
                waits.append(after.next_attempt_at - datetime.now(UTC))
                assert deliveries.send_due() == 0
                clock.move_to(after.next_attempt_at)
        assert (now_of(delivery).state, now_of(delivery).next_attempt_at) == ("failed", None)
        clock.shift(timedelta(days=2))
        assert deliveries.send_due() == 0
    # The last two are both the longest, more or less.
    assert waits[:-1] == sorted(waits[:-1])
    assert timedelta(hours=19) < sum(waits, timedelta()) < timedelta(hours=30)
    assert len({message.headers["webhook-id"] for message in receiver.received}) == 1
    assert len({message.headers["webhook-timestamp"] for message in receiver.received}) == MOST_ATTEMPTS
    [given_up] = [line for line in log if line["event"] == "webhook_given_up"]
    assert given_up["failure"] == "not_taken"
    assert not any("hooks.example.com" in str(line) for line in log)


def test_a_receiver_that_comes_back_gets_it(receiver: Receiver) -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        delivery = delivery_to(receiver)
        receiver.status = 500
        deliveries.send_due()
        receiver.status = 200
        clock.shift(timedelta(seconds=15))
        deliveries.send_due()
    after = now_of(delivery)
    assert (after.state, after.attempts, after.last_status, after.last_error) == ("delivered", 2, 200, "")


class _Died(BaseException):
    """The process ends in the middle of an attempt."""


@pytest.mark.parametrize("last", [False, True])
def test_a_process_that_dies_in_an_attempt_loses_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    def die(*_: object) -> None:
        raise _Died

    with time_machine.travel(NOON, tick=False) as clock:
        delivery = delivery_to(receiver, attempts=MOST_ATTEMPTS - 1 if last else 0)
        with monkeypatch.context() as patch:
            patch.setattr(sending, "send", die)
            with pytest.raises(_Died):
                deliveries.send_due()
        assert now_of(delivery).state == "pending"
        clock.shift(timedelta(minutes=2))
        deliveries.send_due()
    assert now_of(delivery).state == ("failed" if last else "delivered")


def test_a_slow_receiver_does_not_hold_up_the_others(new_receiver: Callable[..., Receiver]) -> None:
    quick_has_it = threading.Event()

    def wait_for_the_quick_one(handler: BaseHTTPRequestHandler) -> None:
        quick_has_it.wait(60)
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def say_so(handler: BaseHTTPRequestHandler) -> None:
        quick_has_it.set()
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    slow, quick = new_receiver(answer=wait_for_the_quick_one), new_receiver(answer=say_so)
    first = delivery_to(slow)
    second = delivery_to(quick)
    deliveries.send_due()
    assert (now_of(first).state, now_of(second).state) == ("delivered", "delivered")


def test_one_endpoint_gets_one_message_at_a_time(receiver: Receiver) -> None:
    alone, another_came = threading.Semaphore(1), threading.Event()

    def notice_another(handler: BaseHTTPRequestHandler) -> None:
        if alone.acquire(blocking=False):
            # Long enough for another one to come, if any is on its way.
            another_came.wait(0.2)
            alone.release()
        else:
            another_came.set()
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    receiver.answer = notice_another
    endpoint = WebhookEndpointFactory(url=receiver.url())
    made = [delivery_to(receiver, endpoint=endpoint) for _ in range(5)]
    assert deliveries.send_due() == 5
    assert {now_of(delivery).state for delivery in made} == {"delivered"}
    assert not another_came.is_set()


def test_a_pass_beside_another_leaves_everything_to_it(receiver: Receiver) -> None:
    delivery_to(receiver)
    with sole_pass("webhooks", at_most_s=60) as alone:
        assert alone
        assert deliveries.send_due() == 0
    assert deliveries.send_due() == 1


def test_a_message_is_taken_by_one_of_two_passes(receiver: Receiver) -> None:
    delivery_to(receiver)
    with every_tenant("test"):
        assert deliveries._take(()) is not None
        assert deliveries._take(()) is None


def test_nothing_is_sent_to_an_endpoint_that_has_ended(receiver: Receiver) -> None:
    delivery = delivery_to(receiver)
    endpoints.end(endpoint=delivery.endpoint, actor=ACTOR)
    assert deliveries.send_due() == 0
    after = now_of(delivery)
    assert (after.state, after.last_error) == ("failed", "The endpoint has ended.")
    assert receiver.connections == 0


def test_an_endpoint_whose_pepper_is_gone_fails_alone(
    receiver: Receiver, new_receiver: Callable[..., Receiver]
) -> None:
    lost = delivery_to(
        receiver, endpoint=WebhookEndpointFactory(url=receiver.url(), pepper_id="0123456789ab")
    )
    other = delivery_to(new_receiver())
    with capture_logs() as log:
        assert deliveries.send_due() == 2
    assert (now_of(lost).state, now_of(lost).last_error) == ("pending", "The server cannot sign it.")
    assert now_of(other).state == "delivered"
    assert receiver.connections == 0
    assert [line["event"] for line in log if line["log_level"] == "error"] == ["webhook_not_signed"]


@pytest.mark.parametrize("state", ["failed", "delivered", "pending"])
def test_a_message_is_sent_again_by_hand_whatever_became_of_it(receiver: Receiver, state: str) -> None:
    next_attempt_at = NOON + timedelta(days=3650) if state == "pending" else None
    delivery = delivery_to(
        receiver,
        state=state,
        attempts=MOST_ATTEMPTS - 1,
        next_attempt_at=next_attempt_at,
        delivered_at=NOON if state == "delivered" else None,
    )
    assert deliveries.send_due() == 0
    assert deliveries.replay(deliveries=[delivery], actor=ACTOR) == 1
    assert deliveries.send_due() == 1
    after = now_of(delivery)
    assert (after.state, after.attempts) == ("delivered", 1)
    assert receiver.received[0].headers["webhook-id"] == f"evt_{delivery.event_id.hex}"
    event = AuditEvent.objects.get()
    assert (event.action, event.tenant_id) == ("webhook_delivery.replay", delivery.endpoint.tenant_id)
    assert event.before is not None
    assert event.before["state"] == state


def test_nothing_is_replayed_when_one_of_the_endpoints_has_ended(receiver: Receiver) -> None:
    kept = delivery_to(receiver, state="failed", next_attempt_at=None)
    ended: WebhookEndpoint = WebhookEndpointFactory(ended_at=NOON)
    gone = WebhookDeliveryFactory(endpoint=ended, state="failed", next_attempt_at=None)
    with pytest.raises(ChangeRefused) as refusal:
        deliveries.replay(deliveries=[kept, gone], actor=ACTOR)
    assert refusal.value.code is ChangeRefusal.ENDPOINT_ENDED
    assert (now_of(kept).state, AuditEvent.objects.count()) == ("failed", 0)
