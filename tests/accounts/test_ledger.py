from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Sum
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from accounts import ledger
from accounts.models import LedgerEntry, UsageRollup
from accounts.tenancy import every_tenant, tenant_scope

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
TENANTS = [uuid.UUID(int=n) for n in (1, 2)]
KEYS = [None, uuid.UUID(int=11), uuid.UUID(int=12)]


def _settle(at: datetime = NOW, tenant: uuid.UUID = TENANTS[0], **fields: object) -> LedgerEntry:
    values: dict[str, object] = {
        "generation_id": uuid.uuid4(),
        "tenant_id": tenant,
        "api_key_id": KEYS[1],
        "user_id": None,
        "model": "m",
        "lane": "normal",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 3,
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 2,
        "at": at,
    }
    return ledger.settle(**{**values, **fields})  # type: ignore[arg-type]


@pytest.mark.django_db
def test_a_generation_is_settled_once() -> None:
    entry = _settle()
    with pytest.raises(IntegrityError), transaction.atomic():
        _settle(generation_id=entry.generation_id)


@pytest.mark.django_db
def test_rolling_up_again_changes_nothing() -> None:
    for minutes in (0, 5, 200):
        _settle(NOW - timedelta(minutes=minutes))
    ledger.roll_up(NOW)
    with every_tenant("test"):
        first = list(UsageRollup.objects.order_by("hour", "id").values())
    ledger.roll_up(NOW)
    with every_tenant("test"):
        assert list(UsageRollup.objects.order_by("hour", "id").values()) == first
        newest = UsageRollup.objects.get(hour=NOW.replace(minute=0))
    assert (newest.generations, newest.prompt_tokens, newest.completion_tokens) == (2, 20, 6)
    assert (newest.accepted_prediction_tokens, newest.rejected_prediction_tokens) == (2, 4)


@pytest.mark.django_db
def test_hours_that_no_task_ran_in_are_summed_later() -> None:
    _settle(NOW - timedelta(days=3))
    ledger.roll_up(NOW - timedelta(days=3))
    _settle(NOW - timedelta(days=2))
    _settle(NOW)
    ledger.roll_up(NOW)
    with every_tenant("test"):
        assert UsageRollup.objects.aggregate(n=Sum("generations"))["n"] == 3


@pytest.mark.django_db
def test_a_settlement_that_was_committed_late_is_summed_too() -> None:
    _settle(NOW)
    ledger.roll_up(NOW)
    _settle(NOW - timedelta(minutes=31))
    ledger.roll_up(NOW)
    with every_tenant("test"):
        assert UsageRollup.objects.aggregate(n=Sum("generations"))["n"] == 2


@pytest.mark.django_db
def test_totals_are_those_of_the_tenants_in_scope() -> None:
    _settle(tenant=TENANTS[0])
    _settle(tenant=TENANTS[1])
    _settle(NOW - timedelta(hours=2))
    with tenant_scope(TENANTS[1]):
        assert ledger.totals(since=NOW - timedelta(hours=1)) == ledger.TokenTotals(1, 10, 4, 3)
    with every_tenant("test"):
        assert ledger.totals(since=NOW - timedelta(hours=1)).generations == 2


@pytest.mark.django_db
def test_an_empty_ledger_sums_to_nothing() -> None:
    assert ledger.roll_up(NOW) == 0
    assert ledger.rebuild() == 0
    with every_tenant("test"):
        assert ledger.totals(since=NOW) == ledger.TokenTotals(0, 0, 0, 0)


class TestAllSumsAgree(TestCase):
    @pytest.mark.slow
    @given(
        st.lists(
            st.tuples(
                st.integers(0, 300).map(lambda minutes: NOW - timedelta(minutes=minutes)),
                st.sampled_from(TENANTS),
                st.sampled_from(KEYS),
                st.sampled_from(["a", "b"]),
                st.integers(0, 1000),
            ),
            max_size=12,
        ),
        st.integers(0, 12),
    )
    def test_rollups_add_up_to_the_ledger_to_the_token(
        self, rows: list[tuple[datetime, uuid.UUID, uuid.UUID | None, str, int]], split: int
    ) -> None:
        rows.sort(key=lambda row: row[0])
        for i, (at, tenant, key, model, tokens) in enumerate(rows):
            _settle(
                at,
                tenant,
                api_key_id=key,
                model=model,
                completion_tokens=tokens,
                accepted_prediction_tokens=tokens // 2,
                rejected_prediction_tokens=tokens * 2,
            )
            if i == split:
                ledger.roll_up(at)
        ledger.roll_up(NOW)
        with every_tenant("test"):
            for field in (
                "prompt_tokens",
                "cached_tokens",
                "completion_tokens",
                "accepted_prediction_tokens",
                "rejected_prediction_tokens",
            ):
                total = LedgerEntry.objects.aggregate(n=Sum(field))["n"]
                assert UsageRollup.objects.aggregate(n=Sum(field))["n"] == total
            assert (UsageRollup.objects.aggregate(n=Sum("generations"))["n"] or 0) == len(rows)
            kept = list(UsageRollup.objects.order_by("id").values())
            ledger.rebuild()
            assert list(UsageRollup.objects.order_by("id").values()) == kept
