"""Case A6: what a revoked key, membership or tenant still reads ends within a second, whoever began it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from asgiref.sync import sync_to_async

from accounts import keys, members
from accounts.models import ApiKey, Membership, Role, Tenant, User
from accounts.tenancy import every_tenant
from inference.api.reader_access import reader_access
from tests.factories import ACTOR, ApiKeyFactory, MembershipFactory, UserFactory
from tests.fixtures.connections import HeldConnections
from tests.inference.api.asgi_client import AsgiClient, events_of
from tests.inference.api.bodies import CHAT, chat
from tests.inference.api.hand import PATIENCE_S, Hand
from tests.inference.api.socket_client import OWN_ORIGIN, Connect
from tests.inference.api.test_chat_socket import session_of

pytestmark = pytest.mark.django_db(transaction=True)

RESUMABLE = chat(stream=True, stream_options={"resumable": True})

_Ended = TypeVar("_Ended")
#: A second, in naps. Where the machine is busy each takes longer, as does what they are taken for.
_NAPS, _NAP_S = 100, 0.01


async def within_a_second(ending: Awaitable[_Ended]) -> _Ended:
    """What comes of ``ending``. Fails if nothing has within a second of now."""
    waiting = asyncio.ensure_future(ending)
    for _ in range(_NAPS):
        if waiting.done():
            break
        await asyncio.sleep(_NAP_S)
    ended = waiting.done()
    waiting.cancel()
    assert ended, "it had not ended within a second"
    return await waiting


@pytest.fixture
def second_key(tenant: Tenant) -> str:
    return str(ApiKeyFactory(tenant=tenant).raw)


@sync_to_async
def revoke(raw: str) -> None:
    with every_tenant("the test revokes"):
        keys.revoke(key=ApiKey.objects.get(prefix=raw.split("_")[1]), actor=ACTOR)


async def test_a_revoked_key_stops_reading_what_another_key_began_which_goes_on(
    api: AsgiClient, second_key: str, hand: Hand, held_connections: HeldConnections
) -> None:
    async with api.open("POST", CHAT, RESUMABLE) as owner:
        run = await hand.take()
        await run.say("one ")
        await owner.until(b"one ")
        url = f"/v1/generations/gen_{run.generation}/events"
        async with AsgiClient(second_key).open("GET", url) as reader, api.open("GET", url) as holder:
            await reader.until(b"one ")
            await holder.until(b"one ")
            # One look takes a moment, and holds nothing between two.
            async with asyncio.timeout(PATIENCE_S):
                while held_connections.threads():
                    await asyncio.sleep(0.01)
            await revoke(second_key)
            revoked = await within_a_second(reader.end())
            assert (await AsgiClient(second_key).get(url)).status == 401
            await run.say("two")
            assert not await run.is_cancelled()
            await run.finish()
            assert b"two" in (await holder.end()).body
        assert (await owner.end()).body.endswith(b"data: [DONE]\n\n")
    _, last = events_of(revoked.body)[-1]
    assert json.loads(last)["error"]["code"] == "access_revoked"
    assert b"two" not in revoked.body


async def test_a_revoked_key_stops_reading_on_a_socket_which_is_closed(
    api: AsgiClient, second_key: str, connect: Connect, hand: Hand
) -> None:
    async with api.open("POST", CHAT, RESUMABLE) as owner:
        run = await hand.take()
        await run.say("one ")
        socket = await connect(key=second_key)
        await socket.send(type="resume", generation=f"gen_{run.generation}")
        await socket.until("delta")
        await revoke(second_key)
        error = await within_a_second(socket.until_error())
        assert (error["code"], error["generation"]) == ("access_revoked", f"gen_{run.generation}")
        assert await socket.closed() == 4401
        await run.finish()
        assert (await owner.end()).body.endswith(b"data: [DONE]\n\n")


async def test_whoever_leaves_a_tenant_stops_reading_there(
    tenant: Tenant, connect: Connect, hand: Hand
) -> None:
    def join() -> tuple[User, str]:
        user: User = UserFactory()
        MembershipFactory(tenant=tenant, user=user)
        MembershipFactory(tenant=tenant, role=Role.OWNER)
        return user, session_of(user)

    def leave() -> None:
        with every_tenant("the test ends it"):
            members.end(membership=Membership.objects.get(user=user), actor=ACTOR)

    user, session = await sync_to_async(join)()
    socket = await connect(session=session, origin=OWN_ORIGIN)
    await socket.send(type="generate", model="tiny/model", messages=chat()["messages"])
    accepted = await socket.until("accepted")
    run = await hand.take()
    reader = await connect(session=session, origin=OWN_ORIGIN)
    await reader.send(type="resume", generation=accepted["generation"])
    await run.say("one ")
    await reader.until("delta")
    await sync_to_async(leave)()
    assert (await within_a_second(reader.until_error()))["code"] == "access_revoked"


async def test_readers_who_are_gone_are_looked_after_no_more(
    api: AsgiClient, second_key: str, hand: Hand
) -> None:
    async with api.open("POST", CHAT, RESUMABLE) as owner:
        run = await hand.take()
        await run.say("one ")
        async with AsgiClient(second_key).open(
            "GET", f"/v1/generations/gen_{run.generation}/events"
        ) as reader:
            await reader.until(b"one ")
            assert reader_access().readers == 1
            reader.hang_up()
            await reader.end()
        assert reader_access().readers == 0
        await run.finish()
        await owner.end()
