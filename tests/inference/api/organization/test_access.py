"""Who reaches what: scopes, and the walls between tenants."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async

from accounts.models import Tenant
from inference.api.endpoint import Endpoint
from inference.api.organization.access import OPERATORS
from inference.api.organization.projects import list_projects
from inference.api.organization.urls import urlpatterns
from inference.api.resource import Resource, endpoints_of
from inference.api.urls import urlpatterns as every_route
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory, EntitlementFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import chat
from tests.inference.api.organization.asking import PROJECTS, project, stored_key
from tests.inference.api.routes import body_of
from tests.inference.api.socket_client import Connect

pytestmark = pytest.mark.django_db(transaction=True)

ROUTES = [
    (f"/v1/{pattern.pattern}", endpoint)
    for pattern in urlpatterns
    for endpoint in endpoints_of(pattern.callback)
]
OF_A_PROJECT = [(path, endpoint) for path, endpoint in ROUTES if "<str:project_id>" in path]


def names(routes: list[tuple[str, Endpoint]]) -> list[str]:
    return [endpoint.name for _, endpoint in routes]


def url(path: str, **ids: str) -> str:
    nothing = {
        "project_id": f"proj_{uuid4().hex}",
        "api_key_id": f"key_{uuid4().hex}",
        "service_account_id": f"svc_acct_{uuid4().hex}",
        "rate_limit_id": "rl-normal",
    }
    for name, id_ in {**nothing, **ids}.items():
        path = path.replace(f"<str:{name}>", id_)
    return path


@pytest.mark.parametrize(("path", "endpoint"), ROUTES, ids=names(ROUTES))
@pytest.mark.parametrize("scopes", [[], ["inference", "read"]])
async def test_a_key_for_use_administers_nothing(
    tenant: Tenant, valkey: Any, path: str, endpoint: Endpoint, scopes: list[str]
) -> None:
    user = AsgiClient((await sync_to_async(ApiKeyFactory)(tenant=tenant, scopes=scopes)).raw)
    answer = await user.request(
        endpoint.method, url(path, project_id=f"proj_{tenant.id.hex}"), body_of(endpoint)
    )
    assert (answer.status, answer.error["code"]) == (403, "insufficient_scope")


async def test_a_key_that_reads_the_audit_opens_nothing_else(
    tenant: Tenant, valkey: Any, connect: Connect, model: LanguageModel
) -> None:
    raw = (await sync_to_async(ApiKeyFactory)(tenant=tenant, scopes=["audit"])).raw
    auditor = AsgiClient(raw)
    opened = []
    for pattern in every_route[:-1]:
        for endpoint in endpoints_of(pattern.callback):
            path = re.sub(r"<\w+:\w+>", "x", url(f"/v1/{pattern.pattern}"))
            answer = await auditor.request(endpoint.method, path, body_of(endpoint))
            if answer.status != 403 or answer.error["code"] != "insufficient_scope":
                opened.append(endpoint.name)
    assert opened == ["list_audit_logs"]
    socket = await connect(key=raw)
    await socket.send(type="generate", ref="1", **chat())
    assert (await socket.until_error())["code"] == "insufficient_scope"


@pytest.mark.parametrize(("path", "endpoint"), OF_A_PROJECT, ids=names(OF_A_PROJECT))
async def test_another_tenants_project_is_not_there_for_an_admin(
    admin: AsgiClient, operator: AsgiClient, other: Tenant, path: str, endpoint: Endpoint
) -> None:
    @sync_to_async
    def things() -> dict[str, str]:
        key = ApiKeyFactory(tenant=other)
        EntitlementFactory(tenant=other)
        return {"api_key_id": f"key_{key.id.hex}", "service_account_id": f"svc_acct_{key.id.hex}"}

    ids = await things()
    expected = (403, "insufficient_scope") if endpoint.scopes == OPERATORS else (404, "project_not_found")
    told = set()
    for project_id in (f"proj_{other.id.hex}", f"proj_{uuid4().hex}", "proj_", f"PROJ_{other.id.hex}", "x"):
        answer = await admin.request(
            endpoint.method, url(path, project_id=project_id, **ids), body_of(endpoint)
        )
        assert (answer.status, answer.error["code"]) == expected
        told.add(answer.body)
    assert len(told) == 1, "what is somebody else's is told apart from what is not there"
    reached = await operator.request(
        endpoint.method, url(path, project_id=f"proj_{other.id.hex}", **ids), body_of(endpoint)
    )
    assert reached.status == 200, reached.body


@pytest.mark.parametrize(
    ("method", "rest", "code"),
    [
        ("GET", "/api_keys/{key}", "api_key_not_found"),
        ("POST", "/api_keys/{key}", "api_key_not_found"),
        ("DELETE", "/api_keys/{key}", "api_key_not_found"),
        ("POST", "/api_keys/{key}/rotate", "api_key_not_found"),
        ("GET", "/service_accounts/{account}", "service_account_not_found"),
        ("DELETE", "/service_accounts/{account}", "service_account_not_found"),
    ],
)
async def test_another_tenants_key_is_not_there_in_ones_own_project(
    admin: AsgiClient, tenant: Tenant, other: Tenant, method: str, rest: str, code: str
) -> None:
    key = await sync_to_async(ApiKeyFactory)(tenant=other)
    body = {} if method == "POST" else None
    told = set()
    for digits in (key.id.hex, uuid4().hex, "0", key.id.hex.upper(), f"{key.id.hex}0"):
        ids = {"{key}": f"key_{digits}", "{account}": f"svc_acct_{digits}"}
        path = project(tenant) + rest
        for name, id_ in ids.items():
            path = path.replace(name, id_)
        answer = await admin.request(method, path, body)
        assert (answer.status, answer.error["code"]) == (404, code)
        told.add(answer.body)
    assert len(told) == 1
    assert (await sync_to_async(stored_key)(key.id)).revoked_at is None


@pytest.mark.parametrize(("path", "endpoint"), ROUTES, ids=names(ROUTES))
async def test_what_is_not_declared_of_a_query_string_is_refused_by_name(
    operator: AsgiClient, tenant: Tenant, path: str, endpoint: Endpoint
) -> None:
    answer = await operator.request(
        endpoint.method, f"{url(path, project_id=f'proj_{tenant.id.hex}')}?colour=red", body_of(endpoint)
    )
    if "usage" in path or "costs" in path:
        assert (answer.status, answer.error["param"]) == (400, "start_time")
        answer = await operator.get(f"{path}?start_time=0&colour=red")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "unsupported_parameter",
        "colour",
    )


@pytest.mark.parametrize("where", ["/proj_%00", "?after=%00", "?order=%00"])
async def test_a_nul_is_refused_wherever_it_stands(admin: AsgiClient, where: str) -> None:
    answer = await admin.get(f"{PROJECTS}{where.replace('%00', chr(0)) if where[0] == '/' else where}")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_value", "url")


def test_two_endpoints_of_one_url_do_not_take_the_same_method() -> None:
    with pytest.raises(ValueError, match="GET"):
        Resource(list_projects, list_projects)
