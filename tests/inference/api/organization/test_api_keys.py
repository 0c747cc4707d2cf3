from __future__ import annotations

import json
import logging
import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from pytest_django import DjangoAssertNumQueries

from accounts import keys
from accounts.limits import Limits
from accounts.models import AuditEvent, Lane, Tenant
from inference.api.organization.api_keys import list_project_api_keys
from inference.models import LanguageModel
from tests.factories import ACTOR, ApiKeyFactory
from tests.fixtures.stored_text import stored_text
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import call_of, every_page, id_of, project, stored_key

pytestmark = pytest.mark.django_db(transaction=True)

NO_LIMITS = {
    "tokens_per_day": None,
    "tokens_per_week": None,
    "tokens_per_month": None,
    "requests_per_minute": None,
    "tokens_per_minute": None,
    "concurrency": None,
}


async def works(raw: str) -> bool:
    return (await AsgiClient(raw).get("/v1/models")).status == 200


async def test_a_new_key_works_and_its_text_is_told_once(
    admin: AsgiClient, tenant: Tenant, caplog: pytest.LogCaptureFixture, valkey: redis.Redis
) -> None:
    caplog.set_level(logging.DEBUG)
    path = f"{project(tenant)}/api_keys"
    answer = await admin.post(path, {"name": "ci"}, headers={"Idempotency-Key": "the-ci-key"})
    made = answer.json()
    raw = made.pop("value")
    assert await works(raw)
    prefix = raw.split("_")[1]
    assert made == {
        "id": made["id"],
        "object": "organization.project.api_key",
        "name": "ci",
        "redacted_value": f"sb_{prefix}...",
        "created_at": made["created_at"],
        "last_used_at": None,
        "expires_at": None,
        "owner": {
            "type": "service_account",
            "service_account": {
                "id": f"svc_acct_{id_of(made['id']).hex}",
                "name": "ci",
                "created_at": made["created_at"],
                "role": "member",
            },
        },
        "owner_project_access": "active",
        "revoked_at": None,
        "scopes": ["inference", "read"],
        "default_lane": None,
        "allowed_lanes": [],
        "allowed_models": [],
        "allowed_networks": [],
        "limits": NO_LIMITS,
    }
    assert (await admin.get(f"{path}/{made['id']}")).json() == made
    listed = await admin.get(path)
    assert made in listed.json()["data"]

    secret = raw.rsplit("_", 1)[1]
    assert secret not in listed.body.decode()
    assert secret not in caplog.text
    assert secret not in await sync_to_async(stored_text)()
    assert all(secret.encode() not in (valkey.dump(name) or b"") for name in valkey.scan_iter())

    event = await AuditEvent.objects.aget(action="api_key.create")
    assert (event.actor_kind, event.actor_name) == ("api_key", "the admin's")
    assert event.request_id == answer.headers["x-request-id"]
    assert event.tenant_id == tenant.id


async def test_a_named_request_makes_one_key_whose_text_is_not_told_again(
    admin: AsgiClient, tenant: Tenant
) -> None:
    path = f"{project(tenant)}/api_keys"
    named = {"Idempotency-Key": "one"}
    first = (await admin.post(path, {"name": "once"}, headers=named)).json()
    again = (await admin.post(path, {"name": "once"}, headers=named)).json()
    assert again == {**first, "value": None}
    assert await works(first["value"])
    rotated = (await admin.post(f"{path}/{first['id']}/rotate", {}, headers=named)).json()
    assert await works(rotated["value"])
    repeated = (await admin.post(f"{path}/{first['id']}/rotate", {}, headers=named)).json()
    assert repeated == {**rotated, "value": None}
    found = await every_page(admin, path, limit=100)
    assert [key["name"] for key in found].count("once") == 2


async def test_a_key_narrows_what_its_project_may(
    admin: AsgiClient, tenant: Tenant, model: LanguageModel
) -> None:
    body = {
        "name": "narrow",
        "scopes": ["read"],
        "expires_in_seconds": 3600,
        "default_lane": "low",
        "allowed_lanes": ["low"],
        "allowed_models": [model.name],
        "allowed_networks": ["127.0.0.1"],
        "limits": {"tokens_per_day": 1000, "concurrency": 0},
    }
    made = (await admin.post(f"{project(tenant)}/api_keys", body)).json()
    assert made["scopes"] == ["read"]
    assert abs(made["expires_at"] - time.time() - 3600) < 60
    assert (made["default_lane"], made["allowed_lanes"]) == ("low", ["low"])
    assert made["allowed_models"] == [model.name]
    assert made["allowed_networks"] == ["127.0.0.1"]
    assert made["limits"] == {**NO_LIMITS, "tokens_per_day": 1000, "concurrency": 0}
    key = await sync_to_async(stored_key)(id_of(made["id"]))
    assert key.allowance.limits == Limits(tokens_per_day=1000, concurrency=0)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "name"),
        ({"name": ""}, "invalid_value", "name"),
        ({"name": "a", "scopes": []}, "invalid_value", "scopes"),
        ({"name": "a", "scopes": ["root"]}, "invalid_value", "scopes[0]"),
        ({"name": "a", "scopes": ["operator"]}, "invalid_value", "scopes[0]"),
        ({"name": "a", "expires_in_seconds": 0}, "invalid_value", "expires_in_seconds"),
        ({"name": "a", "expires_in_seconds": 10**9}, "invalid_value", "expires_in_seconds"),
        ({"name": "a", "default_lane": "fast"}, "unknown_lane", "default_lane"),
        ({"name": "a", "allowed_lanes": ["fast"]}, "invalid_value", "allowed_lanes"),
        ({"name": "a", "allowed_models": ["nothing"]}, "invalid_value", "allowed_models"),
        ({"name": "a", "allowed_networks": ["everywhere"]}, "invalid_value", "allowed_networks"),
        ({"name": "a", "limits": {"tokens_per_day": -1}}, "invalid_value", "limits.tokens_per_day"),
        ({"name": "a", "limits": {"tokens_per_year": 1}}, "unsupported_parameter", "limits.tokens_per_year"),
        ({"name": "a", "colour": 1}, "unsupported_parameter", "colour"),
    ],
)
async def test_a_wrong_key_is_refused_by_name_and_none_is_made(
    admin: AsgiClient, tenant: Tenant, body: dict[str, Any], code: str, param: str
) -> None:
    path = f"{project(tenant)}/api_keys"
    before = await every_page(admin, path, limit=100)
    answer = await admin.post(path, body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
    assert await every_page(admin, path, limit=100) == before


async def test_a_revoked_key_opens_nothing_and_stays_to_be_looked_up(
    admin: AsgiClient, tenant: Tenant
) -> None:
    path = f"{project(tenant)}/api_keys"
    made = (await admin.post(path, {"name": "short-lived"})).json()
    deleted = {"id": made["id"], "object": "organization.project.api_key.deleted", "deleted": True}
    assert (await admin.request("DELETE", f"{path}/{made['id']}")).json() == deleted
    assert not await works(made["value"])
    assert (await admin.request("DELETE", f"{path}/{made['id']}")).json() == deleted
    assert await AuditEvent.objects.filter(action="api_key.revoke").acount() == 1
    shown = (await admin.get(f"{path}/{made['id']}")).json()
    assert shown["revoked_at"] is not None
    assert shown not in await every_page(admin, path, limit=1)
    assert shown in await every_page(admin, f"{path}?include_revoked=true", limit=1)


async def test_a_rotated_keys_successor_is_the_same_applications(admin: AsgiClient, tenant: Tenant) -> None:
    path = f"{project(tenant)}/api_keys"
    old = (await admin.post(path, {"name": "app", "limits": {"concurrency": 3}})).json()
    new = (await admin.post(f"{path}/{old['id']}/rotate", {"overlap_seconds": 60})).json()
    assert await works(old["value"])
    assert await works(new["value"])
    assert new["owner"] == old["owner"]
    assert (new["name"], new["limits"]) == (old["name"], old["limits"])
    ending = (await admin.get(f"{path}/{old['id']}")).json()
    assert abs(ending["expires_at"] - time.time() - 60) < 60
    at_once = (await admin.post(f"{path}/{new['id']}/rotate", {"overlap_seconds": 0})).json()
    assert not await works(new["value"])
    assert await works(at_once["value"])


async def test_a_key_that_works_no_more_is_not_changed(admin: AsgiClient, tenant: Tenant) -> None:
    path = f"{project(tenant)}/api_keys"
    made = (await admin.post(path, {"name": "gone"})).json()
    await admin.request("DELETE", f"{path}/{made['id']}")
    for verb, body in ((f"{made['id']}/rotate", {}), (made["id"], {"name": "back"})):
        answer = await admin.post(f"{path}/{verb}", body)
        assert (answer.status, answer.error["code"]) == (409, "conflict")
        assert answer.headers["x-should-retry"] == "false"


async def test_what_is_not_named_in_a_change_stays(admin: AsgiClient, tenant: Tenant) -> None:
    path = f"{project(tenant)}/api_keys"
    body = {
        "name": "app",
        "default_lane": "low",
        "allowed_lanes": ["low", "normal"],
        "limits": {"concurrency": 3},
    }
    made = (await admin.post(path, body)).json()
    made.pop("value")
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"name": "renamed"}, {"name": "renamed"}),
        ({"scopes": ["read"]}, {"scopes": ["read"]}),
        ({"allowed_lanes": []}, {"allowed_lanes": []}),
        ({"default_lane": "normal"}, {"default_lane": "normal"}),
        ({"limits": {"tokens_per_day": 5}}, {"limits": {**NO_LIMITS, "tokens_per_day": 5}}),
    ]
    for change, changed in changes:
        made = {**made, **changed}
        if "name" in changed:
            made["owner"]["service_account"]["name"] = changed["name"]
        assert (await admin.post(f"{path}/{made['id']}", change)).json() == made
    expiring = (await admin.post(f"{path}/{made['id']}", {"expires_in_seconds": 60})).json()
    assert abs(expiring.pop("expires_at") - time.time() - 60) < 60
    assert expiring == {name: value for name, value in made.items() if name != "expires_at"}


async def test_an_operators_key_is_not_an_admins_to_rotate_or_change(
    admin: AsgiClient, operator: AsgiClient, tenant: Tenant
) -> None:
    """Else it would be told the text of a key that opens every tenant."""
    strong = await sync_to_async(ApiKeyFactory)(tenant=tenant, scopes=["read", "operator"])
    path = f"{project(tenant)}/api_keys/key_{strong.id.hex}"
    for caller in (admin, operator):
        for verb, body in (("/rotate", {}), ("", {"scopes": ["read"]}), ("", {"name": "mine"})):
            answer = await caller.post(path + verb, body)
            assert (answer.status, answer.error["code"]) == (403, "insufficient_scope")
    assert (await sync_to_async(stored_key)(strong.id)).scopes == ["read", "operator"]


async def test_an_operator_reaches_the_keys_of_every_project_under_its_own_name_only(
    operator: AsgiClient, tenant: Tenant, other: Tenant
) -> None:
    made = (await operator.post(f"{project(tenant)}/api_keys", {"name": "app", "scopes": ["admin"]})).json()
    assert (await AsgiClient(made["value"]).get(project(tenant))).status == 200
    misplaced = await operator.get(f"{project(other)}/api_keys/{made['id']}")
    assert (misplaced.status, misplaced.error["code"]) == (404, "api_key_not_found")


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_keys_come_in_pages(admin: AsgiClient, tenant: Tenant, order: str) -> None:
    @sync_to_async
    def make() -> list[str]:
        return [f"key_{ApiKeyFactory(tenant=tenant).id.hex}" for _ in range(4)]

    made = await make()
    found = [
        key["id"] for key in await every_page(admin, f"{project(tenant)}/api_keys?order={order}", limit=2)
    ]
    assert len(found) == len(set(found)) == len(made) + 1  # the admin's own
    assert [id_ for id_ in found if id_ in made] == (made if order == "asc" else made[::-1])


def test_a_list_asks_as_much_of_the_database_whatever_its_length(
    admin: AsgiClient, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    low = Lane.objects.get(name="low")
    for number in range(6):
        issued = keys.create(tenant=tenant, name=f"key {number}", default_lane=low, actor=ACTOR)
        keys.rotate(key=issued.key, overlap=timedelta(hours=1), actor=ACTOR)
    assert admin.key
    path = f"{project(tenant)}/api_keys"
    project_id = path.split("/")[-2]
    for limit in (1, 100):
        call = call_of(admin.key, f"{path}?limit={limit}")
        with django_assert_num_queries(3):  # the project, the page, the first keys of their applications
            page: Any = list_project_api_keys.function(call, project_id=project_id)
    assert len(json.loads(page.model_dump_json())["data"]) == 13


async def test_a_key_that_is_narrowed_itself_gives_no_key_more_than_it_has(tenant: Tenant) -> None:
    @sync_to_async
    def make() -> tuple[Any, Any, Any]:
        narrow = ApiKeyFactory(tenant=tenant, scopes=["admin"], allowed_lanes=["low"], default_lane_id="low")
        limited = ApiKeyFactory(tenant=tenant, scopes=["admin"], allowance__tokens_per_day=1000)
        return narrow, limited, ApiKeyFactory(tenant=tenant)

    narrow, limited, wide = await make()
    path = f"{project(tenant)}/api_keys"
    accounts = f"{project(tenant)}/service_accounts"
    by_limited = AsgiClient(limited.raw)
    by_narrow = AsgiClient(narrow.raw)
    asked: list[tuple[AsgiClient, str, dict[str, Any], str | None]] = [
        (by_narrow, path, {"name": "a"}, "allowed_lanes"),
        (by_narrow, accounts, {"name": "a"}, None),
        (by_narrow, f"{path}/key_{narrow.id.hex}", {"allowed_lanes": []}, "allowed_lanes"),
        (by_narrow, f"{path}/key_{narrow.id.hex}", {"scopes": ["admin", "inference"]}, "scopes"),
        (by_narrow, f"{path}/key_{wide.id.hex}/rotate", {}, None),
        (by_limited, path, {"name": "a", "limits": {"tokens_per_day": 1}}, "limits.tokens_per_day"),
        (by_limited, accounts, {"name": "a"}, None),
        (by_limited, f"{path}/key_{limited.id.hex}", {"limits": {}}, "limits.tokens_per_day"),
        (by_limited, f"{path}/key_{wide.id.hex}/rotate", {}, None),
    ]
    for client, url, body, param in asked:
        answer = await client.post(url, body)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            403,
            "insufficient_scope",
            param,
        )
    assert await AuditEvent.objects.acount() == 0
    made = await by_narrow.post(path, {"name": "a", "allowed_lanes": ["low"], "default_lane": "low"})
    assert made.json()["allowed_lanes"] == ["low"]
    assert (await by_limited.post(f"{path}/key_{limited.id.hex}/rotate", {})).status == 200
