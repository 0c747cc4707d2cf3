"""Periodic tasks of accounts. Each may run late, twice, or beside itself."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from accounts import budget_telling, last_used, ledger, log_ins
from accounts.webhooks import deliveries


@shared_task
def roll_up_usage() -> int:
    """Bring the hourly sums of usage up to the ledger; how many sums were written."""
    return ledger.roll_up(timezone.now())


@shared_task
def stamp_last_used() -> int:
    """Carry the keys' stamps of last use into their rows; how many rows moved."""
    return last_used.collect()


@shared_task
def record_failed_log_ins() -> int:
    """Record as one event how many failed log-ins got none of their own; how many they were."""
    return log_ins.record_count()


@shared_task
def tell_budget_events() -> int:
    """Hand on what budgets have come to, by e-mail and to webhooks; how many events were told."""
    return budget_telling.tell()


@shared_task
def send_webhooks() -> int:
    """Send the webhook messages that are due; how many attempts were made."""
    return deliveries.send_due()
