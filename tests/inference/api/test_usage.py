"""``GET /v1/usage``: what a key's tenant used, in its own calendar."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from accounts.models import ApiKey, LedgerEntry
from accounts.tenancy import every_tenant
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, chat
from tests.inference.api.hand import Hand

pytestmark = pytest.mark.django_db(transaction=True)

#: 23:30 on the last day of November in Kolkata, which is half an hour off the hours of UTC.
EVENING = datetime(2026, 11, 30, 18, 0, tzinfo=UTC)


@pytest.fixture
def key(transactional_db: None) -> ApiKey:
    made: ApiKey = ApiKeyFactory(tenant=TenantFactory(time_zone="Asia/Kolkata"))
    EntitlementFactory(tenant=made.tenant)
    return made


@pytest.fixture
def client(key: Any, model: LanguageModel) -> AsgiClient:
    return AsgiClient(str(key.raw))


def used(tenant_id: uuid.UUID, at: datetime, **fields: Any) -> None:
    entry = {
        "generation_id": uuid.uuid4(),
        "tenant_id": tenant_id,
        "model": "tiny/model",
        "lane": "normal",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "accepted_prediction_tokens": 2,
        "settled_at": at,
    }
    with every_tenant("the test writes a ledger"):
        LedgerEntry.objects.create(**{**entry, **fields})


async def usage_of(client: AsgiClient, query: str = "") -> dict[str, Any]:
    answer = await client.get(f"/v1/usage{query}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def test_what_a_generation_used_is_there_when_it_has_ended(client: AsgiClient, hand: Hand) -> None:
    assert (await usage_of(client))["data"] == []
    async with client.open("POST", CHAT, chat()) as exchange:
        run = await hand.answer(["Hi", " there"])
        await exchange.end()
    told = await usage_of(client, "?group_by=model&group_by=lane&group_by[]=api_key")
    [row] = told["data"]
    assert (told["object"], told["time_zone"], told["bucket"]) == ("usage", "Asia/Kolkata", "day")
    assert (row["model"], row["lane"], row["generations"]) == ("tiny/model", "normal", 1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (len(run.claim.task.prompt), 2)
    assert row["api_key_id"].startswith("key_")
    assert row["costs"] == {}


async def test_days_are_the_tenants_own(client: AsgiClient, key: ApiKey) -> None:
    for at in (EVENING, EVENING + timedelta(minutes=30), EVENING + timedelta(hours=2)):
        await sync_to_async(used)(key.tenant_id, at)
    told = await usage_of(client, "?start=2026-11-30&end=2026-12-02")
    midnight = int(EVENING.timestamp()) + 1800
    assert [(row["start"], row["end"], row["generations"]) for row in told["data"]] == [
        (midnight - 86_400, midnight, 1),
        (midnight, midnight + 86_400, 2),
    ]
    assert (told["start"], told["end"]) == (midnight - 86_400, midnight + 86_400)
    assert {row["api_key_id"] for row in told["data"]} == {None}


async def test_hours_begin_with_those_of_the_tenants_clocks(client: AsgiClient, key: ApiKey) -> None:
    for minutes in (0, 29, 30, 59):
        await sync_to_async(used)(key.tenant_id, EVENING + timedelta(minutes=minutes))
    start = int(EVENING.timestamp()) - 1800
    told = await usage_of(client, f"?bucket=hour&start={start}&end={start + 7200}")
    assert [(row["start"], row["end"], row["generations"]) for row in told["data"]] == [
        (start, start + 3600, 2),
        (start + 3600, start + 7200, 2),
    ]


async def test_all_figures_are_sums_and_costs_are_exact_texts(client: AsgiClient, key: ApiKey) -> None:
    @sync_to_async
    def make() -> None:
        for cost in ("0.1", "0.200000001", "0.7"):
            used(key.tenant_id, EVENING, cost=Decimal(cost), currency="EUR", api_key_id=key.id)
        used(key.tenant_id, EVENING, cost=Decimal(12), currency="USD", model="other")

    await make()
    [row] = (await usage_of(client, "?start=2026-11-30&end=2026-12-01"))["data"]
    assert {name: value for name, value in row.items() if name not in ("start", "end")} == {
        "api_key_id": None,
        "model": None,
        "lane": None,
        "generations": 4,
        "prompt_tokens": 40,
        "cached_tokens": 16,
        "completion_tokens": 20,
        "accepted_prediction_tokens": 8,
        "costs": {"EUR": "1.000000001", "USD": "12"},
    }
    by_key = (await usage_of(client, "?start=2026-11-30&end=2026-12-01&group_by=api_key"))["data"]
    assert {row["api_key_id"]: row["generations"] for row in by_key} == {None: 1, f"key_{key.id.hex}": 3}


async def test_other_tenants_usage_is_not_among_it(client: AsgiClient, key: ApiKey) -> None:
    await sync_to_async(used)(key.tenant_id, timezone.now())
    await sync_to_async(used)(uuid.uuid4(), timezone.now())
    [row] = (await usage_of(client))["data"]
    assert row["generations"] == 1


async def test_without_a_time_the_last_30_days_are_told_and_of_hours_the_last_24(client: AsgiClient) -> None:
    for query, seconds in (("", 30 * 86_400), ("?bucket=hour", 86_400)):
        told = await usage_of(client, query)
        assert told["end"] - told["start"] == seconds
        assert abs(told["end"] - timezone.now().timestamp()) < 60


@pytest.mark.parametrize(
    ("query", "param", "said"),
    [
        ("?start=2026-11-30&end=2026-11-30", "start", "before"),
        ("?start=2026-12-01&end=2026-11-30", "start", "before"),
        ("?start=2025-01-01&end=2026-06-01", "start", "366 days"),
        ("?bucket=hour&start=2026-01-01&end=2026-03-01", "start", "31 days"),
        ("?start=yesterday", "start", "Unix time"),
        ("?end=2026-02-30", "end", "Unix time"),
        ("?start=-5", "start", "Unix time"),
        ("?start=1999-12-30&end=2000-03-01", "start", "2000"),
        ("?end=99999999999999", "end", "Unix time"),
        ("?bucket=week", "bucket", "day"),
        ("?group_by=user", "group_by[0]", "model"),
        ("?days=3", "days", "days"),
    ],
)
async def test_what_cannot_be_told_is_refused_by_name(
    client: AsgiClient, query: str, param: str, said: str
) -> None:
    answer = await client.get(f"/v1/usage{query}")
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert said in answer.error["message"]


async def test_the_longest_time_that_can_be_asked_for_is_told(client: AsgiClient) -> None:
    assert (await usage_of(client, "?start=2026-01-01&end=2027-01-02"))["data"] == []
    assert (await usage_of(client, "?bucket=hour&start=2026-10-01&end=2026-11-01"))["data"] == []


async def test_a_key_that_may_only_generate_is_not_told(key: ApiKey, model: LanguageModel) -> None:
    only = await sync_to_async(ApiKeyFactory)(tenant=key.tenant, scopes=["inference"])
    answer = await AsgiClient(str(only.raw)).get("/v1/usage")
    assert (answer.status, answer.error["code"]) == (403, "insufficient_scope")
