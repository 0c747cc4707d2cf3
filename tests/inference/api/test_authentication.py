from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.apps import apps
from django.utils import timezone

from accounts.models import Tenant
from accounts.tenancy import every_tenant
from inference.models import LanguageModel
from tests.factories import ApiKeyFactory, MembershipFactory, TenantFactory, UserFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand

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


def _rows() -> str:
    """Everything that the database holds, as text."""
    with every_tenant("the test looks for a secret everywhere"):
        return "\n".join(
            repr(row) for model in apps.get_models() for row in model._default_manager.all().values_list()
        )


async def test_a1_a_key_where_it_does_not_belong_is_repeated_nowhere(
    api: AsgiClient,
    hand: Hand,
    key: str,
    model: LanguageModel,
    valkey: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    cut = key[:40]
    places = [
        api.post(CHAT, chat(model=key)),
        api.post(TEXT, text(model=f"models/{key}")),
        api.post(CHAT, chat(**{key: 1})),
        api.post(CHAT, chat(**{cut: 1})),
        api.post(CHAT, chat(metadata={"key": key}, temperature=3)),
        api.post(CHAT, chat(service_tier=key)),
        api.post(CHAT, chat(lane=key[:30])),
        api.post(CHAT, chat(stop=[key] * 5)),
        api.post(CHAT, chat(seed=key)),
        api.post(CHAT, chat(tools=key)),
        api.post(CHAT, chat(logit_bias={key: 1})),
        api.post(CHAT, chat(messages=[{"role": key, "content": key}])),
        api.post(CHAT, chat(messages=[{"role": "user", "content": [{"type": key}]}])),
        api.post(CHAT, chat(messages=[{"role": "user", "content": "Hi", key: key}])),
        api.post(CHAT, raw=b'{"model": ' + key.encode()),
        api.post(CHAT, chat(), headers={"X-Priority": key}),
        api.post(CHAT, chat(), headers={"content-type": key}),
        api.get(f"/v1/models/{key}"),
        api.get("/v1/models", headers={"x-api-key": f"{key}x", "Authorization": f"Basic {key}"}),
        api.get("/v1/models", headers={"Authorization": f"Bearer {key}{key}"}),
        api.get(f"/v1/generations/{key}"),
        api.get("/v1/models?limit=" + key),
        api.get("/v1/generations/gen_" + "0" * 32 + "/events", headers={"Last-Event-ID": key}),
    ]
    for place in places:
        answer = await place
        assert answer.status in (400, 401, 404, 415), answer.body
        assert cut[:25] not in answer.body.decode()
        assert cut[:25] not in json.dumps(answer.headers)
    assert cut[:25] not in caplog.text
    assert cut[:25] not in await sync_to_async(_rows)()
    stored = b"".join(valkey.dump(name) or b"" for name in valkey.scan_iter())
    assert key.encode() not in stored
