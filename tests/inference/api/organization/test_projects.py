from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from accounts import tenants
from accounts.models import AuditEvent, Entitlement, Lane, Tenant
from accounts.tenancy import tenant_scope
from tests.factories import ACTOR, ApiKeyFactory, TenantFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import PROJECTS, every_page, id_of, project

pytestmark = pytest.mark.django_db(transaction=True)


@sync_to_async
def lanes_of(project_id: str) -> list[str]:
    with tenant_scope(id_of(project_id)):
        return list(Entitlement.objects.order_by("lane__rank").values_list("lane_id", flat=True))


@sync_to_async
def last_event(action: str) -> AuditEvent:
    return AuditEvent.objects.filter(action=action).latest("sequence")


async def test_an_admin_sees_its_own_project(admin: AsgiClient, tenant: Tenant, other: Tenant) -> None:
    expected = {
        "id": f"proj_{tenant.id.hex}",
        "object": "organization.project",
        "name": tenant.name,
        "slug": tenant.slug,
        "time_zone": "UTC",
        "created_at": int(tenant.created_at.timestamp()),
        "archived_at": None,
        "status": "active",
    }
    assert (await admin.get(PROJECTS)).json() == {
        "object": "list",
        "data": [expected],
        "first_id": expected["id"],
        "last_id": expected["id"],
        "has_more": False,
    }
    assert (await admin.get(project(tenant))).json() == expected


async def test_an_operator_sees_all_projects_and_archived_ones_on_demand(
    operator: AsgiClient, tenant: Tenant, other: Tenant
) -> None:
    await sync_to_async(tenants.close)(tenant=other, actor=ACTOR)
    active = await every_page(operator, PROJECTS, limit=1)
    everything = await every_page(operator, f"{PROJECTS}?include_archived=true", limit=1)
    assert f"proj_{tenant.id.hex}" in [entry["id"] for entry in active]
    [archived] = [entry for entry in everything if entry not in active]
    assert (archived["id"], archived["status"]) == (f"proj_{other.id.hex}", "archived")
    assert archived["archived_at"] is not None
    assert (await operator.get(project(other))).json() == archived


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_are_in_one_order_also_among_projects_of_the_same_moment(
    operator: AsgiClient, order: str
) -> None:
    @sync_to_async
    def make() -> list[str]:
        made = [TenantFactory() for _ in range(5)]
        Tenant.objects.filter(id__in=[tenant.id for tenant in made]).update(
            created_at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        return sorted((f"proj_{tenant.id.hex}" for tenant in made), reverse=order == "desc")

    of_one_moment = await make()
    for limit in (1, 2, 100):
        found = [
            entry["id"] for entry in await every_page(operator, f"{PROJECTS}?order={order}", limit=limit)
        ]
        assert len(set(found)) == len(found)
        assert [id_ for id_ in found if id_ in of_one_moment] == of_one_moment


async def test_a_list_goes_on_behind_what_is_no_longer_shown(operator: AsgiClient) -> None:
    [first, second, *_] = [await sync_to_async(TenantFactory)() for _ in range(3)]
    await sync_to_async(tenants.close)(tenant=first, actor=ACTOR)
    page = (await operator.get(f"{PROJECTS}?after=proj_{first.id.hex}&limit=1")).json()
    assert [entry["id"] for entry in page["data"]] == [f"proj_{second.id.hex}"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=1&limit=2", "limit"),
        ("order=up", "order"),
        ("after=proj_0", "after"),
        (f"after=proj_{'0' * 32}", "after"),
        ("include_archived=yes", "include_archived"),
    ],
)
async def test_a_wrong_page_is_refused_by_name(operator: AsgiClient, query: str, param: str) -> None:
    answer = await operator.get(f"{PROJECTS}?{query}")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_value", param)


async def test_an_admins_list_does_not_go_on_behind_a_foreign_project(
    admin: AsgiClient, other: Tenant
) -> None:
    foreign = await admin.get(f"{PROJECTS}?after=proj_{other.id.hex}")
    unknown = await admin.get(f"{PROJECTS}?after=proj_{'0' * 32}")
    assert foreign.status == 400
    assert foreign.body == unknown.body


async def test_a_new_project_has_lanes_and_is_in_the_audit(operator: AsgiClient) -> None:
    answer = await operator.post(PROJECTS, {"name": "Späte Züge", "time_zone": "Asia/Seoul"})
    made = answer.json()
    assert (made["name"], made["slug"], made["time_zone"]) == ("Späte Züge", "spate-zuge", "Asia/Seoul")
    assert await lanes_of(made["id"]) == ["normal", "low"]
    event = await last_event("tenant.create")
    assert (event.actor_kind, event.actor_name) == ("api_key", "the operator's")
    assert event.request_id == answer.headers["x-request-id"]
    assert event.object_id == str(id_of(made["id"]))


async def test_short_names_are_made_of_names_and_never_taken_twice(operator: AsgiClient) -> None:
    slugs = [
        (await operator.post(PROJECTS, {"name": name})).json()["slug"]
        for name in ("Team A", "team a", "신호소", "信号所", "x" * 100)
    ]
    assert slugs[0] == "team-a"
    assert slugs[2] == "project"
    assert len(set(slugs)) == len(slugs)
    taken = await operator.post(PROJECTS, {"name": "Another", "slug": "team-a"})
    assert (taken.status, taken.error["code"], taken.error["param"]) == (400, "invalid_value", "slug")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "name"),
        ({"name": ""}, "invalid_value", "name"),
        ({"name": "x" * 101}, "invalid_value", "name"),
        ({"name": 1}, "invalid_type", "name"),
        ({"name": "a", "slug": "a b"}, "invalid_value", "slug"),
        ({"name": "a", "time_zone": "Mars"}, "invalid_value", "time_zone"),
        ({"name": "a", "lanes": ["fast"]}, "unknown_lane", "lanes"),
        ({"name": "a", "residency": "eu"}, "unsupported_parameter", "residency"),
    ],
)
async def test_a_wrong_project_is_refused_by_name(
    operator: AsgiClient, body: dict[str, Any], code: str, param: str
) -> None:
    answer = await operator.post(PROJECTS, body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)


async def test_a_project_gets_the_lanes_that_are_named(operator: AsgiClient) -> None:
    made = (await operator.post(PROJECTS, {"name": "a", "lanes": ["high", "low", "high"]})).json()
    assert await lanes_of(made["id"]) == ["high", "low"]


async def test_a_lane_that_needs_a_second_person_is_not_given_by_one_key(operator: AsgiClient) -> None:
    await sync_to_async(Lane.objects.filter(name="high").update)(approval_above_tokens=0)
    answer = await operator.post(PROJECTS, {"name": "Held back", "lanes": ["high"]})
    assert (answer.status, answer.error["code"]) == (409, "conflict")
    assert answer.headers["x-should-retry"] == "false"
    assert not await Tenant.objects.filter(name="Held back").aexists()


async def test_a_project_is_renamed_by_its_admin(admin: AsgiClient, tenant: Tenant) -> None:
    answer = await admin.post(project(tenant), {"name": "  Renamed "})
    assert (answer.json()["name"], answer.json()["slug"]) == ("Renamed", tenant.slug)
    assert (await last_event("tenant.rename")).actor_name == "the admin's"
    assert (await admin.post(project(tenant), {})).json() == answer.json()
    long = await admin.post(project(tenant), {"name": "x" * 101})
    assert (long.status, long.error["param"]) == (400, "name")


async def test_an_archived_projects_keys_open_nothing_and_it_gets_no_new_ones(
    operator: AsgiClient, admin: AsgiClient, tenant: Tenant
) -> None:
    first = (await operator.post(f"{project(tenant)}/archive")).json()
    assert first["status"] == "archived"
    assert (await operator.post(f"{project(tenant)}/archive")).json() == first
    assert (await admin.get(PROJECTS)).status == 401
    key = await sync_to_async(ApiKeyFactory)(tenant=tenant)
    for path in (
        "api_keys",
        f"api_keys/key_{key.id.hex}",
        f"api_keys/key_{key.id.hex}/rotate",
        "service_accounts",
    ):
        answer = await operator.post(
            f"{project(tenant)}/{path}", {"name": "new"} if "rotate" not in path else {}
        )
        assert (answer.status, answer.error["code"]) == (409, "conflict"), path
    shown = (await operator.get(f"{project(tenant)}/api_keys/key_{key.id.hex}")).json()
    assert shown["owner_project_access"] == "inactive"


async def test_a_named_request_makes_one_project(operator: AsgiClient) -> None:
    named = {"Idempotency-Key": "make-it"}
    first = await operator.post(PROJECTS, {"name": "Once"}, headers=named)
    again = await operator.post(PROJECTS, {"name": "Once"}, headers=named)
    assert first.status == 200
    assert again.json() == first.json()
    assert await Tenant.objects.filter(name="Once").acount() == 1
    different = await operator.post(PROJECTS, {"name": "Twice"}, headers=named)
    assert (different.status, different.error["code"]) == (409, "idempotency_conflict")
