"""Messages on their way to endpoints: queued in the database, sent until they are taken or given up, replayed by hand.

An attempt is counted, and the next one set, before it is made, in one conditional update: it is that update which takes
the message. So passes may run beside each other, and a process that dies in an attempt loses nothing: the message is
sent again when the next attempt is due. What is taken twice is known to its receiver by ``webhook-id``, which stays.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import structlog
from django.db import transaction
from django.utils import timezone

from accounts import audit, pepper
from accounts.models import Tenant, WebhookDelivery, WebhookEndpoint
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.sole_passes import sole_pass
from accounts.tenancy import every_tenant
from accounts.webhooks import sending, signing
from accounts.webhooks.retries import MOST_ATTEMPTS, wait_after
from accounts.webhooks.sending import Outcome

#: Attempts at once, never two to one endpoint: one that is slow holds up itself.
MOST_AT_ONCE: Final = 8
#: How long a pass takes on new messages; it ends by the time of an attempt later.
_PASS_S: Final = 40.0
_LOST_AFTER_S: Final = 90

_AUDITED = ("state", "attempts", "last_status", "last_error")
_PENDING, _DELIVERED, _FAILED = (
    WebhookDelivery.State.PENDING,
    WebhookDelivery.State.DELIVERED,
    WebhookDelivery.State.FAILED,
)
_log = structlog.get_logger(__name__)


def queue(tenant: Tenant, event_id: UUID, event_type: str, data: dict[str, Any], at: datetime) -> None:
    """Send an event to every live endpoint of ``tenant``: once to each, however often this is called.

    ``data`` is what the message says; ``at``: when it happened.
    """
    if tenant.closed_at:
        return
    payload = {"type": event_type, "timestamp": _iso(at), "data": data}
    now = timezone.now()
    WebhookDelivery.objects.bulk_create(
        (
            WebhookDelivery(
                endpoint=endpoint,
                event_id=event_id,
                event_type=event_type,
                payload=payload,
                next_attempt_at=now,
            )
            for endpoint in WebhookEndpoint.objects.filter(tenant=tenant, ended_at=None)
        ),
        ignore_conflicts=True,
    )


def send_due() -> int:
    """Send what is due, ``MOST_AT_ONCE`` at a time, until nothing is or the pass is over; how many attempts it made."""
    attempts = 0
    with (
        sole_pass("webhooks", at_most_s=_LOST_AFTER_S) as alone,
        every_tenant("messages of every tenant are sent"),
    ):
        if not alone:
            return 0
        _give_up_what_goes_nowhere()
        ends = time.monotonic() + _PASS_S
        under_way: dict[Future[Outcome], WebhookDelivery] = {}
        with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="webhook") as threads:
            while True:
                while len(under_way) < MOST_AT_ONCE and time.monotonic() < ends:
                    delivery = _take({one.endpoint_id for one in under_way.values()})
                    if delivery is None:
                        break
                    attempts += 1
                    under_way[_start(threads, delivery)] = delivery
                if not under_way:
                    return attempts
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    _record(under_way.pop(future), future.result())


def replay(*, deliveries: Iterable[WebhookDelivery], actor: Actor) -> int:
    """Send messages again, whatever became of them, from the first attempt on; how many.

    All or none: raises ``ChangeRefused`` if the endpoint of one has ended.
    """
    ids = [delivery.id for delivery in deliveries]
    changes: list[audit.Change] = []
    with (
        every_tenant("an operator, or a tenant's administrator, has chosen the messages"),
        transaction.atomic(),
    ):
        rows = (
            WebhookDelivery.objects.select_for_update(of=("self",), no_key=True)
            .select_related("endpoint")
            .filter(id__in=ids)
            .order_by("id")
        )
        for delivery in rows:
            if delivery.endpoint.ended_at:
                raise ChangeRefused(
                    ChangeRefusal.ENDPOINT_ENDED, "The endpoint has ended: nothing is sent there any more."
                )
            before = audit.fields_of(delivery, *_AUDITED)
            delivery.state = _PENDING
            delivery.attempts = 0
            delivery.next_attempt_at = timezone.now()
            delivery.delivered_at = None
            delivery.save(update_fields=["state", "attempts", "next_attempt_at", "delivered_at"])
            changes.append(
                audit.Change(
                    action="webhook_delivery.replay",
                    obj=delivery,
                    before=before,
                    after=audit.fields_of(delivery, *_AUDITED),
                    tenant_id=delivery.endpoint.tenant_id,
                )
            )
        audit.record_all(actor, changes)
    return len(changes)


def message_id(delivery: WebhookDelivery) -> str:
    """What its receiver knows a message by, through all attempts and replays."""
    return f"evt_{delivery.event_id.hex}"


def body_of(delivery: WebhookDelivery) -> bytes:
    """The message as it is sent."""
    return json.dumps(delivery.payload, separators=(",", ":"), ensure_ascii=False).encode()


def _take(busy: Collection[UUID]) -> WebhookDelivery | None:
    """The message that is due first, to an endpoint that is not ``busy``, its attempt counted; None: there is none."""
    while True:
        now = timezone.now()
        delivery: WebhookDelivery | None = (
            WebhookDelivery.objects.filter(state=_PENDING, next_attempt_at__lte=now, endpoint__ended_at=None)
            .exclude(endpoint_id__in=busy)
            .select_related("endpoint")
            .order_by("next_attempt_at")
            .first()
        )
        if delivery is None:
            return None
        unchanged = WebhookDelivery.objects.filter(
            id=delivery.id,
            state=_PENDING,
            attempts=delivery.attempts,
            next_attempt_at=delivery.next_attempt_at,
        )
        if delivery.attempts >= MOST_ATTEMPTS:
            unchanged.update(state=_FAILED, next_attempt_at=None)
            continue
        delivery.attempts += 1
        next_attempt_at = now + wait_after(delivery.attempts, random.random())  # noqa: S311 — no secret
        if unchanged.update(attempts=delivery.attempts, next_attempt_at=next_attempt_at):
            return delivery


def _start(threads: ThreadPoolExecutor, delivery: WebhookDelivery) -> Future[Outcome]:
    body = body_of(delivery)
    try:
        secret = signing.secret_of(delivery.endpoint)
    except pepper.PepperMissing as missing:
        failed: Future[Outcome] = Future()
        failed.set_result(Outcome(None, sending.SendFailure.NOT_SIGNED, "The server cannot sign it."))
        _log.error("webhook_not_signed", endpoint=str(delivery.endpoint_id), error=str(missing))
        return failed
    headers = signing.headers(secret, message_id(delivery), int(timezone.now().timestamp()), body)
    return threads.submit(sending.send, delivery.endpoint.url, headers, body)


def _record(delivery: WebhookDelivery, outcome: Outcome) -> None:
    """Write what became of an attempt, unless the message was replayed or taken anew meanwhile."""
    ours = WebhookDelivery.objects.filter(id=delivery.id, state=_PENDING, attempts=delivery.attempts)
    seen = {"last_status": outcome.status, "last_error": outcome.message[:300]}
    if outcome.failure is None:
        ours.update(**seen, state=_DELIVERED, delivered_at=timezone.now(), next_attempt_at=None)
    elif delivery.attempts < MOST_ATTEMPTS:
        ours.update(**seen)
    elif ours.update(**seen, state=_FAILED, next_attempt_at=None):
        _log.warning(
            "webhook_given_up",
            delivery=str(delivery.id),
            endpoint=str(delivery.endpoint_id),
            failure=outcome.failure.value,
            status=outcome.status,
        )


def _give_up_what_goes_nowhere() -> None:
    WebhookDelivery.objects.filter(state=_PENDING, endpoint__ended_at__isnull=False).update(
        state=_FAILED, next_attempt_at=None, last_error="The endpoint has ended."
    )


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
