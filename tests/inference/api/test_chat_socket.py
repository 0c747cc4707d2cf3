from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
import redis
from asgiref.sync import sync_to_async
from django.test import Client

from accounts import keys, members, users
from accounts.models import ApiKey, Entitlement, Membership, Role, Tenant, User
from accounts.tenancy import every_tenant
from inference.api import chat_socket, ids
from inference.api.frames import MAX_FRAME_BYTES
from inference.api.socket_credentials import recheck_sockets
from inference.models import ChatMessage, Conversation, Generation, LanguageModel
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    ConversationFactory,
    MembershipFactory,
    TenantFactory,
    UserFactory,
)
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import OWN_ORIGIN, Connect, SocketClient, text_of

pytestmark = pytest.mark.django_db(transaction=True)

HELLO = [{"role": "user", "content": "Hello"}]


def generate(ref: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "generate", "ref": ref, "model": "tiny/model", "messages": HELLO, **fields}


@pytest.fixture
async def socket(connect: Connect, key: str) -> SocketClient:
    """A connection with the tenant's key."""
    return await connect(key=key)


@pytest.fixture
def user(tenant: Tenant) -> User:
    made: User = UserFactory()
    MembershipFactory(tenant=tenant, user=made)
    return made


@pytest.fixture
def session(user: User) -> str:
    return session_of(user)


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value


@pytest.fixture
async def browser(connect: Connect, session: str) -> SocketClient:
    """A connection with the user's session."""
    return await connect(session=session, origin=OWN_ORIGIN)


@pytest.fixture
def conversation(tenant: Tenant, user: User, model: LanguageModel) -> str:
    made: Conversation = ConversationFactory(tenant=tenant, user=user, model=model, title="")
    return made.id.hex


@sync_to_async
def row(name: str) -> Generation:
    id_ = ids.parse(name)
    with every_tenant("the test looks at what it made"):
        found: Generation = Generation.objects.get(id=id_)
    return found


@sync_to_async
def generations() -> int:
    with every_tenant("the test counts"):
        return int(Generation.objects.count())


# Who may


async def test_a_key_in_the_subprotocol_opens_the_socket_and_is_not_echoed(
    key: str, model: LanguageModel
) -> None:
    client = SocketClient(key=key)
    assert await client.connect() == "signalbox.v1"
    await client.send(type="resume", generation="gen_unknown")
    assert (await client.next())["code"] == "generation_not_found"
    await client.hang_up()


async def test_a_bad_key_in_the_subprotocol_is_told_so_and_closed(connect: Connect) -> None:
    client = await connect(key="sb_nothing")
    error = await client.next()
    assert (error["type"], error["code"]) == ("error", "invalid_api_key")
    assert await client.closed() == 4401


async def test_a_first_frame_authenticates_and_the_next_may_follow_at_once(
    connect: Connect, key: str, hand: Hand
) -> None:
    client = await connect()
    await client.send(type="authenticate", api_key=key)
    await client.send(**generate())
    said = set[str]()
    while not {"authenticated", "accepted"} <= said:
        said.add((await client.next())["type"])
    # That it waits may be said before who they are.
    assert said - {"queued"} == {"authenticated", "accepted"}


async def test_a_wrong_key_in_a_frame_opens_nothing_and_the_connection_stays(
    connect: Connect, key: str
) -> None:
    client = await connect()
    await client.send(type="authenticate", api_key="sb_wrong")
    assert (await client.next())["code"] == "invalid_api_key"
    await client.send(**generate())
    assert (await client.next())["code"] == "not_authenticated"
    await client.send(type="authenticate", api_key=key)
    assert (await client.next())["type"] == "authenticated"


async def test_who_never_says_who_they_are_is_closed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_socket, "AUTHENTICATE_WITHIN_S", 0.0)
    client = await connect()
    assert (await client.next())["code"] == "not_authenticated"
    assert await client.closed() == 4401


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost.evil.example",
        "http://localhost:81",
        "https://localhost:8000",
        "null",
        "",
    ],
)
async def test_a12_a_foreign_origin_with_a_session_is_refused(
    session: str, origin: str, model: LanguageModel
) -> None:
    assert await SocketClient(session=session, origin=origin).is_refused()


async def test_a_foreign_host_is_refused(session: str, model: LanguageModel) -> None:
    client = SocketClient(session=session, origin="http://evil.example", host="evil.example")
    assert await client.is_refused()


async def test_a_session_without_an_origin_opens_nothing(connect: Connect, session: str) -> None:
    client = await connect(session=session)
    await client.send(**generate())
    assert (await client.next())["code"] == "not_authenticated"


async def test_a_key_in_the_url_opens_nothing(connect: Connect, key: str) -> None:
    client = await connect(path=f"/ws/chat/?api_key={key}&token={key}")
    await client.send(**generate())
    assert (await client.next())["code"] == "not_authenticated"


async def test_a_member_is_answered_in_their_tenant(browser: SocketClient, hand: Hand, user: User) -> None:
    await browser.send(**generate())
    accepted = await browser.next()
    generation = await row(accepted["generation"])
    assert (generation.user_id, generation.api_key_id, generation.route) == (user.id, None, "ws.chat")


async def test_a_member_of_several_tenants_says_for_which(connect: Connect, user: User, session: str) -> None:
    other: Membership = await sync_to_async(MembershipFactory)(user=user)
    client = await connect(session=session, origin=OWN_ORIGIN)
    await client.send(**generate())
    error = await client.next()
    assert (error["code"], error["param"]) == ("tenant_required", "tenant")
    await client.send(**generate(tenant=other.tenant_id.hex))
    assert (await client.next())["code"] == "no_entitlement"


@pytest.mark.parametrize("tenant_named", ["not-an-id", "00000000000000000000000000000000"])
async def test_a_foreign_tenant_is_refused(browser: SocketClient, tenant_named: str) -> None:
    await browser.send(**generate(tenant=tenant_named))
    assert (await browser.next())["code"] == "not_a_member"


async def test_a_viewer_may_not_ask(connect: Connect, tenant: Tenant) -> None:
    membership = await sync_to_async(MembershipFactory)(tenant=tenant, role=Role.VIEWER)
    client = await connect(session=await sync_to_async(session_of)(membership.user), origin=OWN_ORIGIN)
    await client.send(**generate())
    assert (await client.next())["code"] == "insufficient_scope"


async def test_every_generate_authorizes_anew(socket: SocketClient, key: str) -> None:
    def revoke() -> None:
        with every_tenant("the test revokes"):
            keys.revoke(key=ApiKey.objects.get(), actor=ACTOR)

    await sync_to_async(revoke)()
    await socket.send(**generate())
    error = await socket.next()
    assert (error["code"], error["ref"]) == ("invalid_api_key", "a")
    assert await generations() == 0


async def test_an_ended_membership_may_neither_ask_nor_follow(
    browser: SocketClient, hand: Hand, user: User, tenant: Tenant
) -> None:
    await browser.send(**generate())
    accepted = await browser.next()

    def end() -> None:
        MembershipFactory(tenant=tenant, role=Role.OWNER)
        with every_tenant("the test ends it"):
            members.end(membership=Membership.objects.get(user=user), actor=ACTOR)

    await sync_to_async(end)()
    await browser.send(**generate("b"))
    assert (await browser.until_error())["code"] == "not_a_member"
    await browser.send(type="resume", generation=accepted["generation"])
    assert (await browser.until_error())["code"] == "generation_not_found"


async def test_a_session_that_ends_closes_its_sockets_and_ends_what_they_follow(
    browser: SocketClient, hand: Hand, user: User, session: str
) -> None:
    await browser.send(**generate())
    accepted = await browser.next()

    def sign_out() -> None:
        client = Client()
        client.cookies["sessionid"] = session
        client.session.flush()
        recheck_sockets(user.id)

    await sync_to_async(sign_out)()
    assert await browser.closed() == 4401
    generation = await row(accepted["generation"])
    assert (generation.state, generation.cancel_reason) == ("cancelled", "access_revoked")


async def test_no_frame_takes_a_socket_away_from_its_session(
    browser: SocketClient, hand: Hand, key: str, user: User, session: str
) -> None:
    await browser.send(**generate())
    accepted = await browser.next()
    for api_key in ("nonsense", key):
        await browser.send(type="authenticate", api_key=api_key)
        assert (await browser.until_error())["code"] == "already_signed_in"

    def sign_out() -> None:
        client = Client()
        client.cookies["sessionid"] = session
        client.session.flush()
        recheck_sockets(user.id)

    await sync_to_async(sign_out)()
    assert await browser.closed() == 4401
    assert (await row(accepted["generation"])).cancel_reason == "access_revoked"


async def test_a_session_that_holds_keeps_its_sockets_when_another_ends(
    browser: SocketClient, hand: Hand, user: User
) -> None:
    await sync_to_async(recheck_sockets)(user.id)
    await browser.send(**generate())
    assert (await browser.next())["type"] == "accepted"


async def test_a_new_password_ends_the_sessions_that_were_opened_with_the_old_one(
    browser: SocketClient, user: User
) -> None:
    def change() -> None:
        users.set_password(user=user, password="an entirely new promise", actor=ACTOR)
        recheck_sockets(user.id)

    await sync_to_async(change)()
    assert await browser.closed() == 4401


@pytest.mark.parametrize("ends", [users.issue_one_time_password, users.close])
async def test_an_operator_who_ends_the_sessions_ends_what_they_stream(
    browser: SocketClient, hand: Hand, user: User, ends: Callable[..., object]
) -> None:
    await browser.send(**generate())
    accepted = await browser.next()
    await sync_to_async(ends)(user=user, actor=ACTOR)
    assert await browser.closed() == 4401
    assert (await row(accepted["generation"])).cancel_reason == "access_revoked"


# What is said


async def test_an_answer_is_told_from_acceptance_to_its_end(socket: SocketClient, hand: Hand) -> None:
    # Progress is told, not kept: the process's reader has to be there when it is.
    await socket.send(**generate("first"))
    await hand.answer(["Hi"])
    await socket.until("done")
    await socket.send(**generate(service_tier="flex", max_tokens=9))
    accepted = await socket.next()
    assert accepted | {"generation": ""} == {
        "type": "accepted",
        "ref": "a",
        "generation": "",
        "model": "tiny/model",
        "lane": "low",
        "service_tier": "flex",
        "requested_lane": "flex",
        "reason": "requested",
    }
    run = await hand.take()
    assert run.claim.task.max_tokens == 9
    await run.prefill(3)
    await run.say("One ", "", "two")
    await run.finish()
    frames = await socket.all_until("done")
    total = len(run.claim.task.prompt)
    told = [frame for frame in frames if frame["type"] != "queued"]
    assert [frame["type"] for frame in told] == ["prefill", "delta", "delta", "done"]
    assert (told[0]["done"], told[0]["total"]) == (3, total)
    assert [(frame["seq"], frame["text"]) for frame in told[1:3]] == [(1, "One "), (3, "two")]
    done = told[3]
    assert done["finish_reason"] == "stop"
    assert done["usage"]["prompt_tokens"] == total
    assert done["usage"]["completion_tokens"] == 3
    assert done["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 3,
        "reasoning_tokens": 0,
    }
    assert (
        done["timings"]["total_ms"] >= done["timings"]["first_token_ms"] >= done["timings"]["queue_ms"] >= 0
    )
    assert {frame["generation"] for frame in told} == {accepted["generation"]}


async def test_a_waiting_generation_is_told_its_place(socket: SocketClient, hand: Hand) -> None:
    await socket.send(**generate("a"))
    await socket.send(**generate("b"))
    places = {}
    while len(places) < 2:
        frame = await socket.next()
        if frame["type"] == "queued":
            places[frame["generation"]] = frame["position"]
    assert sorted(places.values()) == [1, 2]
    first = next(name for name, place in places.items() if place == 1)
    second = next(name for name, place in places.items() if place == 2)
    run = await hand.take()
    assert run.generation == ids.parse(first).hex  # type: ignore[union-attr]
    frame = await socket.until("queued")
    assert (frame["generation"], frame["position"]) == (second, 1)


async def test_a_lane_that_is_not_given_is_told_with_its_reason(
    socket: SocketClient, tenant: Tenant, hand: Hand
) -> None:
    def end() -> None:
        with every_tenant("the test ends it"):
            Entitlement.objects.filter(lane_id="high").delete()

    await sync_to_async(end)()
    await socket.send(**generate(lane="high"))
    accepted = await socket.next()
    assert (accepted["lane"], accepted["requested_lane"], accepted["reason"]) == (
        "normal",
        "high",
        "not_entitled",
    )


async def test_several_generations_stream_over_one_connection(socket: SocketClient, hand: Hand) -> None:
    names = []
    for ref in ("a", "b", "c"):
        await socket.send(**generate(ref))
        names.append((await socket.until("accepted"))["generation"])
    runs = [await hand.take() for _ in names]
    for word in ("x", "y"):
        for number, run in enumerate(runs):
            await run.say(f"{word}{number}")
    for run in reversed(runs):
        await run.finish()
    texts: dict[str, str] = {}
    done = []
    while len(done) < 3:
        frame = await socket.next()
        if frame["type"] == "delta":
            texts[frame["generation"]] = texts.get(frame["generation"], "") + frame["text"]
        elif frame["type"] == "done":
            done.append(frame["generation"])
    answers = {ids.generation_id(UUID(hex=run.generation)): f"x{n}y{n}" for n, run in enumerate(runs)}
    assert texts == answers
    assert set(done) == set(names)


async def test_a_cancel_frame_is_not_kept_waiting_and_ends_the_generation(
    socket: SocketClient, hand: Hand
) -> None:
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    run = await hand.take()
    await run.say("One ")
    await socket.send(type="cancel", generation=name)
    assert await run.cancelled() == "client_requested"
    await run.end_cancelled(await run.cancelled())
    done = await socket.until("done")
    assert (done["finish_reason"], done["cancel_reason"]) == ("cancelled", "client_requested")
    assert done["usage"]["completion_tokens"] == 1


async def test_a_queued_generation_is_cancelled_at_once(socket: SocketClient, hand: Hand) -> None:
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    await socket.send(type="cancel", generation=name)
    assert (await socket.until("done"))["finish_reason"] == "cancelled"
    assert await hand.finds_nothing()


async def test_a_failed_generation_ends_in_an_error_that_names_it(socket: SocketClient, hand: Hand) -> None:
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    run = await hand.take()
    await run.say("Half")
    await run.fail("out_of_memory", "The model ran out of memory.")
    frames = await socket.all_until("error")
    assert text_of(frames) == "Half"
    error = frames[-1]
    assert (error["generation"], error["code"], error["message"]) == (
        name,
        "out_of_memory",
        "The model ran out of memory.",
    )


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ({"type": "sing"}, "unknown_frame", "type"),
        ({"type": 7}, "unknown_frame", "type"),
        ({"model": "tiny/model"}, "unknown_frame", "type"),
        ({"type": "generate", "ref": "a"}, "missing_required_parameter", "model"),
        (generate(messages=[]), "invalid_value", "messages"),
        (generate(messages=[{"role": "user"}]), "missing_required_parameter", "messages[0].content"),
        (generate(temperature=9), "invalid_value", "temperature"),
        (generate(temprature=1), "unsupported_parameter", "temprature"),
        (generate(tools=[{"type": "function"}]), "unsupported_parameter", "tools"),
        (generate(n=2), "unsupported_parameter", "n"),
        (generate(model="no/such"), "model_not_found", "model"),
        (generate(lane="express"), "unknown_lane", "service_tier"),
        (generate(conversation="aaaa"), "conversation_not_found", "conversation"),
        (generate(messages=HELLO * 1500), "context_length_exceeded", "messages"),
        (generate(ref=5), "invalid_type", "ref"),
        ({"type": "resume"}, "missing_required_parameter", "generation"),
        ({"type": "resume", "generation": "gen_x", "after": -1}, "invalid_value", "after"),
        ({"type": "resume", "generation": "gen_x"}, "generation_not_found", "generation"),
        ({"type": "cancel", "generation": "gen_x"}, "generation_not_found", "generation"),
    ],
)
async def test_a_frame_that_cannot_be_acted_on_is_answered_with_what_is_wrong_and_the_connection_stays(
    socket: SocketClient, hand: Hand, frame: dict[str, Any], code: str, param: str
) -> None:
    await socket.send(**frame)
    error = await socket.next()
    assert (error["type"], error["code"], error["param"]) == ("error", code, param)
    assert error["message"]
    assert error.get("ref") == (frame.get("ref") if isinstance(frame.get("ref"), str) else None)
    assert await generations() == 0
    await socket.send(**generate())
    assert (await socket.next())["type"] == "accepted"


@pytest.mark.parametrize(
    "text", [" ", "{", "[]", '"generate"', "null", "[" * 5000, '{"type": "\\ud800"}', "NaN"]
)
async def test_what_is_no_json_object_is_refused_and_the_connection_stays(
    socket: SocketClient, text: str
) -> None:
    await socket.send_text(text)
    assert (await socket.next())["code"] in ("invalid_json", "unknown_frame")
    await socket.send_bytes(b"\x00\xff")
    assert (await socket.next())["code"] == "invalid_json"


async def test_a_frame_beyond_the_limit_is_refused_and_the_connection_stays(socket: SocketClient) -> None:
    await socket.send_text(
        json.dumps(generate(messages=[{"role": "user", "content": "é" * MAX_FRAME_BYTES}]))
    )
    assert (await socket.next())["code"] == "frame_too_large"
    await socket.send(**generate())
    assert (await socket.next())["type"] == "accepted"


async def test_too_many_invalid_frames_close_the_connection(socket: SocketClient) -> None:
    for _ in range(chat_socket.MOST_INVALID_FRAMES):
        await socket.send_text("?")
        assert (await socket.next())["code"] == "invalid_json"
    await socket.send(**generate())
    assert (await socket.next())["type"] == "accepted"
    await socket.send_text("?")
    assert await socket.closed() == 1008


async def test_wrong_keys_are_not_tried_for_ever(connect: Connect) -> None:
    client = await connect()
    for _ in range(chat_socket.MOST_INVALID_FRAMES):
        await client.send(type="authenticate", api_key="sb_wrong")
        assert (await client.next())["code"] == "invalid_api_key"
    await client.send(type="authenticate", api_key="sb_wrong")
    assert await client.closed() == 1008


async def test_a_large_frame_of_a_stranger_closes_the_connection(connect: Connect, key: str) -> None:
    client = await connect()
    await client.send_text(json.dumps({"type": "authenticate", "api_key": key, "more": "x" * 5000}))
    assert (await client.next())["code"] == "frame_too_large"
    assert await client.closed() == 1008


async def test_saying_who_one_is_takes_no_generations_place(
    connect: Connect, key: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_socket, "MOST_GENERATIONS", 2)
    client = await connect()
    await client.send(type="authenticate", api_key=key)
    for ref in ("a", "b"):
        await client.send(**generate(ref))
    said: list[str] = []
    while said.count("accepted") < 2:
        said.append((await client.next())["type"])
    # That it waits is said of one now and then, where the other came first.
    assert set(said) - {"queued"} == {"authenticated", "accepted"}


async def test_one_connection_has_a_bounded_number_of_generations(
    socket: SocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await socket.send(**generate("a"))
    assert (await socket.next())["type"] == "accepted"
    monkeypatch.setattr(chat_socket, "MOST_GENERATIONS", 1)
    await socket.send(**generate("b"))
    error = await socket.until_error()
    assert (error["code"], error["ref"]) == ("too_many_generations", "b")


# What is kept, and picked up again


async def test_a_closed_socket_leaves_its_generation_running_and_it_is_resumed_without_a_gap(
    connect: Connect, key: str, hand: Hand
) -> None:
    first = await connect(key=key)
    await first.send(**generate())
    name = (await first.next())["generation"]
    run = await hand.take()
    await run.say("One ", "two ")
    seen = await first.until("delta")
    await first.hang_up()
    await run.say("three ")
    assert not await run.is_cancelled()
    second = await connect(key=key)
    await second.send(type="resume", generation=name, after=seen["seq"], epoch=seen["epoch"])
    await run.say("four")
    await run.finish()
    frames = await second.all_until("done")
    assert seen["text"] + text_of(frames) == "One two three four"


@pytest.mark.parametrize("after", range(5))
async def test_an_ended_generation_is_replayed_from_any_event_on(
    socket: SocketClient, hand: Hand, after: int
) -> None:
    texts = ["One ", "two ", "three"]
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    await hand.answer(texts)
    await socket.until("done")
    await socket.send(type="resume", generation=name, after=after)
    frames = await socket.all_until("done")
    assert text_of(frames) == "".join(texts[after:])
    assert frames[-1]["usage"]["completion_tokens"] == 3


async def test_resuming_what_is_followed_already_starts_over_and_tells_nothing_twice_after_that(
    socket: SocketClient, hand: Hand
) -> None:
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    run = await hand.take()
    await run.say("One ")
    await socket.until("delta")
    await socket.send(type="resume", generation=name, after=0)
    assert (await socket.until("delta"))["text"] == "One "
    await run.say("two")
    await run.finish()
    assert text_of(await socket.all_until("done")) == "two"


async def test_a_reader_ahead_of_the_log_is_told_that_the_stream_diverged(
    socket: SocketClient, hand: Hand
) -> None:
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    run = await hand.take()
    await run.say("One")
    await socket.until("delta")
    await socket.send(type="resume", generation=name, after=99)
    assert (await socket.until_error())["code"] == "stream_diverged"


async def test_expired_events_are_told_so(socket: SocketClient, hand: Hand, valkey: redis.Redis) -> None:
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    await hand.answer(["One"])
    await socket.until("done")
    await asyncio.to_thread(valkey.flushall)
    await socket.send(type="resume", generation=name)
    assert (await socket.until_error())["code"] == "events_expired"


async def test_a_stored_answer_is_replayed_when_its_log_is_gone(
    browser: SocketClient, hand: Hand, valkey: redis.Redis, conversation: str
) -> None:
    await browser.send(**generate(conversation=conversation))
    name = (await browser.next())["generation"]
    await hand.answer(["Kept ", "words"])
    await browser.until("done")
    await asyncio.to_thread(valkey.flushall)
    await browser.send(type="resume", generation=name)
    assert text_of(await browser.all_until("done")) == "Kept words"


async def test_another_tenants_generation_is_as_unknown_as_one_that_never_was(
    socket: SocketClient, connect: Connect, hand: Hand
) -> None:
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    stranger = await connect(key=await sync_to_async(lambda: ApiKeyFactory(tenant=TenantFactory()).raw)())
    for frame in ({"type": "resume", "generation": name}, {"type": "cancel", "generation": name}):
        await stranger.send(**frame)
        assert (await stranger.next())["code"] == "generation_not_found"
    run = await hand.take()
    assert not await run.is_cancelled()


async def test_members_answers_are_hidden_from_keys_and_colleagues_of_the_same_tenant(
    browser: SocketClient, socket: SocketClient, connect: Connect, tenant: Tenant, hand: Hand
) -> None:
    await browser.send(**generate())
    name = (await browser.next())["generation"]
    membership = await sync_to_async(MembershipFactory)(tenant=tenant)
    colleague = await connect(session=await sync_to_async(session_of)(membership.user), origin=OWN_ORIGIN)
    for other in (socket, colleague):
        for type_ in ("resume", "cancel"):
            await other.send(type=type_, generation=name)
            assert (await other.next())["code"] == "generation_not_found"


# Conversations


@sync_to_async
def said_in(conversation: str) -> list[tuple[str, str]]:
    with every_tenant("the test reads"):
        return [
            (message.role, message.content)
            for message in ChatMessage.objects.filter(conversation=UUID(hex=conversation)).order_by(
                "position"
            )
        ]


async def test_a_conversation_goes_on_from_what_was_said_in_it(
    browser: SocketClient, hand: Hand, conversation: str
) -> None:
    await browser.send(**generate(conversation=conversation))
    accepted = await browser.next()
    assert accepted["conversation"] == conversation
    first = await hand.answer(["Hi ", "there"])
    assert first.claim.task.unattended
    await browser.until("done")
    again = [
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "you?"}]}
    ]
    await browser.send(**generate("b", conversation=conversation, messages=again))
    await browser.until("accepted")
    second = await hand.answer(["Fine"])
    await browser.until("done")
    assert await said_in(conversation) == [
        ("user", "Hello"),
        ("assistant", "Hi there"),
        ("user", "And you?"),
        ("assistant", "Fine"),
    ]
    assert len(second.claim.task.prompt) > len(first.claim.task.prompt)


async def test_the_last_answer_is_given_anew_when_nothing_is_said(
    browser: SocketClient, hand: Hand, conversation: str
) -> None:
    await browser.send(**generate(conversation=conversation))
    run = await hand.take()
    await run.say("Half")
    await run.fail("out_of_memory", "…")
    await browser.all_until("error")
    await browser.send(**generate("b", conversation=conversation, messages=[]))
    await browser.until("accepted")
    await hand.answer(["Whole"])
    await browser.until("done")
    assert await said_in(conversation) == [("user", "Hello"), ("assistant", "Whole")]


async def test_a_second_question_during_an_answer_is_refused_and_not_stored(
    browser: SocketClient, hand: Hand, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_socket, "SETTLED_WITHIN_S", 0.0)
    await browser.send(**generate(conversation=conversation))
    await browser.until("accepted")
    await browser.send(**generate("b", conversation=conversation))
    error = await browser.until_error()
    assert (error["code"], error["ref"]) == ("answer_in_progress", "b")
    assert await said_in(conversation) == [("user", "Hello"), ("assistant", "")]


async def test_a_question_that_comes_before_the_last_answer_is_settled_waits_for_that(
    browser: SocketClient, hand: Hand, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_socket, "SETTLED_WITHIN_S", 60.0)
    await browser.send(**generate(conversation=conversation))
    await browser.until("accepted")
    await browser.send(**generate("b", conversation=conversation))
    await hand.answer(["Hi"])
    assert (await browser.until("accepted"))["ref"] == "b"


async def test_an_api_key_has_no_conversations(socket: SocketClient, conversation: str) -> None:
    await socket.send(**generate(conversation=conversation))
    assert (await socket.next())["code"] == "conversation_needs_session"


async def test_a_tool_call_is_not_stored(browser: SocketClient, conversation: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    await browser.send(**generate(conversation=conversation, messages=messages))
    assert (await browser.next())["code"] == "role_not_stored"
    assert await said_in(conversation) == []


# Slow readers


async def test_a_reader_that_takes_nothing_is_dropped_told_so_and_resumes(
    socket: SocketClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_socket, "SLOW_READER_S", -1.0)
    await socket.send(**generate())
    name = (await socket.next())["generation"]
    run = await hand.take()
    await run.say("One ")
    seen = await socket.until("delta")
    error = await socket.until_error()
    assert (error["code"], error["generation"]) == ("slow_reader", name)
    monkeypatch.undo()
    await run.say("two")
    await run.finish()
    await socket.send(type="resume", generation=name, after=seen["seq"])
    assert text_of(await socket.all_until("done")) == "two"
    assert (await row(name)).state == "completed"
