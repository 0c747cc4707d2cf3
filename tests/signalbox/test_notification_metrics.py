from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest

from signalbox import secret_files
from signalbox.notification_metrics import NotificationCollector
from tests.factories import BudgetEventFactory, WebhookDeliveryFactory
from tests.signalbox.test_metrics import series

pytestmark = pytest.mark.django_db


def test_events_and_messages_are_counted_by_what_became_of_them() -> None:
    BudgetEventFactory()
    BudgetEventFactory(told_at=timezone.now())
    BudgetEventFactory(percent=100)
    for state in ("pending", "delivered", "delivered"):
        WebhookDeliveryFactory(state=state)
    collected = CollectorRegistry()
    collected.register(NotificationCollector())
    found = series(generate_latest(collected).decode())
    assert found["signalbox_budget_events_total", frozenset({("percent", "80")})] == 2
    assert found["signalbox_budget_events_total", frozenset({("percent", "100")})] == 1
    assert found["signalbox_budget_events_untold", frozenset()] == 2
    states = {
        state: found["signalbox_webhook_deliveries", frozenset({("state", state)})]
        for state in ("pending", "delivered", "failed")
    }
    assert states == {"pending": 1, "delivered": 2, "failed": 0}


@pytest.mark.usefixtures("valkey")
def test_they_are_among_the_site_s_metrics() -> None:
    token = secret_files.read_or_create("metrics_token")
    answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/metrics")
    assert b"signalbox_budget_events_untold 0.0" in answer.content
