"""The usage page: what it is asked, what it shows, and its export. That its totals are right, A14's test shows."""

from __future__ import annotations

import csv
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse

from accounts import ledger, usage_report
from accounts.formatting import money
from accounts.models import ApiKey, Price, Tenant
from tests.factories import ApiKeyFactory, TenantFactory

NOW = datetime(2026, 3, 10, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _noon(_admin_pages: None) -> Any:
    with time_machine.travel(NOW, tick=True):
        yield


def page(client: Client, **query: Any) -> Any:
    return client.get(reverse("admin:accounts_usage"), query)


def export(client: Client, **query: Any) -> list[dict[str, str]]:
    answer: Any = client.get(reverse("admin:accounts_usage_csv"), query)
    assert answer["Content-Type"] == "text/csv; charset=utf-8"

    async def read() -> str:
        return b"".join([part async for part in answer.streaming_content]).decode()

    return list(csv.DictReader(async_to_sync(read)().splitlines()))


def used(tenant: Tenant, key: ApiKey | None = None, *, at: datetime = NOW, **changes: Any) -> None:
    values: dict[str, Any] = {
        "generation_id": uuid.uuid4(),
        "tenant_id": tenant.id,
        "api_key_id": key.id if key else None,
        "user_id": None,
        "model": "org/model",
        "lane": "normal",
        "prompt_tokens": 1000,
        "cached_tokens": 400,
        "completion_tokens": 30,
        "accepted_prediction_tokens": 10,
        "rejected_prediction_tokens": 2,
        "at": at,
    }
    ledger.settle(**{**values, **changes})
    ledger.roll_up(at)


def test_nothing_that_was_used_is_said_in_words(as_operator: Client) -> None:
    content = page(as_operator).content.decode()
    assert content.count("Nothing was used in this time.") == 2
    assert "nothing of it has a price" in content


def test_the_last_seven_days_are_shown_by_tenant_unless_something_else_is_asked_for(
    as_onlooker: Client,
) -> None:
    tenant = TenantFactory(name="Timetable")
    used(tenant)
    used(tenant, at=NOW - timedelta(days=6))
    used(tenant, at=NOW - timedelta(days=8))
    answer = page(as_onlooker)
    report = answer.context["report"]
    assert report.total.counts["generations"] == 2
    assert [line.name for line in report.tables[0].lines] == ["Timetable"]
    assert [line.name for line in report.tables[1].lines] == ["Wed 4 Mar 2026", "Tue 10 Mar 2026"]
    assert len(report.plots[0].columns) == 7
    series = {one.name: one.total for one in report.plots[1].legend}
    assert series == {
        "prompt, run": 1200,
        "prompt, from the cache": 800,
        "answer": 40,
        "answer, drafted": 20,
    }


def test_each_plot_has_a_title_a_description_and_a_table(as_operator: Client) -> None:
    used(TenantFactory())
    content = page(as_operator, by="lane").content.decode()
    for name in ("by-group", "by-kind"):
        assert f'role="img" aria-labelledby="{name}-title {name}-description"' in content
    assert "Tokens each day, by lane" in content
    assert content.count("As a table") == 2
    assert '<th scope="row">normal</th>' in content


def test_days_are_those_of_the_tenant_that_is_chosen(as_operator: Client) -> None:
    tenant = TenantFactory(time_zone="Asia/Seoul")
    used(tenant, at=datetime(2026, 3, 8, 23, 0, tzinfo=UTC))
    by_day = {"first": "2026-03-09", "last": "2026-03-09"}
    assert page(as_operator, **by_day).context["report"].total.counts["generations"] == 0
    chosen = page(as_operator, tenant=tenant.id, **by_day)
    assert chosen.context["report"].total.counts["generations"] == 1
    assert "those of Asia/Seoul" in chosen.content.decode()


@pytest.mark.parametrize(
    ("first", "last"),
    [("0001-01-01", "0001-01-02"), ("9999-12-30", "9999-12-31"), ("1999-12-31", "2000-01-02")],
)
def test_days_that_no_calendar_has_are_refused_in_words(as_operator: Client, first: str, last: str) -> None:
    tenant = TenantFactory(time_zone="Asia/Seoul")
    for query in ({}, {"tenant": tenant.id}):
        answer = page(as_operator, first=first, last=last, **query)
        assert answer.status_code == 200
        assert "report" not in answer.context
        assert "There is no day" in answer.content.decode()
        refused = as_operator.get(
            reverse("admin:accounts_usage_csv"), {"first": first, "last": last, **query}
        )
        assert refused.status_code == 400


def test_a_key_is_chosen_among_its_tenants(as_operator: Client) -> None:
    key, other = ApiKeyFactory(), ApiKeyFactory()
    used(key.tenant, key)
    used(key.tenant)
    used(other.tenant, other)
    assert page(as_operator).context["filters"].fields["api_key"].disabled
    chosen = page(as_operator, tenant=key.tenant_id, api_key=key.id, by="api_key").context
    assert list(chosen["filters"].fields["api_key"].queryset) == [key]
    assert [line.name for line in chosen["report"].tables[0].lines] == [str(key)]
    of_another = page(as_operator, tenant=key.tenant_id, api_key=other.id).context
    assert "report" not in of_another
    assert "api_key" in of_another["filters"].errors


def test_tenants_of_the_same_name_are_told_apart(as_operator: Client) -> None:
    for slug in ("depot-north", "depot-south"):
        used(TenantFactory(name="Depot", slug=slug))
    table = page(as_operator).context["report"].tables[0]
    assert {line.name for line in table.lines} == {"Depot (depot-north)", "Depot (depot-south)"}


def test_the_chats_usage_is_that_of_no_key(as_operator: Client) -> None:
    used(TenantFactory())
    [line] = page(as_operator, by="api_key").context["report"].tables[0].lines
    assert line.name == usage_report.NO_KEY


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"first": "2026-03-10", "last": "2026-03-09"}, "before the first day"),
        ({"first": "2026-01-01", "last": "2026-03-01", "bucket": "hour"}, "At most 31 days"),
        ({"first": "2020-01-01", "last": "2026-03-01"}, "At most 400 days"),
        ({"first": "yesterday"}, "Enter a valid date"),
        ({"bucket": "minute"}, "Select a valid choice"),
        ({"by": "user"}, "Select a valid choice"),
        ({"tenant": "nobody"}, "is not a valid UUID"),
        ({"model": "never used"}, "Select a valid choice"),
    ],
)
def test_what_makes_no_sense_is_said_and_not_exported(
    as_operator: Client, query: dict[str, str], said: str
) -> None:
    answer = page(as_operator, **query)
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert "report" not in answer.context
    assert as_operator.get(reverse("admin:accounts_usage_csv"), query).status_code == 400


def test_costs_are_shown_with_their_currencies(as_operator: Client) -> None:
    Price.objects.create(
        model="org/model",
        currency="EUR",
        prompt=1,
        cached=0,
        completion=2,
        valid_from=NOW - timedelta(days=1),
    )
    used(TenantFactory())
    answer = page(as_operator)
    assert answer.context["report"].costs == ["0.00066 EUR"]
    assert "Cost, EUR" in answer.content.decode()
    [row] = export(as_operator)
    assert Decimal(row["cost_EUR"]) == Decimal("0.00066")


def test_the_export_has_a_row_for_each_part_of_each_step_over_any_time(as_operator: Client) -> None:
    key = ApiKeyFactory(name="=HYPERLINK(1)")
    used(key.tenant, key)
    used(key.tenant, key, lane="high")
    used(key.tenant, at=NOW - timedelta(days=300))
    rows = export(as_operator, first="2025-04-01", last="2026-03-10")
    assert [(row["start"][:10], row["lane"]) for row in rows] == [
        ("2025-05-14", "normal"),
        ("2026-03-10", "high"),
        ("2026-03-10", "normal"),
    ]
    assert rows[0]["api_key"] == usage_report.NO_KEY
    assert rows[0]["api_key_id"] == ""
    # A spreadsheet must not take a key's name for a formula.
    assert rows[1]["api_key"].startswith("'=HYPERLINK(1)")
    assert rows[1]["prompt_tokens"] == "1000"


def test_who_is_not_staff_sees_no_usage(as_member: Client) -> None:
    for name in ("accounts_usage", "accounts_usage_csv"):
        assert as_member.get(reverse(f"admin:{name}"), follow=True).status_code == 403


@pytest.mark.parametrize(
    ("amount", "words"),
    [("0E-9", "0.00"), ("3.100000000", "3.10"), ("1234567.000012000", "1,234,567.000012"), ("7", "7.00")],
)
def test_an_amount_has_all_its_places_and_two_at_least(amount: str, words: str) -> None:
    assert money(Decimal(amount)) == words
