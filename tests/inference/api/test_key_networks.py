"""Keys that may be used from some addresses only. The test's HTTP client is 127.0.0.1."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from accounts import keys
from accounts.models import ApiKey, Tenant
from accounts.tenancy import every_tenant
from signalbox.configuration import configuration
from tests.factories import ACTOR, ApiKeyFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, chat
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import Connect

pytestmark = pytest.mark.django_db(transaction=True)

LOCAL, ELSEWHERE = "127.0.0.0/8", "192.0.2.0/24"


@sync_to_async
def make(tenant: Tenant, *networks: str) -> Any:
    return ApiKeyFactory(tenant=tenant, allowed_networks=list(networks))


@sync_to_async
def narrow(key: ApiKey, *networks: str) -> None:
    with every_tenant("the test narrows it"):
        keys.change(
            key=key,
            name=key.name,
            scopes=key.scopes,
            default_lane=None,
            expires_at=None,
            allowed_networks=networks,
            actor=ACTOR,
        )


async def test_a_key_used_from_elsewhere_gets_the_very_same_401(api: AsgiClient, tenant: Tenant) -> None:
    bound = AsgiClient((await make(tenant, ELSEWHERE)).raw)
    bad = await AsgiClient("sb_nonsense").get("/v1/models")
    for refused in (await bound.get("/v1/models"), await bound.post(CHAT, chat())):
        assert (refused.status, refused.body) == (401, bad.body)
        assert refused.headers["www-authenticate"] == bad.headers["www-authenticate"]
    assert (await AsgiClient((await make(tenant, ELSEWHERE, LOCAL)).raw).get("/v1/models")).status == 200


async def test_a_proxy_says_where_a_request_came_from_and_nobody_else_does(
    api: AsgiClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = AsgiClient((await make(tenant, ELSEWHERE)).raw)
    said = {"X-Forwarded-For": "192.0.2.7"}
    assert (await bound.get("/v1/models", headers=said)).status == 401
    changed = configuration().model_copy(update={"trusted_proxies": [LOCAL]})
    monkeypatch.setattr("accounts.actors.configuration", lambda: changed)
    assert (await bound.get("/v1/models", headers=said)).status == 200
    assert (await bound.get("/v1/models", headers={"X-Forwarded-For": "203.0.113.1"})).status == 401
    assert (await bound.get("/v1/models")).status == 401


async def test_what_runs_when_a_key_s_networks_are_narrowed_may_finish_and_nothing_new_starts(
    api: AsgiClient, tenant: Tenant, hand: Hand
) -> None:
    key = await make(tenant, LOCAL)
    bound = AsgiClient(key.raw)
    async with bound.open("POST", CHAT, chat(stream=True)) as stream:
        run = await hand.take()
        await run.say("one ")
        await stream.until(b"one ")
        await narrow(key, ELSEWHERE)
        assert (await bound.post(CHAT, chat())).status == 401
        assert not await run.is_cancelled()
        await run.say("two")
        await run.finish()
        answer = await stream.end()
    assert b"two" in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_a_socket_from_elsewhere_is_closed_like_one_with_a_bad_key(
    tenant: Tenant, connect: Connect
) -> None:
    key = await make(tenant, ELSEWHERE)
    for address in ("203.0.113.1", None):
        refused = await connect(key=key.raw, address=address)
        assert (await refused.until_error())["code"] == "invalid_api_key"
        assert await refused.closed() == 4401
    late = await connect(address="203.0.113.1")
    await late.send(type="authenticate", api_key=key.raw)
    assert (await late.until_error())["code"] == "invalid_api_key"


async def test_a_socket_whose_key_s_networks_were_narrowed_starts_nothing_new_and_ends_nothing(
    tenant: Tenant, connect: Connect, hand: Hand
) -> None:
    key = await make(tenant, ELSEWHERE)
    socket = await connect(key=key.raw, address="192.0.2.7")
    generate = {"type": "generate", "model": "tiny/model", "messages": chat()["messages"]}
    await socket.send(**generate, ref="first")
    await socket.until("accepted")
    run = await hand.take()
    await run.say("one ")
    await socket.until("delta")
    await narrow(key, LOCAL)
    await socket.send(**generate, ref="second")
    error = await socket.until_error()
    assert (error["code"], error["ref"]) == ("invalid_api_key", "second")
    await run.say("two")
    await run.finish()
    assert (await socket.until("done"))["finish_reason"] == "stop"
