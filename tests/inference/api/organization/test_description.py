"""What the routes of the organization answer is what the description of the API says."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from drf_spectacular.generators import SchemaGenerator

from accounts.models import Tenant
from inference.api.organization.urls import urlpatterns
from inference.api.resource import endpoints_of
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import PROJECTS, project

USAGE = "/v1/organization/usage/completions"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    generated: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return json.loads(json.dumps(generated))


def operations(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: operation
        for path, item in schema["paths"].items()
        if path.startswith("/v1/organization/")
        for operation in item.values()
    }


@pytest.mark.django_db(transaction=True)
async def test_what_is_answered_is_what_is_described(
    operator: AsgiClient, tenant: Tenant, schema: dict[str, Any]
) -> None:
    keys, accounts = f"{project(tenant)}/api_keys", f"{project(tenant)}/service_accounts"
    seen: set[str] = set()

    async def ask(operation: str, method: str, path: str, body: Any = None) -> Any:
        answer = await operator.request(method, path, body)
        assert answer.status == 200, answer.body
        described = operations(schema)[operation]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**described, "components": schema["components"]})
        seen.add(operation)
        return answer.json()

    made = await ask("create_project", "POST", PROJECTS, {"name": "New"})
    await ask("list_projects", "GET", PROJECTS)
    await ask("retrieve_project", "GET", project(tenant))
    await ask("modify_project", "POST", project(tenant), {"name": "Renamed"})
    await ask("archive_project", "POST", f"{PROJECTS}/{made['id']}/archive")
    key = await ask("create_project_api_key", "POST", keys, {"name": "app"})
    await ask("list_project_api_keys", "GET", keys)
    await ask("retrieve_project_api_key", "GET", f"{keys}/{key['id']}")
    await ask("modify_project_api_key", "POST", f"{keys}/{key['id']}", {"scopes": ["read"]})
    await ask("rotate_project_api_key", "POST", f"{keys}/{key['id']}/rotate", {})
    await ask("delete_project_api_key", "DELETE", f"{keys}/{key['id']}")
    account = await ask("create_service_account", "POST", accounts, {"name": "app"})
    await ask("list_service_accounts", "GET", accounts)
    await ask("retrieve_service_account", "GET", f"{accounts}/{account['id']}")
    await ask("delete_service_account", "DELETE", f"{accounts}/{account['id']}")
    await ask("list_project_rate_limits", "GET", f"{project(tenant)}/rate_limits")
    await ask("update_project_rate_limit", "POST", f"{project(tenant)}/rate_limits/rl-low", {})
    await ask("completions_usage", "GET", f"{USAGE}?start_time=0")
    await ask("costs", "GET", "/v1/organization/costs?start_time=0")
    await ask("list_audit_logs", "GET", "/v1/organization/audit_logs?limit=100")
    assert seen == {endpoint.name for pattern in urlpatterns for endpoint in endpoints_of(pattern.callback)}


def test_parameters_are_described_as_they_are_checked(schema: dict[str, Any]) -> None:
    for operation in operations(schema).values():
        names = [parameter["name"] for parameter in operation["parameters"]]
        assert len(set(names)) == len(names)
        assert all(
            parameter.get("description")
            for parameter in operation["parameters"]
            if parameter["in"] == "query"
        )
        assert "X-Priority" not in names
    usage = {
        parameter["name"]: parameter for parameter in operations(schema)["completions_usage"]["parameters"]
    }
    assert usage["start_time"]["required"] is True
    assert usage["end_time"]["required"] is False
    assert usage["bucket_width"]["schema"]["enum"] == ["1m", "1h", "1d"]
    assert not re.search(r'"\$ref": "#/\$defs', json.dumps(schema))
    logs = {parameter["name"]: parameter for parameter in operations(schema)["list_audit_logs"]["parameters"]}
    assert logs["effective_at[gte]"]["schema"]["type"] == "integer"
    assert not any(parameter["required"] for parameter in logs.values())
    entry = schema["components"]["schemas"]["AuditLog"]
    assert entry["additionalProperties"] == {"$ref": "#/components/schemas/AuditLogDetails"}
