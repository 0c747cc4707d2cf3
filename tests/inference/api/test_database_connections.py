"""A process has few database connections: no socket holds one, and no request that was cut off."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from django.db import connection

from inference.dispatch.delivery import delivery
from signalbox import health
from tests.fixtures.connections import HeldConnections
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import chat
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import SocketClient

pytestmark = pytest.mark.django_db(transaction=True)

ASK = {"type": "generate", "model": "tiny/model", "messages": chat()["messages"]}


async def test_a_socket_holds_no_connection_while_it_streams_or_stays_open(
    key: str, hand: Hand, held_connections: HeldConnections
) -> None:
    before = held_connections.opened
    client = SocketClient(key=key)
    await client.connect()
    for number in range(3):
        await client.send(**ASK, ref=str(number))
        await client.until("accepted")
    runs = [await hand.take() for _ in range(3)]
    for run in runs:
        await run.say("Hi")
    for _ in runs:
        await client.until("delta")
    assert held_connections.threads() == []
    for run in runs:
        await run.finish()
        done = await client.until("done")
    await client.send(type="resume", generation=done["generation"])
    await client.until("done")
    assert held_connections.threads() == []
    assert held_connections.opened > before
    await client.hang_up()
    await delivery().aclose()


async def test_a_request_that_the_server_cuts_off_gives_its_connection_back(
    transactional_db: None,
    valkey: redis.Redis,
    held_connections: HeldConnections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_view, go_on = threading.Event(), threading.Event()

    def slow_view(*_: Any) -> health.Readiness:
        connection.ensure_connection()
        in_view.set()
        assert go_on.wait(10)
        raise AssertionError("nobody waits for this answer any more")

    monkeypatch.setattr(health, "_readiness", slow_view)
    async with AsgiClient().open("GET", "/health/ready") as exchange:
        assert await asyncio.to_thread(in_view.wait, 10)
        exchange.hang_up()
        await let_the_application_notice()
        killed = asyncio.create_task(exchange.kill())
        await let_the_application_notice()
        assert len(held_connections.threads()) == 1
        go_on.set()
        await killed
    assert held_connections.threads() == []


async def let_the_application_notice() -> None:
    """Run whatever is ready to run on the loop."""
    for _ in range(100):
        await asyncio.sleep(0)
