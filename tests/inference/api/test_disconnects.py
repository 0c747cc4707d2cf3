"""S1 and S13: a client that hangs up ends its generation, wherever either of them is."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.http.response import HttpResponseBase

from accounts.tenancy import every_tenant
from inference import intake
from inference.api import streaming
from inference.api.middleware import ApiMiddleware
from inference.dispatch.delivery import delivery
from inference.messages import CancelReason
from inference.models import Generation
from signalbox.connections import ServerClose
from tests.inference.api.asgi_client import AsgiClient, Exchange
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand, Run
from tests.inference.api.test_limits import held

pytestmark = pytest.mark.django_db(transaction=True)


@sync_to_async
def generations() -> list[Generation]:
    with every_tenant("the test looks at what it made"):
        return list(Generation.objects.all())


async def only_generation() -> Generation:
    (generation,) = await generations()
    return generation


async def let_the_application_notice() -> None:
    """Run whatever is ready to run on the loop."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert [
        record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")
    ] == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
async def test_s1_hanging_up_in_the_queue_ends_it_there(api: AsgiClient, path: str, stream: bool) -> None:
    body = chat(stream=stream) if path == CHAT else text(stream=stream)
    async with api.open("POST", path, body) as exchange:
        while not await generations():
            await asyncio.sleep(0)
        exchange.hang_up()
        await exchange.end()
    generation = await only_generation()
    assert (generation.state, generation.cancel_reason) == ("cancelled", "client_disconnected")
    assert generation.completion_tokens == 0
    assert delivery().following == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_s1_hanging_up_before_the_first_token_tells_the_worker(
    api: AsgiClient, hand: Hand, stream: bool
) -> None:
    async with api.open("POST", CHAT, chat(stream=stream)) as exchange:
        run = await hand.take()
        await run.prefill(2)
        exchange.hang_up()
        await exchange.end()
    assert await run.cancelled() is CancelReason.CLIENT_DISCONNECTED
    assert delivery().following == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_s1_hanging_up_in_the_middle_tells_the_worker(
    api: AsgiClient, hand: Hand, stream: bool
) -> None:
    async with api.open("POST", CHAT, chat(stream=stream)) as exchange:
        run = await hand.take()
        await run.say("Hel", "lo")
        if stream:
            await exchange.until(b"lo")
        exchange.hang_up()
        await exchange.end()
    assert await run.cancelled() is CancelReason.CLIENT_DISCONNECTED
    await run.end_cancelled(CancelReason.CLIENT_DISCONNECTED)
    generation = await only_generation()
    assert (generation.state, generation.completion_tokens) == ("cancelled", 2)
    assert delivery().following == 0


async def test_s1_hanging_up_just_before_the_end_changes_nothing_that_has_happened(
    api: AsgiClient, hand: Hand
) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        await run.say("Hello")
        await exchange.until(b"Hello")
        await run.finish()
        exchange.hang_up()
        await exchange.end()
    generation = await only_generation()
    assert (generation.state, generation.cancel_reason) == ("completed", "")


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_while_it_is_being_accepted_ends_it_once_it_is(
    api: AsgiClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    accepting, go_on = threading.Event(), threading.Event()
    accept = intake.accept

    def slow_accept(*args: Any, **kwargs: Any) -> intake.Accepted:
        accepting.set()
        assert go_on.wait(10)
        return accept(*args, **kwargs)

    monkeypatch.setattr(intake, "accept", slow_accept)
    async with api.open("POST", CHAT, chat(stream=stream)) as exchange:
        await asyncio.to_thread(accepting.wait, 10)
        exchange.hang_up()
        await let_the_application_notice()
        go_on.set()
        await exchange.end()
    assert (await only_generation()).cancel_reason == "client_disconnected"


async def test_hanging_up_on_a_refusal_leaves_nothing(
    api: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepting, go_on = threading.Event(), threading.Event()

    def slow_refusal(*args: Any, **kwargs: Any) -> intake.Accepted:
        accepting.set()
        assert go_on.wait(10)
        raise intake.Refused(intake.RefusalCode.QUEUE_FULL, "full", retry_after_s=1)

    monkeypatch.setattr(intake, "accept", slow_refusal)
    async with api.open("POST", CHAT, chat()) as exchange:
        await asyncio.to_thread(accepting.wait, 10)
        exchange.hang_up()
        await let_the_application_notice()
        go_on.set()
        await exchange.end()
    assert await generations() == []


async def test_s13_hanging_up_between_the_responses_start_and_its_first_byte_leaks_nothing(
    api: AsgiClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go_on = asyncio.Event(), asyncio.Event()
    call = ApiMiddleware.__call__

    async def slow_middleware(self: ApiMiddleware, request: Any) -> HttpResponseBase:
        response = await call(self, request)
        made.set()
        await go_on.wait()
        return response

    monkeypatch.setattr(ApiMiddleware, "__call__", slow_middleware)
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        await run.say("Hello")
        await made.wait()
        exchange.hang_up()
        await exchange.end()
        assert exchange.status is None
    assert await run.cancelled() is CancelReason.CLIENT_DISCONNECTED
    assert delivery().following == 0


class _LeavesAtTheHead(Exchange):
    """Hangs up on the answer's head, before the application can send the first byte behind it."""

    async def send(self, message: dict[str, Any]) -> None:
        await super().send(message)
        if message["type"] == "http.response.start":
            assert self.sent == b""
            self.hang_up()
            await let_the_application_notice()


@pytest.mark.slow
async def test_s13_a_hundred_clients_that_leave_there_leak_nothing(
    api: AsgiClient, hand: Hand, valkey: redis.Redis
) -> None:
    """Some while they wait, and some as the first text comes."""

    async def leave(number: int) -> None:
        told = {"stream_options": {"include_progress": True}} if number % 2 else {}
        body = chat(f"Client {number}", stream=True, **told)
        async with api.open("POST", CHAT, body, exchange=_LeavesAtTheHead()) as exchange:
            await exchange.end()
            assert exchange.status == 200

    leaving = [asyncio.create_task(leave(number)) for number in range(100)]
    runs: list[Run] = []
    while not all(task.done() for task in leaving):
        run = await hand.take_if_any()
        if run is None:
            await asyncio.sleep(0.01)
        else:
            runs.append(run)
            await run.say("Hello")
    await asyncio.gather(*leaving)
    for run in runs:
        assert await run.cancelled() is CancelReason.CLIENT_DISCONNECTED
        await run.end_cancelled(CancelReason.CLIENT_DISCONNECTED)
    left = await generations()
    assert len(left) == 100
    assert {(one.state, one.cancel_reason) for one in left} == {("cancelled", "client_disconnected")}
    assert delivery().following == 0
    assert await hand.finds_nothing()
    assert await held() == (0, 0)
    kinds = ("places", "queue", "fifo", "leases", "cancels")
    assert [key for kind in kinds for key in valkey.keys(f"dispatch:{kind}:*")] == []


async def test_a_resumable_generation_goes_on_when_its_client_hangs_up(api: AsgiClient, hand: Hand) -> None:
    body = chat(stream=True, stream_options={"resumable": True})
    async with api.open("POST", CHAT, body) as exchange:
        run = await hand.take()
        await run.say("Hel")
        await exchange.until(b"Hel")
        exchange.hang_up()
        await exchange.end()
    assert not await run.is_cancelled()
    await run.say("lo")
    await run.finish()
    generation = await only_generation()
    assert (generation.state, generation.completion_tokens) == ("completed", 2)
    assert delivery().following == 0


@pytest.mark.parametrize("reason", list(ServerClose))
async def test_a_generation_goes_on_when_the_server_closed_the_connection(
    api: AsgiClient, hand: Hand, reason: ServerClose
) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        await run.say("Hel")
        await exchange.until(b"Hel")
        exchange.hang_up(closed_by_server=reason)
        await exchange.end()
    assert not await run.is_cancelled()
    assert delivery().following == 0


async def test_a_web_process_that_ends_ends_no_generation(api: AsgiClient, hand: Hand) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        await run.say("Hel")
        await exchange.until(b"Hel")
        await exchange.kill()
    assert not await run.is_cancelled()


async def test_many_clients_that_leave_at_any_moment_leave_nothing_behind(
    api: AsgiClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.02)

    async def leave(number: int) -> None:
        body = chat(f"Client {number}", stream=number % 3 != 0)
        async with api.open("POST", CHAT, body) as exchange:
            for _ in range(number * 3):
                await asyncio.sleep(0)
            await asyncio.sleep(number / 200)
            exchange.hang_up()
            await exchange.end()

    await asyncio.gather(*(leave(number) for number in range(30)))
    left = await generations()
    assert {generation.state for generation in left} <= {"cancelled"}
    assert delivery().following == 0
    assert await hand.finds_nothing()
