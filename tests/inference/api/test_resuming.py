from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from tests.inference.api.asgi_client import Answer, AsgiClient, events_of
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand

pytestmark = pytest.mark.django_db(transaction=True)

RESUMABLE = {"resumable": True}
TEXTS = ["one ", "", "two ", "three"]


def without_comments(stream: bytes) -> list[tuple[str | None, str]]:
    return events_of(stream)


async def streamed(api: AsgiClient, hand: Hand, path: str = CHAT, **options: Any) -> Answer:
    body = {
        **(chat() if path == CHAT else text()),
        "stream": True,
        "stream_options": {**RESUMABLE, **options},
    }
    async with api.open("POST", path, body) as exchange:
        await hand.answer(TEXTS)
        return await exchange.end()


def url(answer: Answer, suffix: str = "/events") -> str:
    return f"/v1/generations/{answer.headers['x-signalbox-generation']}{suffix}"


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_the_events_of_a_finished_stream_are_the_very_same_again(
    api: AsgiClient, hand: Hand, path: str
) -> None:
    original = await streamed(api, hand, path)
    replayed = await api.get(url(original))
    assert replayed.status == 200
    assert replayed.headers["content-type"].startswith("text/event-stream")
    assert events_of(replayed.body) == events_of(original.body)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_from_every_event_on_the_stream_continues_with_exactly_the_rest(
    api: AsgiClient, hand: Hand, path: str
) -> None:
    original = await streamed(api, hand, path)
    events = events_of(original.body)
    for index, (id_, _) in enumerate(events[:-1]):
        assert id_ is not None
        rest = await api.get(url(original), headers={"Last-Event-ID": id_})
        # The event after the role's opening one is asked for by number 0, which repeats it.
        expected = events[index + 1 :] if not id_.endswith(":0") else events
        assert events_of(rest.body) == expected


async def test_after_says_the_same_as_the_header_and_the_header_goes_first(
    api: AsgiClient, hand: Hand
) -> None:
    original = await streamed(api, hand)
    events = events_of(original.body)
    after_one = await api.get(url(original) + "?after=1")
    assert events_of(after_one.body) == events[2:]
    both = await api.get(url(original) + "?after=1", headers={"Last-Event-ID": str(events[2][0])})
    assert events_of(both.body) == events[3:]


async def test_a_running_stream_is_taken_up_where_it_was_left(api: AsgiClient, hand: Hand) -> None:
    body = chat(stream=True, stream_options=RESUMABLE)
    async with api.open("POST", CHAT, body) as first:
        run = await hand.take()
        await run.say("one ", "two ")
        await first.until(b"two ")
        first.hang_up()
        await first.end()
    seen = events_of(first.sent)
    async with api.open(
        "GET", f"/v1/generations/gen_{run.generation}/events", headers={"Last-Event-ID": str(seen[-1][0])}
    ) as second:
        await run.say("three ", "four")
        await run.finish()
        answer = await second.end()
    chunks = [json.loads(data) for _, data in [*seen, *events_of(answer.body)[:-1]]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "one two three four"
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_usage_comes_when_asked_also_to_who_has_read_everything_else(
    api: AsgiClient, hand: Hand
) -> None:
    original = await streamed(api, hand, include_usage=True)
    events = events_of(original.body)
    replayed = await api.get(url(original) + "?include_usage=true")
    assert events_of(replayed.body) == events
    last_id = events[-2][0]
    rest = await api.get(url(original) + "?include_usage=true", headers={"Last-Event-ID": str(last_id)})
    assert events_of(rest.body) == events[-2:]


async def test_a_stream_that_ended_badly_ends_so_again(api: AsgiClient, hand: Hand) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        run = await hand.take()
        await run.say("Hel")
        await exchange.until(b"Hel")
        await run.fail("worker_failed", "It failed.")
        original = await exchange.end()
    replayed = await api.get(url(original))
    assert replayed.status == 200
    assert events_of(replayed.body) == events_of(original.body)
    assert json.loads(events_of(replayed.body)[-1][1])["error"]["code"] == "worker_failed"


async def test_reading_events_ends_no_generation_when_it_stops(api: AsgiClient, hand: Hand) -> None:
    body = chat(stream=True, stream_options=RESUMABLE)
    async with api.open("POST", CHAT, body) as first:
        run = await hand.take()
        async with api.open("GET", f"/v1/generations/gen_{run.generation}/events") as second:
            await run.say("one")
            await second.until(b"one")
            second.hang_up()
            await second.end()
        assert not await run.is_cancelled()
        await run.finish()
        assert (await first.end()).body.endswith(b"data: [DONE]\n\n")


async def test_when_the_log_has_expired_the_kept_output_is_read(
    api: AsgiClient, hand: Hand, valkey: redis.Redis
) -> None:
    original = await streamed(api, hand)
    valkey.flushall()
    replayed = await api.get(url(original))
    assert events_of(replayed.body) == events_of(original.body)


async def test_when_the_log_has_expired_and_nothing_was_kept_the_events_are_gone(
    api: AsgiClient, hand: Hand, valkey: redis.Redis
) -> None:
    async with api.open("POST", CHAT, chat(stream=True)) as exchange:
        await hand.answer(TEXTS)
        original = await exchange.end()
    valkey.flushall()
    answer = await api.get(url(original))
    assert (answer.status, answer.error["code"]) == (410, "events_expired")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("last_event", ["{generation}:99.1", "{generation}:2.7"])
async def test_a_client_ahead_of_the_log_is_told_so_and_never_given_mixed_text(
    api: AsgiClient, hand: Hand, last_event: str
) -> None:
    body = chat(stream=True, stream_options=RESUMABLE)
    async with api.open("POST", CHAT, body) as exchange:
        run = await hand.take()
        await run.say("one", "two", "three")
        generation = f"gen_{run.generation}"
        header = {"Last-Event-ID": last_event.format(generation=generation)}
        running = await api.get(f"/v1/generations/{generation}/events", headers=header)
        await run.finish()
        await exchange.end()
    finished = await api.get(f"/v1/generations/{generation}/events", headers=header)
    for answer in (running, finished):
        assert (answer.status, answer.error["code"]) == (409, "stream_diverged")
        assert generation in answer.error["message"]


async def test_a_client_of_a_running_generation_whose_log_was_lost_is_told_so(
    api: AsgiClient, hand: Hand, valkey: redis.Redis
) -> None:
    body = chat(stream=True, stream_options=RESUMABLE)
    async with api.open("POST", CHAT, body) as exchange:
        run = await hand.take()
        await run.say("one", "two")
        await exchange.until(b"two")
        exchange.hang_up()
        await exchange.end()
    last_id = str(events_of(exchange.sent)[-1][0])
    valkey.flushall()
    answer = await api.get(f"/v1/generations/gen_{run.generation}/events", headers={"Last-Event-ID": last_id})
    assert (answer.status, answer.error["code"]) == (409, "stream_diverged")


@pytest.mark.parametrize(
    ("query", "headers", "param"),
    [
        ("?after=-1", {}, "after"),
        ("?after=one", {}, "after"),
        ("?after=99999999999999999999", {}, "after"),
        ("", {"Last-Event-ID": "7"}, "Last-Event-ID"),
        ("", {"Last-Event-ID": "gen_" + "0" * 32 + ":1"}, "Last-Event-ID"),
        ("?include_usage=maybe", {}, "include_usage"),
    ],
)
async def test_a_wrong_place_to_go_on_from_is_refused_by_name(
    api: AsgiClient, hand: Hand, query: str, headers: dict[str, str], param: str
) -> None:
    original = await streamed(api, hand)
    answer = await api.get(url(original) + query, headers=headers)
    assert (answer.status, answer.error["param"]) == (400, param)
