"""Costs in the ledger and in the sums of it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import ledger
from accounts.models import Lane, LedgerEntry, Price, UsageRollup
from accounts.tenancy import every_tenant

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
TENANT, KEY = uuid.UUID(int=1), uuid.UUID(int=11)


def settle(at: datetime = NOW, *, tokens: int = 10, model: str = "m", lane: str = "normal") -> LedgerEntry:
    return ledger.settle(
        generation_id=uuid.uuid4(),
        tenant_id=TENANT,
        api_key_id=KEY,
        user_id=None,
        model=model,
        lane=lane,
        prompt_tokens=tokens,
        cached_tokens=0,
        completion_tokens=0,
        accepted_prediction_tokens=0,
        rejected_prediction_tokens=0,
        at=at,
    )


def price(amount: str, *, since: datetime = NOW - timedelta(days=1), currency: str = "EUR") -> None:
    one = Decimal(amount)
    Price.objects.create(
        model="m", currency=currency, prompt=one, cached=one, completion=one, valid_from=since
    )


def rollups() -> list[UsageRollup]:
    with every_tenant("test"):
        return list(UsageRollup.objects.order_by("hour", "currency"))


def test_an_entry_has_its_cost_or_neither_cost_nor_currency() -> None:
    assert (settle().cost, settle().currency) == (None, "")
    price("0.15")
    entry = settle()
    entry.refresh_from_db()
    assert (entry.cost, entry.currency) == (Decimal("0.000001500"), "EUR")
    price("0", since=NOW - timedelta(hours=1))
    free = settle()
    assert (free.cost, free.currency) == (Decimal(0), "EUR")


def test_the_price_costs_one_query() -> None:
    with CaptureQueriesContext(connection) as queries:
        settle()
    assert sum("accounts_price" in query["sql"] for query in queries) == 1


def test_a_later_price_changes_nothing_that_was_used() -> None:
    price("0.15")
    entry = settle()
    price("99", since=NOW)
    settle(NOW + timedelta(minutes=1))
    ledger.rebuild()
    entry.refresh_from_db()
    assert entry.cost == Decimal("0.000001500")


def test_each_currency_has_sums_of_its_own() -> None:
    settle()
    price("0.15")
    settle()
    settle()
    price("0.3", since=NOW + timedelta(minutes=5), currency="USD")
    settle(NOW + timedelta(minutes=6))
    ledger.roll_up(NOW)
    assert [(row.currency, row.generations, row.cost) for row in rollups()] == [
        ("", 1, Decimal(0)),
        ("EUR", 2, Decimal("0.000003")),
        ("USD", 1, Decimal("0.000003")),
    ]


def test_sums_without_a_currency_keep_the_ids_that_they_had_before_there_were_prices() -> None:
    settle()
    ledger.roll_up(NOW)
    [row] = rollups()
    parts = [NOW.replace(minute=0), TENANT, KEY, "m", "normal"]
    namespace = uuid.UUID("5b0e7a52-3f43-4a3c-9d6c-2f2f4b8f9d11")
    assert row.id == uuid.uuid5(namespace, "\n".join(str(part) for part in parts))


def test_many_small_costs_add_up_exactly() -> None:
    """As floating-point numbers these would not: 0.1 has no end in binary."""
    with every_tenant("test"):
        LedgerEntry.objects.bulk_create(
            LedgerEntry(
                generation_id=uuid.uuid4(),
                tenant_id=TENANT,
                model="m",
                lane="normal",
                prompt_tokens=1,
                cached_tokens=0,
                completion_tokens=0,
                cost=Decimal("0.100000001"),
                currency="EUR",
                settled_at=NOW,
            )
            for _ in range(3000)
        )
    ledger.roll_up(NOW)
    assert [row.cost for row in rollups()] == [Decimal("300.000003")]


def test_sums_of_one_day_are_made_anew_and_others_left() -> None:
    settle(NOW - timedelta(days=2))
    settle(NOW)
    ledger.roll_up(NOW)
    with every_tenant("test"):
        UsageRollup.objects.update(prompt_tokens=77)
        today = NOW.replace(hour=0, minute=0)
        assert ledger.resum(today, today + timedelta(days=1)) == 1
    assert [row.prompt_tokens for row in rollups()] == [77, 10]
    assert ledger.rebuild() == 2
    assert [row.prompt_tokens for row in rollups()] == [10, 10]


def test_a_sum_of_nothing_goes_when_all_are_made_anew() -> None:
    settle()
    ledger.roll_up(NOW)
    with every_tenant("test"):
        LedgerEntry.objects.all().delete()
    assert ledger.rebuild() == 0
    assert rollups() == []


def test_lanes_own_prices_are_used() -> None:
    price("0.15")
    Price.objects.create(
        model="m",
        lane=Lane.objects.get(name="high"),
        currency="EUR",
        prompt=1,
        cached=1,
        completion=1,
        valid_from=NOW - timedelta(days=1),
    )
    assert settle(lane="high").cost == Decimal("0.00001")
    assert settle(lane="low").cost == Decimal("0.0000015")
