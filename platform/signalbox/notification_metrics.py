"""What budgets have come to, and whether it was told: counted in the database, where every process has written it."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Count
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from accounts.budget_thresholds import PERCENTS
from accounts.models import BudgetEvent, WebhookDelivery
from accounts.tenancy import every_tenant


class NotificationCollector(Collector):
    """Budget events by percent, those that are not told yet, and webhook messages by what became of them."""

    def collect(self) -> Iterator[Metric]:
        with every_tenant("metrics count every tenant's"):
            by_percent = dict(BudgetEvent.objects.order_by().values_list("percent").annotate(Count("id")))
            untold = BudgetEvent.objects.filter(told_at=None).count()
            by_state = dict(WebhookDelivery.objects.order_by().values_list("state").annotate(Count("id")))
        events = CounterMetricFamily(
            "signalbox_budget_events", "Budgets that came to a share of their limit.", labels=["percent"]
        )
        for percent in PERCENTS:
            events.add_metric([str(percent)], by_percent.get(percent, 0))
        yield events
        yield GaugeMetricFamily(
            "signalbox_budget_events_untold", "Of these, those that wait to be told.", float(untold)
        )
        messages = GaugeMetricFamily(
            "signalbox_webhook_deliveries", "Webhook messages, by what became of them.", labels=["state"]
        )
        for state in WebhookDelivery.State.values:
            messages.add_metric([state], by_state.get(state, 0))
        yield messages
