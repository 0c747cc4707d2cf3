"""A tenant's usage on the site: its own, to the token, by its own calendar."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from accounts.models import LedgerEntry, Tenant, User
from accounts.tenancy import every_tenant
from tests.factories import ApiKeyFactory, TenantFactory

#: A quarter to one at night in Seoul, where that day is the 1st of December.
NOW = datetime(2026, 11, 30, 15, 45, tzinfo=UTC)


def used(tenant: Tenant, at: datetime, prompt: int, completion: int, **more: Any) -> None:
    fields = {"model": "tiny", "lane": "normal", "cached_tokens": 0, **more}
    with every_tenant("test"):
        LedgerEntry.objects.create(
            generation_id=uuid4(),
            tenant_id=tenant.id,
            prompt_tokens=prompt,
            completion_tokens=completion,
            settled_at=at,
            **fields,
        )


def page_of(client: Client, **query: str) -> Any:
    with time_machine.travel(NOW, tick=False):
        return client.get(reverse("tenant-usage", args=["rail"]), query)


def lines_of(client: Client, **query: str) -> list[dict[str, str]]:
    with time_machine.travel(NOW, tick=False):
        answer = client.get(reverse("tenant-usage-csv", args=["rail"]), query)
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"].startswith('attachment; filename="usage-rail-')
    return list(csv.DictReader(io.StringIO(answer.content.decode())))


def test_plot_table_and_export_agree_and_show_the_tenant_s_own_only(rail: Tenant, as_owner: Client) -> None:
    other = TenantFactory()
    key: Any = ApiKeyFactory(tenant=rail, name="timetable")
    used(rail, NOW - timedelta(minutes=50), 100, 20, api_key_id=key.id)
    used(
        rail,
        NOW - timedelta(minutes=40),
        30,
        4,
        lane="high",
        user_id=User.objects.get(username="the owner").id,
    )
    used(rail, NOW - timedelta(days=29), 1000, 0, cached_tokens=900, api_key_id=key.id)
    used(rail, NOW - timedelta(days=31), 5555, 0)
    used(other, NOW - timedelta(minutes=50), 7777, 7777)
    for group in ("lane", "model", "api_key"):
        answer = page_of(as_owner, group=group)
        context = answer.context
        assert context["plot"].total == context["total"].figures.tokens == 1154
        assert context["total"].figures.counts["generations"] == 3
        assert "7,777" not in answer.content.decode()
    lines = lines_of(as_owner)
    assert sum(int(line["prompt_tokens"]) + int(line["completion_tokens"]) for line in lines) == 1154
    assert {line["api_key"] for line in lines} == {str(key), "no key: in the chat"}
    assert "the owner" not in str(lines)


def test_days_are_the_tenant_s_own(rail: Tenant, as_owner: Client) -> None:
    # A quarter past, and a quarter to midnight in Seoul.
    used(rail, datetime(2026, 11, 30, 15, 15, tzinfo=UTC), 1, 0)
    used(rail, datetime(2026, 11, 30, 14, 45, tzinfo=UTC), 10, 0)
    columns = page_of(as_owner, range="7d").context["plot"].columns
    assert [(column.when, column.total) for column in columns[-2:]] == [
        ("Mon 30 Nov 2026", 10),
        ("Tue 1 Dec 2026", 1),
    ]
    assert len(columns) == 7
    assert [line["start"] for line in lines_of(as_owner, range="7d")] == [
        "2026-11-30T00:00:00+09:00",
        "2026-12-01T00:00:00+09:00",
    ]


def test_two_days_are_told_by_the_hour(rail: Tenant, as_owner: Client) -> None:
    used(rail, NOW, 1, 0)
    used(rail, NOW - timedelta(hours=24, minutes=45), 2, 0)
    used(rail, NOW - timedelta(hours=24, minutes=46), 4, 0)
    plot = page_of(as_owner, range="2d").context["plot"]
    assert len(plot.columns) == 48
    assert [(column.when, column.total) for column in plot.used] == [
        ("30 Nov 2026, 00:00 to 01:00", 2),
        ("1 Dec 2026, 00:00 to 01:00", 1),
    ]


def test_keys_of_one_name_are_told_apart(rail: Tenant, as_owner: Client) -> None:
    for tokens in (1, 2):
        key: Any = ApiKeyFactory(tenant=rail, name="app")
        used(rail, NOW, tokens, 0, api_key_id=key.id)
    used(rail, NOW, 4, 0, user_id=User.objects.get(username="the owner").id)
    names = [row.name for row in page_of(as_owner, group="api_key").context["lines"]]
    assert len(set(names)) == 3
    assert names[0] == "no key: in the chat"


def test_costs_are_shown_by_currency_where_there_are_any(rail: Tenant, as_owner: Client) -> None:
    used(rail, NOW, 1, 0)
    assert "Cost" not in page_of(as_owner).content.decode()
    used(rail, NOW, 1, 0, cost=Decimal("0.25"), currency="EUR")
    used(rail, NOW, 1, 0, cost=Decimal("1.5"), currency="USD")
    assert "0.25 EUR, 1.50 USD" in page_of(as_owner).content.decode()
    [line] = lines_of(as_owner)
    assert (Decimal(line["cost_EUR"]), Decimal(line["cost_USD"])) == (Decimal("0.25"), Decimal("1.5"))


def test_no_name_becomes_a_formula_in_a_spreadsheet(rail: Tenant, as_owner: Client) -> None:
    key: Any = ApiKeyFactory(tenant=rail, name='=HYPERLINK("https://example.com")')
    used(rail, NOW, 1, 0, api_key_id=key.id, model="@model")
    [line] = lines_of(as_owner)
    assert line["api_key"].startswith("'=HYPERLINK")
    assert line["model"] == "'@model"


@pytest.mark.parametrize(
    "query",
    [{"range": "1000y"}, {"bucket": "minute"}, {"group": "tenant"}, {"range": "90d", "bucket": "hour"}],
)
def test_what_there_is_not_to_choose_shows_the_usual(
    rail: Tenant, as_owner: Client, query: dict[str, str]
) -> None:
    answer = page_of(as_owner, **query)
    assert answer.status_code == 200
    assert len(answer.context["plot"].columns) in (30, 90)


def test_every_way_to_look_is_a_link_that_keeps_the_others(rail: Tenant, as_owner: Client) -> None:
    page = page_of(as_owner, range="7d", bucket="hour", group="model").content.decode()
    assert "?range=7d&amp;bucket=hour&amp;group=lane" in page
    assert "?range=2d&amp;bucket=hour&amp;group=model" in page
    assert f"{reverse('tenant-usage-csv', args=['rail'])}?range=7d&amp;bucket=hour&amp;group=model" in page


def test_usage_costs_as_many_queries_for_many_keys_as_for_few(
    rail: Tenant, as_owner: Client, django_assert_max_num_queries: Any
) -> None:
    def more(count: int) -> None:
        for _ in range(count):
            used(rail, NOW, 1, 0, api_key_id=ApiKeyFactory(tenant=rail).id)

    more(2)
    with django_assert_max_num_queries(12) as few:
        page_of(as_owner, group="api_key")
    more(20)
    with django_assert_max_num_queries(len(few)):
        page_of(as_owner, group="api_key")
