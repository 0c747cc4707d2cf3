from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from asgiref.sync import sync_to_async

from accounts.models import LedgerEntry, Tenant
from accounts.tenancy import every_tenant
from tests.inference.api.asgi_client import AsgiClient

pytestmark = pytest.mark.django_db(transaction=True)

COSTS = "/v1/organization/costs"
MONDAY = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
DAY = 86_400
KEY, USER = UUID(int=1), UUID(int=3)

Spend = Callable[..., None]


@pytest.fixture
def spent(tenant: Tenant) -> Spend:
    """Writes an entry of the ledger that cost so much, in euros if nothing else is said."""

    def write(
        cost: str | None, currency: str = "EUR", *, day: int = 0, of: Tenant = tenant, **fields: Any
    ) -> None:
        with every_tenant("the test writes entries of several tenants"):
            LedgerEntry.objects.create(
                **{
                    "generation_id": uuid4(),
                    "tenant_id": of.id,
                    "api_key_id": KEY,
                    "model": "m",
                    "lane": "normal",
                    "prompt_tokens": 10,
                    "cached_tokens": 0,
                    "completion_tokens": 5,
                    "settled_at": datetime.fromtimestamp(MONDAY + day * DAY + 60, UTC),
                    "cost": cost and Decimal(cost),
                    "currency": currency if cost else "",
                    **fields,
                }
            )

    return write


async def asked(client: AsgiClient, **question: Any) -> list[dict[str, Any]]:
    query = urlencode({"start_time": MONDAY, "end_time": MONDAY + DAY, **question}, doseq=True)
    answer = await client.get(f"{COSTS}?{query}")
    assert answer.status == 200, answer.body
    buckets: list[dict[str, Any]] = answer.json()["data"]
    return buckets


async def amounts(client: AsgiClient, *names: str, **question: Any) -> list[tuple[Any, ...]]:
    [bucket] = await asked(client, **question)
    return sorted(
        (*(result[name] for name in names), result["amount"]["value"], result["amount"]["currency"])
        for result in bucket["results"]
    )


async def test_a_day_says_what_it_cost_in_each_currency(admin: AsgiClient, spent: Spend) -> None:
    for cost, currency in (("0.1", "EUR"), ("0.2", "EUR"), ("7.000000001", "USD"), (None, "")):
        await sync_to_async(spent)(cost, currency)
    [bucket] = await asked(admin)
    assert bucket == {
        "object": "bucket",
        "start_time": MONDAY,
        "end_time": MONDAY + DAY,
        "results": [
            {
                "object": "organization.costs.result",
                "amount": {"value": value, "currency": currency},
                "line_item": None,
                "project_id": None,
                "user_id": None,
                "api_key_id": None,
            }
            for value, currency in ((0.3, "eur"), (7.000000001, "usd"))
        ],
    }


async def test_days_are_utcs_and_come_in_pages(admin: AsgiClient, spent: Spend) -> None:
    await sync_to_async(spent)("1", day=0)
    await sync_to_async(spent)("2", day=2)
    found: list[Any] = []
    page: str | None = None
    while not found or page:
        query = {
            "start_time": MONDAY,
            "end_time": MONDAY + 3 * DAY,
            "limit": 2,
            **({"page": page} if page else {}),
        }
        answer = (await admin.get(f"{COSTS}?{urlencode(query)}")).json()
        assert answer["object"] == "page"
        found += [[result["amount"]["value"] for result in bucket["results"]] for bucket in answer["data"]]
        page = answer["next_page"]
    assert found == [[1.0], [], [2.0]]


async def test_costs_are_summed_and_narrowed_by_what_is_asked_for(
    admin: AsgiClient, operator: AsgiClient, tenant: Tenant, other: Tenant, spent: Spend
) -> None:
    await sync_to_async(spent)("1")
    await sync_to_async(spent)("2", lane="high")
    await sync_to_async(spent)("4", model="n", api_key_id=None, user_id=USER)
    await sync_to_async(spent)("8", of=other)
    own, foreign = f"proj_{tenant.id.hex}", f"proj_{other.id.hex}"
    key, person = f"key_{KEY.hex}", f"user_{USER.hex}"
    assert await amounts(admin) == [(7.0, "eur")]
    assert await amounts(operator, "project_id", group_by="project_id") == sorted(
        [(own, 7.0, "eur"), (foreign, 8.0, "eur")]
    )
    assert await amounts(operator, project_ids=foreign) == [(8.0, "eur")]
    assert await amounts(admin, "line_item", group_by="line_item") == [
        ("m, high", 2.0, "eur"),
        ("m, normal", 1.0, "eur"),
        ("n, normal", 4.0, "eur"),
    ]
    assert await amounts(admin, line_items=["m, high", "n, normal"]) == [(6.0, "eur")]
    assert await amounts(admin, "api_key_id", group_by="api_key_id", api_key_ids=key) == [(key, 3.0, "eur")]
    assert await amounts(admin, "user_id", group_by="user_id", user_ids=person) == [(person, 4.0, "eur")]
    refused = await admin.get(f"{COSTS}?start_time=0&project_ids={foreign}")
    assert (refused.status, refused.error["code"]) == (404, "project_not_found")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "start_time"),
        ("start_time=0&bucket_width=1h", "bucket_width"),
        ("start_time=0&limit=181", "limit"),
        ("start_time=0&group_by=model", "group_by[0]"),
        ("start_time=0&page=x", "page"),
        ("start_time=0&models=m", "models"),
    ],
)
async def test_a_wrong_question_is_refused_by_name(admin: AsgiClient, query: str, param: str) -> None:
    answer = await admin.get(f"{COSTS}?{query}")
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
