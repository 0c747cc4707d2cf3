from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from asgiref.sync import sync_to_async

from accounts.models import LaneAssignment, Tenant
from accounts.tenancy import every_tenant
from inference.messages import CancelReason
from inference.models import LanguageModel
from tests.factories import GenerationFactory, UserFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_generation_is_found_by_its_own_name_and_by_its_answers(api: AsgiClient, hand: Hand) -> None:
    for path, body in ((CHAT, chat()), (TEXT, text())):
        async with api.open("POST", path, body) as exchange:
            await hand.answer(["Hi"])
            answer = await exchange.end()
        generation = answer.headers["x-signalbox-generation"]
        by_name = await api.get(f"/v1/generations/{generation}")
        by_answer = await api.get(f"/v1/generations/{answer.json()['id']}")
        assert by_name.status == by_answer.status == 200
        assert by_name.json() == by_answer.json()
        assert by_name.json()["id"] == generation
        assert by_name.json()["created"] == answer.json()["created"]


async def test_a_record_tells_state_lane_and_reason_timeline_and_usage(api: AsgiClient, hand: Hand) -> None:
    async with api.open("POST", CHAT, chat(service_tier="priority", max_tokens=7)) as exchange:
        run = await hand.take()
        running = (await api.get(f"/v1/generations/gen_{run.generation}")).json()
        await run.say("a", "b")
        await run.finish()
        await exchange.end()
    ended = (await api.get(f"/v1/generations/gen_{run.generation}")).json()
    assert running["state"] == "running"
    assert running["usage"] is None
    assert running["timeline"]["claimed_at"] >= running["timeline"]["accepted_at"]
    assert running["timeline"]["ended_at"] is None
    assert ended["state"] == "completed"
    assert ended["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] == 2
    assert ended["usage"]["total_tokens"] == ended["usage"]["prompt_tokens"] + 2
    assert ended["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 3,
        "reasoning_tokens": 0,
    }
    assert ended["max_tokens"] == 7
    assert ended["route"] == "chat.completions"
    assert ended["lane"] == {
        "requested": "priority",
        "given": "high",
        "service_tier": "priority",
        "reason": "requested",
        "explanation": "asked for, and entitled",
    }


async def test_a_generation_whose_assignment_was_archived_tells_its_lane_and_not_why(
    api: AsgiClient, hand: Hand, tampering: Callable[[], AbstractContextManager[None]]
) -> None:
    async with api.open("POST", CHAT, chat(service_tier="priority")) as exchange:
        await hand.answer(["Hi"])
        answer = await exchange.end()

    def archive() -> None:
        with tampering(), every_tenant("the test takes it away"):
            LaneAssignment.objects.all().delete()

    await sync_to_async(archive)()
    told = await api.get(f"/v1/generations/{answer.headers['x-signalbox-generation']}")
    assert told.status == 200
    assert told.json()["lane"] == {
        "requested": None,
        "given": "high",
        "service_tier": "priority",
        "reason": None,
        "explanation": None,
    }


async def test_a_waiting_generation_tells_its_place_in_the_queue(api: AsgiClient, hand: Hand) -> None:
    body = chat(stream=True, stream_options={"include_progress": True})
    async with api.open("POST", CHAT, body) as exchange:
        await exchange.until(b"queued")
        generation = exchange.headers["x-signalbox-generation"]
        record = (await api.get(f"/v1/generations/{generation}")).json()
        assert (record["state"], record["queue_position"]) == ("queued", 1)
        exchange.hang_up()
        await exchange.end()


async def test_cancelling_a_waiting_generation_ends_it_at_once(api: AsgiClient, hand: Hand) -> None:
    body = chat(stream=True, stream_options={"include_progress": True})
    async with api.open("POST", CHAT, body) as exchange:
        await exchange.until(b"queued")
        generation = exchange.headers["x-signalbox-generation"]
        record = (await api.post(f"/v1/generations/{generation}/cancel")).json()
        assert (record["state"], record["cancel_reason"]) == ("cancelled", "client_requested")
        answer = await exchange.end()
    assert b"generation_cancelled" in answer.body
    assert b"[DONE]" not in answer.body


async def test_cancelling_a_running_generation_tells_its_worker_and_may_be_repeated(
    api: AsgiClient, hand: Hand
) -> None:
    async with api.open("POST", CHAT, chat()) as exchange:
        run = await hand.take()
        await run.say("Hel")
        first = await api.post(f"/v1/generations/gen_{run.generation}/cancel")
        assert (first.status, first.json()["state"]) == (200, "running")
        assert await run.cancelled() is CancelReason.CLIENT_REQUESTED
        await run.end_cancelled(CancelReason.CLIENT_REQUESTED)
        answer = await exchange.end()
    assert (answer.status, answer.error["code"]) == (409, "generation_cancelled")
    again = await api.post(f"/v1/generations/gen_{run.generation}/cancel")
    assert (again.status, again.json()["state"]) == (200, "cancelled")


@pytest.mark.parametrize("suffix", ["", "/events", "/cancel"])
@pytest.mark.parametrize(
    "name", ["gen_" + "0" * 32, "gen_" + "0" * 31, "chatcmpl-" + "A" * 32, "nonsense", "0" * 32, "gen_%2e%2e"]
)
async def test_a_generation_that_is_not_there_is_not_found(api: AsgiClient, suffix: str, name: str) -> None:
    method = "POST" if suffix == "/cancel" else "GET"
    answer = await api.request(method, f"/v1/generations/{name}{suffix}")
    assert (answer.status, answer.error["code"]) == (404, "generation_not_found")


@pytest.mark.parametrize("suffix", ["", "/events", "/cancel"])
async def test_foreign_generations_and_members_chats_are_not_found(
    api: AsgiClient, tenant: Tenant, model: LanguageModel, suffix: str
) -> None:
    foreign = await sync_to_async(GenerationFactory)(model=model)
    member = await sync_to_async(UserFactory)()
    chat_of_member = await sync_to_async(GenerationFactory)(model=model, tenant=tenant, user=member)
    missing = await api.request(
        "POST" if suffix == "/cancel" else "GET", f"/v1/generations/gen_{'0' * 32}{suffix}"
    )
    for generation in (foreign, chat_of_member):
        method = "POST" if suffix == "/cancel" else "GET"
        answer = await api.request(method, f"/v1/generations/gen_{generation.id.hex}{suffix}")
        assert (answer.status, answer.body) == (missing.status, missing.body)
