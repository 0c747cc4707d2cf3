from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
import redis
import time_machine
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from accounts import rates, reservations
from accounts.limits import LimitName
from accounts.models import Lane, Reservation, Tenant
from accounts.rates import Rate
from accounts.tenancy import every_tenant
from inference import idempotency, tasks
from inference.api.idempotent import IDEMPOTENCY_KEY
from inference.api.resource import endpoints_of
from inference.api.urls import urlpatterns
from inference.messages import CancelReason
from inference.models import Generation, IdempotencyKey, LanguageModel
from signalbox.write_transactions import write_transaction
from tests.factories import ApiKeyFactory, EntitlementFactory
from tests.inference.api.asgi_client import Answer, AsgiClient, events_of
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand
from tests.inference.api.test_errors import assert_error

pytestmark = pytest.mark.django_db(transaction=True)

NAMED = {"Idempotency-Key": "order 66"}


def body(path: str, **fields: Any) -> dict[str, Any]:
    return chat(**fields) if path == CHAT else text(**fields)


@sync_to_async
def counted(model: type[Any]) -> int:
    with every_tenant("the test counts what was made"):
        return int(model.objects.count())


async def answered(api: AsgiClient, hand: Hand, path: str = CHAT, **fields: Any) -> Answer:
    async with api.open("POST", path, body(path, **fields), headers=NAMED) as exchange:
        await hand.answer(["one ", "two"])
        return await exchange.end()


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_the_same_request_again_is_answered_with_the_first_answer(
    api: AsgiClient, hand: Hand, path: str
) -> None:
    first = await answered(api, hand, path)
    again = await api.post(path, body(path), headers=NAMED)
    assert first.status == again.status == 200
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["x-signalbox-generation"] == first.headers["x-signalbox-generation"]
    assert await hand.finds_nothing()
    assert await counted(Generation) == await counted(Reservation) == 1


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_stream_is_replayed_from_its_stored_events(
    api: AsgiClient, hand: Hand, valkey: redis.Redis, path: str
) -> None:
    options = {"include_usage": True}
    first = await answered(api, hand, path, stream=True, stream_options=options)
    # Its log has gone: what was kept answers.
    valkey.flushall()
    again = await api.post(path, body(path, stream=True, stream_options=options), headers=NAMED)
    assert events_of(again.body) == events_of(first.body)
    assert again.headers["content-type"].startswith("text/event-stream")


async def test_a_repeat_while_it_runs_reads_the_same_generation(api: AsgiClient, hand: Hand) -> None:
    async with (
        api.open("POST", CHAT, chat(stream=True), headers=NAMED) as first,
        api.open("POST", CHAT, chat(stream=True), headers=NAMED) as second,
    ):
        run = await hand.take()
        await run.say("one ", "two")
        await run.finish()
        answers = [await first.end(), await second.end()]
    assert events_of(answers[0].body) == events_of(answers[1].body)
    assert await counted(Generation) == 1


async def test_many_at_once_make_one_generation(api: AsgiClient, hand: Hand) -> None:
    asked = [asyncio.create_task(api.post(CHAT, chat(), headers=NAMED)) for _ in range(12)]
    await hand.answer(["one"])
    answers = await asyncio.gather(*asked)
    assert {answer.status for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await counted(Generation) == await counted(Reservation) == 1


async def test_a_client_that_leaves_finds_its_answer_when_it_asks_again(api: AsgiClient, hand: Hand) -> None:
    async with api.open("POST", CHAT, chat(stream=True), headers=NAMED) as exchange:
        run = await hand.take()
        await run.say("one ")
        await exchange.until(b"one ")
        exchange.hang_up()
        await exchange.end()
    assert not await run.is_cancelled()
    await run.say("two")
    await run.finish()
    again = await api.post(CHAT, chat(stream=True), headers=NAMED)
    assert b"two" in again.body
    assert again.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "changed"),
    [(CHAT, chat("Other")), (CHAT, chat(temperature=0.5)), (CHAT, chat(stream=True)), (TEXT, None)],
)
async def test_another_body_is_a_conflict_and_another_route_is_not(
    api: AsgiClient, hand: Hand, path: str, changed: dict[str, Any] | None
) -> None:
    await answered(api, hand)
    if changed is None:
        assert (await answered(api, hand, TEXT)).status == 200
        return
    answer = await api.post(path, changed, headers=NAMED)
    assert_error(answer, 409, "idempotency_conflict", "Idempotency-Key")
    assert answer.headers["x-should-retry"] == "false"


async def test_the_priority_header_is_a_part_of_the_request(api: AsgiClient, hand: Hand) -> None:
    await answered(api, hand)
    answer = await api.post(CHAT, chat(), headers={**NAMED, "X-Priority": "low"})
    assert_error(answer, 409, "idempotency_conflict", "Idempotency-Key")


async def test_another_key_s_name_is_another_name(api: AsgiClient, hand: Hand, tenant: Tenant) -> None:
    await answered(api, hand)
    other = await sync_to_async(ApiKeyFactory)(tenant=tenant)
    assert (await answered(AsgiClient(other.raw), hand)).status == 200
    assert await counted(Generation) == 2


async def test_a_refused_request_leaves_its_name_free(api: AsgiClient, hand: Hand, tenant: Tenant) -> None:
    too_long = await api.post(CHAT, chat(max_tokens=10**6), headers=NAMED)
    assert_error(too_long, 400, "context_length_exceeded", "messages")
    assert await counted(IdempotencyKey) == 0
    assert (await answered(api, hand)).status == 200


async def test_a_repeat_is_answered_where_the_first_took_the_last_of_a_budget(
    api: AsgiClient, hand: Hand, tenant: Tenant
) -> None:
    @sync_to_async
    def limited() -> str:
        with every_tenant("the test limits its tenant"):
            for entitlement in tenant.entitlements.select_related("allowance"):
                entitlement.allowance.concurrency = 1
                entitlement.allowance.save()
        return str(ApiKeyFactory(tenant=tenant).raw)

    client = AsgiClient(await limited())
    asked = [asyncio.create_task(client.post(CHAT, chat(), headers=NAMED)) for _ in range(6)]
    await hand.answer(["one"])
    answers = await asyncio.gather(*asked)
    assert {answer.status for answer in answers} == {200}


async def test_what_ended_badly_ends_so_again(api: AsgiClient, hand: Hand) -> None:
    async with api.open("POST", CHAT, chat(), headers=NAMED) as exchange:
        run = await hand.take()
        await run.end_cancelled(CancelReason.OPERATOR_REQUESTED)
        first = await exchange.end()
    again = await api.post(CHAT, chat(), headers=NAMED)
    assert (again.status, again.error) == (first.status, first.error)
    assert again.status == 409


@pytest.mark.parametrize("name", ["x" * 256, "na\u00efve", "tab\tbed"])
async def test_what_is_no_name_is_refused(api: AsgiClient, name: str) -> None:
    answer = await api.post(CHAT, chat(), headers={"Idempotency-Key": name})
    assert_error(answer, 400, "invalid_value", "Idempotency-Key")


async def test_a_name_is_free_again_after_a_day(api: AsgiClient, hand: Hand) -> None:
    await answered(api, hand)
    with time_machine.travel(timezone.now() + idempotency.KEPT, tick=True):
        assert await sync_to_async(tasks.delete_old_idempotency_keys)() == 1
        second = await answered(api, hand)
    assert "idempotent-replayed" not in second.headers
    assert await counted(Generation) == 2


async def test_a_lane_that_opens_later_does_not_change_what_was_answered(
    api: AsgiClient, hand: Hand, tenant: Tenant
) -> None:
    first = await answered(api, hand, service_tier="flex")
    await sync_to_async(EntitlementFactory)(
        tenant=tenant, lane=await Lane.objects.aget(name="high"), ends_at=timezone.now() + idempotency.KEPT
    )
    again = await api.post(CHAT, chat(service_tier="flex"), headers=NAMED)
    assert again.headers["x-signalbox-lane"] == first.headers["x-signalbox-lane"] == "low"


def test_every_route_that_makes_or_changes_something_takes_a_name_for_it() -> None:
    routes = [endpoint for pattern in urlpatterns for endpoint in endpoints_of(pattern.callback)]
    writing = [endpoint for endpoint in routes if endpoint.method not in ("GET", "HEAD")]
    without = {endpoint.name for endpoint in writing if IDEMPOTENCY_KEY not in endpoint.parameters}
    assert len(writing) > len(without)
    # Done twice, each of these is done once: there is nothing to answer again.
    assert without == {
        "archive_project",
        "cancel_generation",
        "delete_project_api_key",
        "delete_service_account",
    }


async def test_repeats_at_once_count_once_in_a_rate(api: AsgiClient, hand: Hand, tenant: Tenant) -> None:
    limited = await sync_to_async(ApiKeyFactory)(tenant=tenant, allowance__requests_per_minute=1)
    client, allowance = AsgiClient(limited.raw), limited.allowance_id
    rate = Rate(allowance, LimitName.REQUESTS_PER_MINUTE, 1)
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with every_tenant("the test keeps admissions from their end"), write_transaction():
                reservations.lock([allowance])
                held.set()
                assert let_go.wait(20)
        finally:
            connections.close_all()

    holding = asyncio.create_task(asyncio.to_thread(hold))
    await asyncio.to_thread(held.wait, 20)
    first = asyncio.create_task(client.post(CHAT, chat(), headers=NAMED))
    while not rates.read([rate])[0].used:
        await asyncio.sleep(0.01)
    # The rate is taken, and nobody can see yet what for.
    second = asyncio.create_task(client.post(CHAT, chat(), headers=NAMED))
    await asyncio.wait({second}, timeout=0.5)
    let_go.set()
    await holding
    await hand.answer(["one"])
    answers = await asyncio.gather(first, second)
    assert [answer.status for answer in answers] == [200, 200], answers[1].body
    assert answers[0].json() == answers[1].json()
    assert await counted(Generation) == 1


async def test_what_ended_because_nobody_read_it_is_made_anew_for_whoever_asks_again(
    api: AsgiClient, hand: Hand
) -> None:
    async with api.open("POST", CHAT, chat(), headers=NAMED) as exchange:
        run = await hand.take()
        await run.end_cancelled(CancelReason.DETACHED)
        unread = await exchange.end()
    assert_error(unread, 409, "generation_cancelled", None)
    second = await answered(api, hand)
    assert (second.status, second.headers.get("idempotent-replayed")) == (200, None)
    again = await api.post(CHAT, chat(), headers=NAMED)
    assert (again.json(), again.headers["idempotent-replayed"]) == (second.json(), "true")
    assert await counted(Generation) == 2
    assert await counted(IdempotencyKey) == 1


async def test_each_route_that_takes_a_name_holds_it_to_the_rules(
    model: LanguageModel, tenant: Tenant, valkey: redis.Redis
) -> None:
    raw = (await sync_to_async(ApiKeyFactory)(tenant=tenant, scopes=["inference", "operator"])).raw
    key = await sync_to_async(ApiKeyFactory)(tenant=tenant)
    ids = {
        "project_id": f"proj_{tenant.id.hex}",
        "api_key_id": f"key_{key.id.hex}",
        "service_account_id": f"svc_acct_{key.id.hex}",
        "rate_limit_id": "rl-normal",
    }
    new = {"name": "new"}
    bodies = {
        "create_chat_completion": chat(),
        "create_completion": text(),
        "create_project": new,
        "create_project_api_key": new,
        "create_service_account": new,
    }
    named = 0
    for pattern in urlpatterns:
        for endpoint in endpoints_of(pattern.callback):
            if IDEMPOTENCY_KEY not in endpoint.parameters:
                continue
            path = re.sub(r"<\w+:(\w+)>", lambda match: ids[match[1]], f"/v1/{pattern.pattern}")
            answer = await AsgiClient(raw).request(
                endpoint.method, path, bodies.get(endpoint.name, {}), headers={"Idempotency-Key": "x" * 256}
            )
            assert_error(answer, 400, "invalid_value", "Idempotency-Key")
            named += 1
    assert named > 8
