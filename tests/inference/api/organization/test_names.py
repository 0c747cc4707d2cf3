"""Names over the API: what is not one line of what can be seen, or holds a credential, is refused by its parameter."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from accounts.models import AuditEvent, Tenant
from tests.factories import ApiKeyFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import PROJECTS, project

pytestmark = pytest.mark.django_db(transaction=True)

CREDENTIAL = "ghp_" + "q7Zt2Xw9Lr4Kb8Vn3Hc6Jd1Fs5Gp0Myq7Zt"


@pytest.mark.parametrize(
    "name", ["two\nlines", "two\u2028lines", "a\u202egnp.b", "a\0b", "a\x1b[2Jb", f"for {CREDENTIAL}"]
)
async def test_such_a_name_is_refused_by_its_parameter_and_leaves_nothing(
    operator: AsgiClient, tenant: Tenant, name: str
) -> None:
    key = await sync_to_async(ApiKeyFactory)(tenant=tenant)
    for path in (
        PROJECTS,
        project(tenant),
        f"{project(tenant)}/api_keys",
        f"{project(tenant)}/api_keys/key_{key.id.hex}",
        f"{project(tenant)}/service_accounts",
    ):
        answer = await operator.post(path, {"name": name})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_value", "name")
        assert CREDENTIAL not in answer.body.decode()
    assert not await AuditEvent.objects.aexists()
