from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.api import streaming
from inference.api.prompts import tokenizer_of
from inference.dispatch.queue import DispatchQueue
from inference.messages import CancelReason, FinishReason
from inference.models import LanguageModel
from tests.inference.api.asgi_client import Answer, AsgiClient, comments_of, events_of
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand

pytestmark = pytest.mark.django_db(transaction=True)

#: A combining mark, a character of Chinese, an emoji.
RICH = "e\u0301信👍"
TEXTS = ["Grü", "", "ße 👍", "🏽", " こん", '\n"quoted" \\ data: x\n\n']


def chunks_of(answer: Answer) -> list[dict[str, Any]]:
    events = events_of(answer.body)
    assert events[-1][1] == "[DONE]", answer.body
    return [json.loads(data) for _, data in events[:-1]]


async def answered(
    api: AsgiClient, hand: Hand, path: str, body: dict[str, Any], texts: list[str] = TEXTS
) -> Answer:
    async with api.open("POST", path, body) as exchange:
        await hand.answer(texts)
        answer = await exchange.end()
    assert answer.status == 200, answer.body
    return answer


async def test_a_chat_stream_opens_with_the_role_and_ends_with_the_reason_and_done(
    api: AsgiClient, hand: Hand
) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        await hand.answer(["Hel", "", "lo"], FinishReason.LENGTH)
        answer = await exchange.end()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = chunks_of(answer)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    for name in ("id", "created", "model", "service_tier", "system_fingerprint", "object"):
        assert len({chunk[name] for chunk in chunks}) == 1


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (TEXT, text())])
async def test_what_is_streamed_joined_equals_the_unstreamed_answer(
    api: AsgiClient, hand: Hand, path: str, body: dict[str, Any]
) -> None:
    whole = (await answered(api, hand, path, body)).json()
    streamed = chunks_of(await answered(api, hand, path, {**body, "stream": True}))
    choices = [chunk["choices"][0] for chunk in streamed]
    if path == CHAT:
        joined = "".join(choice["delta"].get("content", "") for choice in choices)
        assert joined == whole["choices"][0]["message"]["content"]
    else:
        joined = "".join(choice["text"] for choice in choices)
        assert joined == whole["choices"][0]["text"]
    assert joined == "".join(TEXTS)
    assert whole["usage"]["completion_tokens"] == len(TEXTS)
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "stop"


async def test_s5_whichever_bytes_a_token_has_and_wherever_the_text_ends_no_character_is_cut(
    api: AsgiClient, hand: Hand, model: LanguageModel
) -> None:
    tokenizer = tokenizer_of(model)
    token_of = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    content = RICH.encode()
    # A token a byte: a tick ends within each character at every place that there is.
    tokens = [token_of[bytes([byte])] for byte in content]
    for length in range(1, len(tokens) + 1):
        path, body = (CHAT, chat(max_tokens=length)) if length % 2 else (TEXT, text(max_tokens=length))
        answers = []
        for stream in (False, True):
            async with api.open("POST", path, {**body, "stream": stream}) as exchange:
                await (await hand.take()).produce(tokenizer, tokens)
                answers.append(await exchange.end())
        [choice] = answers[0].json()["choices"]
        whole = choice["message"]["content"] if path == CHAT else choice["text"]
        chunks = [chunk["choices"][0] for chunk in chunks_of(answers[1])]
        pieces = [chunk["delta"].get("content", "") if path == CHAT else chunk["text"] for chunk in chunks]
        # What the end leaves unfinished shows as one sign, in the end.
        assert whole == content[:length].decode(errors="replace")
        assert "".join(pieces) == whole


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": None}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
async def test_s8_usage_comes_only_when_asked_once_in_a_last_chunk(
    api: AsgiClient, hand: Hand, path: str, options: dict[str, Any], asked: bool
) -> None:
    body = {**(chat() if path == CHAT else text()), "stream": True, **options}
    chunks = chunks_of(await answered(api, hand, path, body, ["a", "b"]))
    if not asked:
        assert all("usage" not in chunk for chunk in chunks)
        assert all(chunk["choices"] for chunk in chunks)
        return
    *others, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 2
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert last["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 3,
        "reasoning_tokens": 0,
    }
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in others)


async def test_a_fault_before_the_first_byte_is_an_http_status(api: AsgiClient, hand: Hand) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        await run.fail("prompt_failed", "The prompt could not be run.")
        answer = await exchange.end()
    assert answer.status == 500
    assert answer.error == {
        "message": "The prompt could not be run.",
        "type": "server_error",
        "param": None,
        "code": "prompt_failed",
    }
    assert answer.headers["x-signalbox-generation"] == f"gen_{run.generation}"


async def test_s9_a_fault_after_the_first_byte_is_an_error_event_then_the_end_without_done(
    api: AsgiClient, hand: Hand
) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        await run.say("Hel")
        await exchange.until(b"Hel")
        await run.fail("worker_failed", "The worker failed and could not resume.")
        answer = await exchange.end()
    assert answer.status == 200
    events = [data for _, data in events_of(answer.body)]
    assert json.loads(events[-1])["error"]["code"] == "worker_failed"
    assert "[DONE]" not in events


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (CancelReason.CLIENT_REQUESTED, 409, "generation_cancelled"),
        (CancelReason.OPERATOR_REQUESTED, 409, "generation_cancelled"),
        (CancelReason.DETACHED, 409, "generation_cancelled"),
        (CancelReason.ACCESS_REVOKED, 403, "access_revoked"),
        (CancelReason.TIMED_OUT, 503, "generation_expired"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_that_was_ended_before_its_first_byte_says_by_whom(
    api: AsgiClient, hand: Hand, reason: CancelReason, status: int, code: str, stream: bool
) -> None:
    async with api.open("POST", CHAT, chat(stream=stream)) as exchange:
        run = await hand.take()
        await run.end_cancelled(reason)
        answer = await exchange.end()
    assert (answer.status, answer.error["code"]) == (status, code)
    assert ("retry-after" in answer.headers) == (status == 503)
    assert answer.headers.get("x-should-retry") == (None if status == 503 else "false")


async def test_a_failed_generation_is_the_same_error_unstreamed(api: AsgiClient, hand: Hand) -> None:
    async with api.open("POST", CHAT, chat()) as exchange:
        run = await hand.take()
        await run.say("Hel")
        await run.fail("worker_failed", "The worker failed and could not resume.")
        answer = await exchange.end()
    assert (answer.status, answer.error["code"]) == (500, "worker_failed")


async def test_comments_keep_a_silent_stream_alive(
    api: AsgiClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.05)
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        await exchange.until(b": keep-alive\n: keep-alive\n")
        run = await hand.take()
        await run.say("Hi")
        await exchange.until(b"Hi")
        silent_since = len(exchange.sent)
        while b": keep-alive" not in exchange.sent[silent_since:]:
            await exchange.news()
        await run.finish()
        answer = await exchange.end()
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks_of(answer)] == ["", "Hi", None]


async def test_prefill_progress_does_not_count_as_a_sign_of_life_for_who_did_not_ask_for_it(
    api: AsgiClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.05)
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        while b": keep-alive" not in exchange.sent:
            await run.prefill(1)
        await run.finish()
        answer = await exchange.end()
    assert set(comments_of(answer.body)) == {"keep-alive"}


async def test_with_include_progress_comments_tell_place_in_the_queue_and_prefill(
    api: AsgiClient, hand: Hand
) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as first:
        body = chat("Me too", stream=True, stream_options={"include_progress": True})
        async with api.open("POST", CHAT, body) as second:
            await second.until(b': queued {"position": ')
            positions = [comment for comment in comments_of(second.sent) if comment.startswith("queued")]
            assert positions[0] in ('queued {"position": 1}', 'queued {"position": 2}')
            runs = [await hand.take(), await hand.take()]
            # It is told, and not kept: whoever is not reading the stream yet hears the next one.
            while b': prefill {"done": 3, "total": ' not in second.sent:
                for run in runs:
                    await run.prefill(3)
            for run in runs:
                await run.finish()
            answer = await second.end()
            await first.end()
    assert (
        comments_of(answer.body)[0]
        == f'accepted {{"generation": "{answer.headers["x-signalbox-generation"]}"}}'
    )
    assert not any(comment.startswith(("queued", "prefill")) for comment in comments_of(first.sent))


async def test_a_place_in_the_queue_that_cannot_be_asked_for_costs_no_stream(
    api: AsgiClient, hand: Hand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere = DispatchQueue(
        redis.Redis(unix_socket_path=str(tmp_path / "nobody"), retry=Retry(NoBackoff(), 0))
    )
    asked = asyncio.Event()

    def queue() -> DispatchQueue:
        asked.set()
        return nowhere

    monkeypatch.setattr(streaming, "dispatch_queue", queue)
    async with api.open(
        "POST", CHAT, chat(stream=True, stream_options={"include_progress": True})
    ) as exchange:
        await asyncio.wait_for(asked.wait(), 20)
        await hand.answer(["Hi"])
        answer = await exchange.end()
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks_of(answer)) == "Hi"


async def test_who_can_resume_is_told_the_generations_name_at_once(api: AsgiClient, hand: Hand) -> None:
    body = chat(stream=True, stream_options={"resumable": True})
    async with api.open("POST", CHAT, body) as exchange:
        await exchange.until(b": accepted")
        assert exchange.status == 200
        await hand.answer(["Hi"])
        await exchange.end()


async def test_every_event_carries_its_place_in_the_log(api: AsgiClient, hand: Hand) -> None:
    answer = await answered(api, hand, CHAT, chat(stream=True), ["a", "", "b"])
    generation = answer.headers["x-signalbox-generation"]
    ids = [id_ for id_, _ in events_of(answer.body)]
    assert ids == [f"{generation}:0", f"{generation}:1.1", f"{generation}:3.1", f"{generation}:4.1", None]


async def test_answers_name_lane_generation_request_and_time(api: AsgiClient, hand: Hand) -> None:
    for stream in (False, True):
        answer = await answered(api, hand, CHAT, chat(stream=stream))
        assert answer.headers["x-signalbox-lane"] == "normal"
        assert answer.headers["x-signalbox-generation"].startswith("gen_")
        assert answer.headers["x-request-id"].startswith("req_")
        assert int(answer.headers["openai-processing-ms"]) >= 0
        assert answer.headers["x-signalbox-generation"].removeprefix("gen_") in answer.body.decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_no_database_connection_is_held_while_a_client_waits(
    api: AsgiClient, hand: Hand, stream: bool
) -> None:
    opened: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: Any) -> None:
        opened.append(connection)

    connection_created.connect(note)
    try:
        async with api.open("POST", CHAT, chat(stream=stream)) as exchange:
            run = await hand.take()
            if stream:
                await run.say("Hi")
                await exchange.until(b"Hi")
            assert opened
            # Whoever takes it may be there before the thread that accepted it has let go.
            async with asyncio.timeout(60):
                while any(connection.connection is not None for connection in opened):
                    await asyncio.sleep(0.01)
            await run.finish()
            await exchange.end()
    finally:
        connection_created.disconnect(note)
