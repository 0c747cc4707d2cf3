from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
import time_machine
from asgiref.sync import sync_to_async
from pytest_django import DjangoAssertNumQueries

from accounts.models import LedgerEntry, Tenant
from accounts.tenancy import every_tenant
from inference.api.organization.usage import completions_usage
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import call_of

pytestmark = pytest.mark.django_db(transaction=True)

USAGE = "/v1/organization/usage/completions"
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
KEY, ANOTHER_KEY, USER = UUID(int=1), UUID(int=2), UUID(int=3)

Use = Callable[..., None]


@pytest.fixture
def used(tenant: Tenant, other: Tenant) -> Use:
    """Writes an entry of the ledger: of ``tenant``, on Monday morning, if nothing else is said."""

    def write(hour: float = 10, *, of: Tenant = tenant, prompt: int = 100, **fields: Any) -> None:
        at = datetime.fromtimestamp(MONDAY.timestamp() + hour * 3600, UTC)
        with every_tenant("the test writes entries of several tenants"):
            LedgerEntry.objects.create(
                **{
                    "generation_id": uuid4(),
                    "tenant_id": of.id,
                    "api_key_id": KEY,
                    "model": "m",
                    "lane": "normal",
                    "prompt_tokens": prompt,
                    "cached_tokens": 40,
                    "completion_tokens": 7,
                    "accepted_prediction_tokens": 3,
                    "rejected_prediction_tokens": 2,
                    "settled_at": at,
                    **fields,
                }
            )

    return write


def unix(hour: float) -> int:
    return int(MONDAY.timestamp() + hour * 3600)


async def asked(client: AsgiClient, **question: Any) -> dict[str, Any]:
    query = urlencode({"start_time": unix(0), "end_time": unix(24), **question}, doseq=True)
    answer = await client.get(f"{USAGE}?{query}")
    assert answer.status == 200, answer.body
    page: dict[str, Any] = answer.json()
    return page


async def sums(client: AsgiClient, *names: str, **question: Any) -> list[tuple[Any, ...]]:
    """Of the one bucket that is asked for: the groups, and the tokens of prompts."""
    [bucket] = (await asked(client, **question))["data"]
    return sorted((*(result[name] for name in names), result["input_tokens"]) for result in bucket["results"])


async def test_a_bucket_says_everything_that_was_used(admin: AsgiClient, used: Use) -> None:
    await sync_to_async(used)(10)
    await sync_to_async(used)(23.99)
    await sync_to_async(used)(24)
    assert await asked(admin) == {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": unix(0),
                "end_time": unix(24),
                "results": [
                    {
                        "object": "organization.usage.completions.result",
                        "input_tokens": 200,
                        "input_cached_tokens": 80,
                        "input_uncached_tokens": 120,
                        "output_tokens": 14,
                        "input_audio_tokens": 0,
                        "output_audio_tokens": 0,
                        "accepted_prediction_tokens": 6,
                        "rejected_prediction_tokens": 4,
                        "num_model_requests": 2,
                        "project_id": None,
                        "user_id": None,
                        "api_key_id": None,
                        "model": None,
                        "batch": None,
                        "service_tier": None,
                    }
                ],
            }
        ],
        "has_more": False,
        "next_page": None,
    }


async def test_an_admin_sees_its_own_projects_usage_and_an_operator_everybodys(
    admin: AsgiClient, operator: AsgiClient, tenant: Tenant, other: Tenant, used: Use
) -> None:
    await sync_to_async(used)(prompt=100)
    await sync_to_async(used)(of=other, prompt=900)
    own, foreign = f"proj_{tenant.id.hex}", f"proj_{other.id.hex}"
    assert await sums(admin, "project_id", group_by="project_id") == [(own, 100)]
    assert await sums(admin, project_ids=own) == [(100,)]
    assert await sums(operator) == [(1000,)]
    assert await sums(operator, "project_id", group_by="project_id") == sorted([(own, 100), (foreign, 900)])
    assert await sums(operator, project_ids=foreign) == [(900,)]
    for project_ids in ([foreign], [own, foreign], [f"proj_{uuid4().hex}"], ["x"]):
        query = urlencode({"start_time": 0, "project_ids": project_ids}, doseq=True)
        answer = await admin.get(f"{USAGE}?{query}")
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            404,
            "project_not_found",
            "project_ids",
        )


async def test_it_is_summed_by_what_is_asked_for(admin: AsgiClient, used: Use) -> None:
    for fields in (
        {"prompt": 100},
        {"prompt": 200, "api_key_id": ANOTHER_KEY, "lane": "high"},
        {"prompt": 400, "api_key_id": None, "user_id": USER},
        {"prompt": 800, "model": "n", "lane": "high"},
    ):
        await sync_to_async(used)(**fields)
    one, two, person = f"key_{KEY.hex}", f"key_{ANOTHER_KEY.hex}", f"user_{USER.hex}"
    assert await sums(admin, "model", group_by="model") == [("m", 700), ("n", 800)]
    assert await sums(admin, "service_tier", group_by="service_tier") == [
        ("default", 500),
        ("priority", 1000),
    ]
    assert await sums(admin, "model", "service_tier", group_by=["service_tier", "model"]) == [
        ("m", "default", 500),
        ("m", "priority", 200),
        ("n", "priority", 800),
    ]
    [bucket] = (await asked(admin, group_by=["api_key_id", "user_id"]))["data"]
    found = {(each["api_key_id"], each["user_id"]): each["input_tokens"] for each in bucket["results"]}
    assert found == {(one, None): 900, (two, None): 200, (None, person): 400}


async def test_it_is_narrowed_by_what_is_asked_for(admin: AsgiClient, used: Use) -> None:
    for fields in (
        {"prompt": 100},
        {"prompt": 200, "api_key_id": ANOTHER_KEY},
        {"prompt": 400, "api_key_id": None, "user_id": USER},
        {"prompt": 800, "model": "n"},
    ):
        await sync_to_async(used)(**fields)
    one, two, person = f"key_{KEY.hex}", f"key_{ANOTHER_KEY.hex}", f"user_{USER.hex}"
    assert await sums(admin, api_key_ids=two) == [(200,)]
    assert await sums(admin, **{"api_key_ids[]": [one, two]}) == [(1100,)]
    assert await sums(admin, user_ids=person) == [(400,)]
    assert await sums(admin, models=["n"], api_key_ids=one) == [(800,)]
    assert await sums(admin, "model", group_by="model", api_key_ids=one) == [("m", 100), ("n", 800)]
    assert await sums(admin, api_key_ids=f"key_{uuid4().hex}") == []


@pytest.mark.parametrize(("width", "seconds"), [("1m", 60), ("1h", 3600), ("1d", 86_400)])
async def test_buckets_are_utcs_and_come_in_pages_empty_ones_too(
    admin: AsgiClient, tenant: Tenant, used: Use, width: str, seconds: int
) -> None:
    tenant.time_zone = "Asia/Seoul"
    await tenant.asave()
    for number in (0, 1, 4):
        await sync_to_async(used)(number * seconds / 3600)
    question = {"bucket_width": width, "end_time": unix(0) + 5 * seconds, "limit": 2}
    found, page, pages = [], None, 0
    while pages == 0 or page:
        answer = await asked(admin, **question, **({"page": page} if page else {}))
        found += answer["data"]
        page, pages = answer["next_page"], pages + 1
        assert answer["has_more"] is (page is not None)
    assert pages == 3
    assert [bucket["start_time"] for bucket in found] == [unix(0) + number * seconds for number in range(5)]
    assert [len(bucket["results"]) for bucket in found] == [1, 1, 0, 0, 1]


async def test_until_now_is_with_what_has_just_ended(admin: AsgiClient, used: Use) -> None:
    with time_machine.travel(MONDAY.timestamp() + 10 * 3600, tick=False):
        await sync_to_async(used)(10)
        [bucket] = (await admin.get(f"{USAGE}?start_time={unix(0)}")).json()["data"]
    assert bucket["end_time"] == unix(10) + 1
    assert bucket["results"][0]["num_model_requests"] == 1


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("end_time=5", "start_time"),
        ("start_time=x", "start_time"),
        ("start_time=-1", "start_time"),
        ("start_time=99999999999999", "start_time"),
        ("start_time=5&end_time=5", "start_time"),
        ("start_time=0&end_time=1.5", "end_time"),
        ("start_time=0&bucket_width=1w", "bucket_width"),
        ("start_time=0&group_by=colour", "group_by[0]"),
        ("start_time=0&group_by[]=model&group_by[]=batch", "group_by[1]"),
        ("start_time=0&limit=0", "limit"),
        ("start_time=0&limit=32", "limit"),
        ("start_time=0&limit=169&bucket_width=1h", "limit"),
        ("start_time=0&limit=1441&bucket_width=1m", "limit"),
        ("start_time=0&page=x", "page"),
        ("start_time=0&api_key_ids=x", "api_key_ids[0]"),
        ("start_time=0&user_ids=proj_" + "0" * 32, "user_ids[0]"),
        ("start_time=0&start_time=1", "start_time"),
        ("start_time=0&batch=true", "batch"),
    ],
)
async def test_a_wrong_question_is_refused_by_name(admin: AsgiClient, query: str, param: str) -> None:
    answer = await admin.get(f"{USAGE}?{query}")
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


async def test_all_of_time_in_minutes_is_a_page_like_any_other(operator: AsgiClient) -> None:
    answer = await operator.get(f"{USAGE}?start_time=0&end_time=253370764799&bucket_width=1m&limit=1440")
    assert answer.status == 200
    assert len(answer.json()["data"]) == 1440


def test_a_page_asks_as_much_of_the_database_however_much_was_used(
    admin: AsgiClient, tenant: Tenant, used: Use, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for hour in range(20):
        used(hour, api_key_id=uuid4(), lane=("high", "low")[hour % 2])
    assert admin.key
    for query in ("limit=1", "group_by=api_key_id&group_by=service_tier&bucket_width=1h&limit=24"):
        call = call_of(admin.key, f"{USAGE}?start_time={unix(0)}&end_time={unix(24)}&{query}")
        # The tenant, its usage; and the lanes' tiers.
        with django_assert_num_queries(2 if "tier" not in query else 3):
            page: Any = completions_usage.function(call)
    assert sum(len(bucket.results) for bucket in page.data) == 20
