from __future__ import annotations

import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from accounts.models import AuditEvent, Tenant
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import every_page, id_of, project, stored_key

pytestmark = pytest.mark.django_db(transaction=True)


async def works(raw: str) -> bool:
    return (await AsgiClient(raw).get("/v1/models")).status == 200


async def test_a_service_account_comes_with_a_key_that_works(admin: AsgiClient, tenant: Tenant) -> None:
    path = f"{project(tenant)}/service_accounts"
    made = (await admin.post(path, {"name": "app", "expires_in_seconds": 3600})).json()
    key = made.pop("api_key")
    assert await works(key["value"])
    assert key == {
        "id": key["id"],
        "object": "organization.project.service_account.api_key",
        "name": "app",
        "value": key["value"],
        "created_at": made["created_at"],
        "expires_at": key["expires_at"],
    }
    assert abs(key["expires_at"] - time.time() - 3600) < 60
    assert made == {
        "id": f"svc_acct_{id_of(key['id']).hex}",
        "object": "organization.project.service_account",
        "name": "app",
        "role": "member",
        "created_at": made["created_at"],
    }
    assert (await admin.get(f"{path}/{made['id']}")).json() == made
    assert made in await every_page(admin, path, limit=1)
    assert (await sync_to_async(stored_key)(id_of(key["id"]))).scopes == ["inference", "read"]
    event = await AuditEvent.objects.aget(action="api_key.create")
    assert (event.actor_kind, event.actor_name) == ("api_key", "the admin's")


async def test_a_named_request_makes_one_account_whose_key_is_not_told_again(
    admin: AsgiClient, tenant: Tenant
) -> None:
    path = f"{project(tenant)}/service_accounts"
    first, again = [
        (await admin.post(path, {"name": "app"}, headers={"Idempotency-Key": "x"})).json() for _ in range(2)
    ]
    assert again == {**first, "api_key": {**first["api_key"], "value": None}}


async def test_a_deleted_accounts_keys_open_nothing_also_rotated_ones(
    admin: AsgiClient, tenant: Tenant
) -> None:
    path = f"{project(tenant)}/service_accounts"
    made, kept = [(await admin.post(path, {"name": name})).json() for name in ("app", "kept")]
    rotated = (await admin.post(f"{project(tenant)}/api_keys/{made['api_key']['id']}/rotate", {})).json()
    assert rotated["owner"]["service_account"]["id"] == made["id"]
    assert [entry["name"] for entry in await every_page(admin, path, limit=1)].count("app") == 1
    deletion = {"id": made["id"], "object": "organization.project.service_account.deleted", "deleted": True}
    assert (await admin.request("DELETE", f"{path}/{made['id']}")).json() == deletion
    assert not await works(made["api_key"]["value"])
    assert not await works(rotated["value"])
    assert await works(kept["api_key"]["value"])
    assert (await admin.request("DELETE", f"{path}/{made['id']}")).json() == deletion
    names = [entry["name"] for entry in await every_page(admin, path, limit=1)]
    assert "app" not in names
    assert "kept" in names
    assert (await admin.get(f"{path}/{made['id']}")).status == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "name"),
        ({"name": "x" * 101}, "invalid_value", "name"),
        ({"name": "a", "expires_in_seconds": 0}, "invalid_value", "expires_in_seconds"),
        (
            {"name": "a", "create_service_account_only": True},
            "unsupported_parameter",
            "create_service_account_only",
        ),
    ],
)
async def test_a_wrong_account_is_refused_by_name(
    admin: AsgiClient, tenant: Tenant, body: dict[str, Any], code: str, param: str
) -> None:
    answer = await admin.post(f"{project(tenant)}/service_accounts", body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
