from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from accounts.limits import Limits
from accounts.models import AuditEvent, Entitlement, Lane, Tenant
from accounts.tenancy import tenant_scope
from inference.api.organization.rate_limits import UNLIMITED, list_project_rate_limits
from tests.factories import EntitlementFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import call_of, project

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def limited(tenant: Tenant) -> Tenant:
    """A tenant with a budget and rates in the normal lane."""
    with tenant_scope(tenant.id):
        allowance = Entitlement.objects.get(lane="normal").allowance
        allowance.tokens_per_day = 5000
        allowance.requests_per_minute = 10
        allowance.tokens_per_minute = 900
        allowance.save()
    return tenant


@sync_to_async
def limits_of(tenant: Tenant, lane: str) -> Limits:
    with tenant_scope(tenant.id):
        limits: Limits = Entitlement.objects.select_related("allowance").get(lane=lane).allowance.limits
    return limits


def limit(lane: str, requests: int = UNLIMITED, tokens: int = UNLIMITED) -> dict[str, Any]:
    return {
        "id": f"rl-{lane}",
        "object": "project.rate_limit",
        "model": lane,
        "max_requests_per_1_minute": requests,
        "max_tokens_per_1_minute": tokens,
    }


async def test_there_is_one_for_each_lane_with_a_standing_right(admin: AsgiClient, limited: Tenant) -> None:
    @sync_to_async
    def grant_for_a_while() -> None:
        EntitlementFactory(
            tenant=limited,
            lane=Lane.objects.get(name="high"),
            ends_at=timezone.now() + timedelta(days=1),
            allowance__requests_per_minute=1,
        )

    await grant_for_a_while()
    page = (await admin.get(f"{project(limited)}/rate_limits")).json()
    assert page == {
        "object": "list",
        "data": [limit("high"), limit("normal", 10, 900), limit("low")],
        "first_id": "rl-high",
        "last_id": "rl-low",
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("query", "lanes", "has_more"),
    [
        ("limit=2", ["high", "normal"], True),
        ("after=rl-normal", ["low"], False),
        ("after=rl-low", [], False),
        ("after=rl-high&limit=1", ["normal"], True),
        ("before=rl-low", ["high", "normal"], False),
        ("before=rl-low&limit=1", ["normal"], True),
        ("after=rl-high&before=rl-low", ["normal"], False),
    ],
)
async def test_they_come_in_pages_either_way(
    admin: AsgiClient, tenant: Tenant, query: str, lanes: list[str], has_more: bool
) -> None:
    page = (await admin.get(f"{project(tenant)}/rate_limits?{query}")).json()
    assert ([entry["model"] for entry in page["data"]], page["has_more"]) == (lanes, has_more)


@pytest.mark.parametrize("query", ["after=rl-none", "before=normal", "limit=0", "limit=101"])
async def test_a_wrong_page_is_refused_by_name(admin: AsgiClient, tenant: Tenant, query: str) -> None:
    answer = await admin.get(f"{project(tenant)}/rate_limits?{query}")
    assert (answer.status, answer.error["param"]) == (400, query.partition("=")[0])


async def test_an_operator_sets_rates_and_leaves_the_rest(operator: AsgiClient, limited: Tenant) -> None:
    path = f"{project(limited)}/rate_limits/rl-normal"
    answer = await operator.post(path, {"max_requests_per_1_minute": 3})
    assert answer.json() == limit("normal", 3, 900)
    event = await AuditEvent.objects.aget(action="entitlement.change")
    assert (event.actor_kind, event.actor_name) == ("api_key", "the operator's")
    assert event.request_id == answer.headers["x-request-id"]
    answer = await operator.post(path, {"max_tokens_per_1_minute": UNLIMITED})
    assert answer.json() == limit("normal", 3)
    assert await limits_of(limited, "normal") == Limits(tokens_per_day=5000, requests_per_minute=3)
    assert (
        await operator.post(path, answer.json() | {"id": None, "object": None, "model": None})
    ).json() == (answer.json())
    assert (await operator.post(path, {"max_requests_per_1_minute": 0})).json() == limit("normal", 0)


async def test_an_admin_does_not_raise_its_own_rates(admin: AsgiClient, limited: Tenant) -> None:
    answer = await admin.post(
        f"{project(limited)}/rate_limits/rl-normal", {"max_requests_per_1_minute": 1000}
    )
    assert (answer.status, answer.error["code"]) == (403, "insufficient_scope")
    assert (await limits_of(limited, "normal")).requests_per_minute == 10


@pytest.mark.parametrize("id_", ["rl-none", "normal", "rl-", "x" * 300])
async def test_there_is_none_for_a_lane_without_a_right(
    operator: AsgiClient, tenant: Tenant, id_: str
) -> None:
    answer = await operator.post(f"{project(tenant)}/rate_limits/{id_}", {}, headers={"Idempotency-Key": "x"})
    assert (answer.status, answer.error["code"]) == (404, "rate_limit_not_found")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"max_requests_per_1_minute": -1}, "invalid_value", "max_requests_per_1_minute"),
        ({"max_tokens_per_1_minute": UNLIMITED + 1}, "invalid_value", "max_tokens_per_1_minute"),
        ({"max_tokens_per_1_minute": 1.5}, "invalid_type", "max_tokens_per_1_minute"),
        ({"max_requests_per_1_day": 5}, "unsupported_parameter", "max_requests_per_1_day"),
    ],
)
async def test_a_wrong_rate_is_refused_by_name(
    operator: AsgiClient, tenant: Tenant, body: dict[str, Any], code: str, param: str
) -> None:
    answer = await operator.post(f"{project(tenant)}/rate_limits/rl-normal", body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)


async def test_more_of_a_lane_that_takes_two_people_is_not_given_by_one_key(
    operator: AsgiClient, limited: Tenant
) -> None:
    await sync_to_async(Lane.objects.filter(name="normal").update)(approval_above_tokens=0)
    path = f"{project(limited)}/rate_limits/rl-normal"
    more = await operator.post(path, {"max_requests_per_1_minute": 11})
    assert (more.status, more.error["code"]) == (409, "conflict")
    assert (await limits_of(limited, "normal")).requests_per_minute == 10
    assert (await operator.post(path, {"max_requests_per_1_minute": 9})).json() == limit("normal", 9, 900)


def test_a_list_asks_as_much_of_the_database_whatever_its_length(
    admin: AsgiClient, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    assert admin.key
    call = call_of(admin.key, "/")
    with django_assert_num_queries(2):  # the project, its rights with what limits them
        page: Any = list_project_rate_limits.function(call, project_id=f"proj_{tenant.id.hex}")
    assert len(page.data) == 3
