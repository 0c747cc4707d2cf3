"""F15: whatever door it comes to, what can never fit the worker's memory is refused before it is queued, with how much
it needs and how much there is."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async

from accounts.models import LaneAssignment, Reservation, Tenant
from accounts.tenancy import every_tenant
from inference import language_models
from inference.api.chat_messages import UserMessage
from inference.api.prompts import chat_prompt
from inference.models import ChatMessage, Generation, GenerationRequest, IdempotencyKey, LanguageModel
from tests.factories import ConversationFactory, MembershipFactory, UserFactory
from tests.inference.api.asgi_client import Answer, AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import OWN_ORIGIN, Connect
from tests.inference.api.test_chat_socket import generate, session_of
from tests.inference.api.test_errors import assert_error

pytestmark = pytest.mark.django_db(transaction=True)

#: What the model's worker has told, in tokens: less than the context, which is 512.
CAPACITY = 200


@sync_to_async
def worker_tells(model: LanguageModel, tokens: int) -> None:
    language_models.note_capacity(model.id, tokens)


@pytest.fixture
async def small(model: LanguageModel) -> LanguageModel:
    await worker_tells(model, CAPACITY)
    return model


@sync_to_async
def made() -> int:
    """Rows that an accepted request leaves."""
    with every_tenant("the test looks for leftovers"):
        kinds: list[Any] = [
            Generation,
            GenerationRequest,
            LaneAssignment,
            Reservation,
            IdempotencyKey,
            ChatMessage,
        ]
        return sum(kind.objects.count() for kind in kinds)


async def assert_nothing_is_left(valkey: redis.Redis, hand: Hand) -> None:
    assert await made() == 0
    assert not [key for key in valkey.keys("dispatch:*") if b":places:" in key or b":queue:" in key]
    assert await hand.finds_nothing()


def long_for(model: LanguageModel) -> str:
    """A chat that fits the context, and not the memory."""
    words = ""
    while len(chat_prompt(model, [UserMessage(role="user", content=words)])) <= CAPACITY:
        words += "word "
    return words


def assert_refused(answer: Answer, param: str, need: int) -> None:
    assert_error(answer, 400, "kv_memory_exceeded", param)
    assert f"memory for {CAPACITY} tokens" in answer.error["message"]
    assert f"{need} are needed" in answer.error["message"]
    assert "KV budget" in answer.error["message"], "what can be done about it"
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [False, True])
async def test_f15_of_both_routes_streamed_and_not(
    api: AsgiClient, small: LanguageModel, hand: Hand, valkey: redis.Redis, stream: bool
) -> None:
    prompt = [5] * 60
    answer = await api.post(TEXT, text(prompt, max_tokens=CAPACITY - 59, stream=stream))
    assert_refused(answer, "prompt", CAPACITY + 1)
    # A prompt that leaves no room for an answer, whose length was not asked for.
    assert_refused(await api.post(TEXT, text([5] * CAPACITY, stream=stream)), "prompt", CAPACITY + 1)
    answer = await api.post(CHAT, chat(long_for(small), stream=stream))
    assert_error(answer, 400, "kv_memory_exceeded", "messages")
    for name in ("max_tokens", "max_completion_tokens"):
        answer = await api.post(CHAT, chat(stream=stream, **{name: CAPACITY}))
        assert_error(answer, 400, "kv_memory_exceeded", "messages")
    # Beyond the context, no memory would help.
    beyond = await api.post(TEXT, text(prompt, max_tokens=500, stream=stream))
    assert_error(beyond, 400, "context_length_exceeded", "prompt")
    await assert_nothing_is_left(valkey, hand)


async def test_f15_what_just_fits_is_answered_and_a_default_length_is_what_is_left(
    api: AsgiClient, small: LanguageModel, hand: Hand
) -> None:
    for fields, most in (({"max_tokens": CAPACITY - 60}, CAPACITY - 60), ({}, CAPACITY - 60)):
        async with api.open("POST", TEXT, text([5] * 60, **fields)) as exchange:
            run = await hand.take()
            assert run.claim.task.max_tokens == most
            await run.finish()
            assert (await exchange.end()).status == 200


async def test_f15_a_refused_name_is_free_and_an_answered_one_is_answered_again_whatever_memory_is_left(
    api: AsgiClient, small: LanguageModel, hand: Hand, valkey: redis.Redis
) -> None:
    named = {"Idempotency-Key": "the long one"}
    body = text([5] * 60, max_tokens=300)
    for _ in range(2):
        assert_refused(await api.post(TEXT, body, headers=named), "prompt", 360)
    await assert_nothing_is_left(valkey, hand)
    await worker_tells(small, 400)
    async with api.open("POST", TEXT, body, headers=named) as exchange:
        await hand.answer(["Hi"])
        first = await exchange.end()
    await worker_tells(small, CAPACITY)
    again = await api.post(TEXT, body, headers=named)
    assert again.status == first.status == 200
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"


async def test_f15_on_the_chat_socket_and_the_connection_stays(
    small: LanguageModel, hand: Hand, valkey: redis.Redis, connect: Connect, key: str
) -> None:
    socket = await connect(key=key)
    await socket.send(**generate("long", max_tokens=CAPACITY))
    error = await socket.next()
    assert (error["type"], error["ref"], error["code"], error["param"]) == (
        "error",
        "long",
        "kv_memory_exceeded",
        "messages",
    )
    assert f"memory for {CAPACITY} tokens" in error["message"]
    assert "retry_after_ms" not in error or error["retry_after_ms"] is None
    await assert_nothing_is_left(valkey, hand)
    await socket.send(**generate())
    assert (await socket.next())["type"] == "accepted"


async def test_f15_in_the_web_chat_a_turn_that_is_refused_is_not_stored(
    small: LanguageModel, hand: Hand, valkey: redis.Redis, connect: Connect, tenant: Tenant
) -> None:
    @sync_to_async
    def signed_in() -> tuple[str, str]:
        user = UserFactory()
        MembershipFactory(tenant=tenant, user=user)
        conversation = ConversationFactory(tenant=tenant, user=user, model=small)
        return session_of(user), conversation.id.hex

    session, conversation = await signed_in()
    socket = await connect(session=session, origin=OWN_ORIGIN)
    messages = [{"role": "user", "content": long_for(small)}]
    await socket.send(**generate(conversation=conversation, messages=messages))
    error = await socket.next()
    assert (error["type"], error["code"]) == ("error", "kv_memory_exceeded")
    await assert_nothing_is_left(valkey, hand)
    await socket.send(**generate(conversation=conversation))
    assert (await socket.next())["type"] == "accepted"
