from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from accounts.models import Tenant
from tests.factories import ApiKeyFactory, MembershipFactory, TenantFactory, UserFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_key_is_taken_from_either_header(api: AsgiClient, key: str) -> None:
    anonymous = AsgiClient()
    for headers in (
        {"Authorization": f"Bearer {key}"},
        {"Authorization": f"bearer   {key} "},
        {"x-api-key": key},
        {"Authorization": "Basic dXNlcjpwYXNz", "x-api-key": key},
    ):
        assert (await anonymous.get("/v1/models", headers=headers)).status == 200


async def test_every_kind_of_bad_key_gets_the_very_same_401(
    api: AsgiClient, tenant: Tenant, key: str
) -> None:
    now = timezone.now()
    make = sync_to_async(ApiKeyFactory)
    revoked = (await make(tenant=tenant, revoked_at=now)).raw
    expired = (await make(tenant=tenant, expires_at=now - timedelta(seconds=1))).raw
    of_closed = (await make(tenant=await sync_to_async(TenantFactory)(closed_at=now))).raw
    unknown = key[:3] + ("A" if key[3] != "A" else "B") + key[4:]
    answers = [
        await AsgiClient().request(method, path, headers=headers)
        for method, path in (("GET", "/v1/models"), ("POST", CHAT), ("POST", TEXT))
        for headers in (
            {},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer "},
            {"Authorization": f"Basic {key}"},
            {"Authorization": key},
            {"Authorization": "Bearer nonsense"},
            {"Authorization": "Bearer " + "x" * 5000},
            {"Authorization": f"Bearer {unknown}"},
            {"Authorization": f"Bearer {revoked}"},
            {"Authorization": f"Bearer {expired}"},
            {"Authorization": f"Bearer {of_closed}"},
            {"x-api-key": "sk-1234"},
        )
    ]
    assert {answer.status for answer in answers} == {401}
    assert len({answer.body for answer in answers}) == 1
    assert answers[0].error["code"] == "invalid_api_key"
    assert {answer.headers["www-authenticate"] for answer in answers} == {'Bearer realm="signalbox"'}
    assert {answer.headers["x-should-retry"] for answer in answers} == {"false"}


async def test_a11_a_key_in_the_url_is_never_read(api: AsgiClient, key: str) -> None:
    for name in ("key", "api_key", "api-key", "access_token", "token", "authorization", "x-api-key"):
        assert (await AsgiClient().get(f"/v1/models?{name}={key}")).status == 401


async def test_a_browsers_session_opens_nothing_below_v1(
    api: AsgiClient, tenant: Tenant, client: Any
) -> None:
    user = await sync_to_async(UserFactory)()
    await sync_to_async(MembershipFactory)(tenant=tenant, user=user)
    await sync_to_async(client.force_login)(user)
    cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    assert "sessionid" in cookies
    for method, path in (("GET", "/v1/models"), ("POST", CHAT)):
        answer = await AsgiClient().request(method, path, headers={"cookie": cookies})
        assert answer.status == 401


@pytest.mark.parametrize(
    ("scopes", "may_read", "may_generate"),
    [(["read"], True, False), (["inference"], True, True), (["admin"], False, False), ([], False, False)],
)
async def test_a_key_may_do_what_its_scopes_say(
    api: AsgiClient, tenant: Tenant, scopes: list[str], may_read: bool, may_generate: bool
) -> None:
    limited = AsgiClient((await sync_to_async(ApiKeyFactory)(tenant=tenant, scopes=scopes)).raw)
    reading = await limited.get("/v1/models")
    generating = await limited.post(CHAT, chat(temperature=9))
    cancelling = await limited.post("/v1/generations/gen_" + "0" * 32 + "/cancel")
    assert reading.status == (200 if may_read else 403)
    assert generating.status == (400 if may_generate else 403)
    assert cancelling.status == (404 if may_generate else 403)
    if not may_read:
        assert reading.error["code"] == "insufficient_scope"
        assert reading.error["type"] == "permission_error"
