"""Telling people and programs what budgets have come to: every event once, whatever dies in between.

An event is untold until its messages are handed on: to the webhooks' queue, which has each message once, and to the
mail server. Only then it is marked; so a crash leaves it untold, and at worst an e-mail comes twice, with the same
``Message-ID``. A mail server that is away is asked again after growing waits, for all events together, and logged once.
"""

from __future__ import annotations

import smtplib
import time
from datetime import UTC, datetime, timedelta
from functools import cache as per_process
from typing import Any, Final

import structlog
from django.core.cache import cache
from django.core.mail import EmailMessage, get_connection
from django.db.models import QuerySet
from django.utils import timezone

from accounts import budget_mail
from accounts.budget_windows import Period
from accounts.models import ApiKey, BudgetEvent, Entitlement
from accounts.sole_passes import sole_pass
from accounts.tenancy import every_tenant
from accounts.webhooks import deliveries

#: What a webhook calls an event, by its percent.
EVENT_TYPES: Final = {80: "budget.warning", 100: "budget.exhausted"}

#: What one pass sends at most, and how long it takes on more.
_MOST_MAILS: Final = 100
_PASS_S: Final = 60.0
_LOST_AFTER_S: Final = 120
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 15 * 60.0
#: How long a mail server may be away before events are told without it, if their window has ended too.
_PATIENCE: Final = timedelta(hours=1)
_PAUSE: Final = "budget-mail:pause"
_log = structlog.get_logger(__name__)


def tell() -> int:
    """Hand on what is untold: webhooks first, which wait for nobody, then e-mails. How many events were told."""
    with every_tenant("events of every tenant are told"):
        for event in _untold():
            deliveries.queue(
                event.tenant, event.id, EVENT_TYPES[event.percent], data_of(event), event.created_at
            )
        if not budget_mail.is_configured():
            return _mark_without_mail()
        with sole_pass("budget-mail", at_most_s=_LOST_AFTER_S) as alone:
            return _mail() if alone else 0


def data_of(event: BudgetEvent) -> dict[str, Any]:
    """What a webhook's message says about an event, which has its tenant and window with it. Tokens; times in UTC."""
    entitlement = Entitlement.objects.filter(allowance_id=event.allowance_id).first()
    key = ApiKey.objects.filter(allowance_id=event.allowance_id).order_by("-created_at").first()
    return {
        "tenant_id": str(event.tenant_id),
        "tenant": event.tenant.slug,
        "budget_of": event.subject,
        "lane": entitlement.lane_id if entitlement else None,
        "entitlement_id": str(entitlement.id) if entitlement else None,
        "api_key_id": str(key.id) if key else None,
        "limit_name": Period(event.window.period).limit_name.value,
        "percent": event.percent,
        "limit": event.limit,
        "used": event.used,
        "reserved": event.reserved,
        "window_starts_at": _iso(event.window.starts_at),
        "resets_at": _iso(event.resets_at),
    }


def _untold() -> QuerySet[BudgetEvent]:
    events: QuerySet[BudgetEvent] = (
        BudgetEvent.objects.filter(told_at=None)
        .select_related("tenant", "window")
        .order_by("created_at", "percent")
    )
    return events


def _mark(event: BudgetEvent) -> int:
    return BudgetEvent.objects.filter(id=event.id, told_at=None).update(told_at=timezone.now())


def _mark_without_mail() -> int:
    told = sum(_mark(event) for event in _untold())
    if told:
        _say_that_no_mail_is_sent()
    return told


@per_process
def _say_that_no_mail_is_sent() -> None:
    _log.warning("budget_mail_not_configured", setting="SIGNALBOX_EMAIL_URL")


def _mail() -> int:
    """Send the e-mails that are due, over one connection; how many events are told by that."""
    now = timezone.now()
    pause: dict[str, Any] = cache.get(_PAUSE) or {"failures": 0, "until": 0.0}
    if now.timestamp() < pause["until"]:
        return 0
    told = 0
    mails: list[tuple[BudgetEvent, EmailMessage]] = []
    for event in _untold()[:_MOST_MAILS]:
        message = None if _is_overtaken(event) else budget_mail.message_for(event)
        if message is None:
            told += _mark(event)
        else:
            mails.append((event, message))
    if not mails:
        return told
    failure: Exception | None = None
    ends = time.monotonic() + _PASS_S
    try:
        with get_connection() as connection:
            for event, message in mails:
                if time.monotonic() > ends:
                    break
                message.connection = connection
                try:
                    _send(event, message)
                except (smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused) as error:
                    # This one was not taken; the others may be.
                    failure = error
                else:
                    told += _mark(event)
    except (OSError, smtplib.SMTPException) as error:
        failure = error
    if failure is not None:
        _wait_for_server(pause["failures"] + 1, failure, now)
    elif pause["failures"]:
        cache.delete(_PAUSE)
        _log.info("budget_mail_works_again", failures=pause["failures"])
    return told


def _send(event: BudgetEvent, message: EmailMessage) -> None:
    """Hand one e-mail over. One that is refused for good is done with too: nobody of its tenant takes mail."""
    try:
        message.send()
    except smtplib.SMTPRecipientsRefused as refusal:
        if any(code < 500 for code, _ in refusal.recipients.values()):
            raise
        _log.warning("budget_mail_refused", event_id=str(event.id), tenant=event.tenant.slug)


def _is_overtaken(event: BudgetEvent) -> bool:
    """Whether its window has come to more, which is then what people are told."""
    return BudgetEvent.objects.filter(window_id=event.window_id, percent__gt=event.percent).exists()


def _wait_for_server(failures: int, error: Exception, now: datetime) -> None:
    """Leave the mail server alone for a while. What nobody can act on any more is told without it."""
    if failures == 1:
        # Its class only: what a server answers may repeat what it was sent.
        _log.warning("budget_mail_failed", error=type(error).__name__, code=getattr(error, "smtp_code", None))
    wait_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
    cache.set(_PAUSE, {"failures": failures, "until": now.timestamp() + wait_s}, timeout=24 * 3600)
    for event in _untold().filter(resets_at__lte=now, created_at__lte=now - _PATIENCE):
        _log.warning("budget_mail_given_up", event_id=str(event.id), tenant=event.tenant.slug)
        _mark(event)


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
