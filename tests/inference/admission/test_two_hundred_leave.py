"""F16 and S13 over HTTP: crowds of clients hang up, while queued, in prefill, decoding, at the speculative slot, and
between their answer's head and its first byte; nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import Installation, LiveStack, running_stack
from tests.inference.admission.stack_books import SLACK_S, books, wait_until_nothing_is_live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_CLIENTS, _AT_ONCE = 200, 40
#: How often a client comes that is told to come again.
_MOST_RETURNS = 10
#: Long enough that no generation ends before its client leaves.
_MAX_TOKENS = 1500
_SHORT = "Who was given priority, when, and why?"
_LONG = "Who was given priority, when, and why? " * 60
#: Everybody speculates, in short turns, so that the slot is contended all the time.
_CONTENDED = """
from inference.models import LanguageModel
LanguageModel.objects.update(speculation="on", grant_rounds=2)
"""


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    with running_stack(long_installation, {"SIGNALBOX_DRAIN_SECONDS": "0"}) as stack:
        stack.python(_CONTENDED)
        yield stack


def _come_and_go(stack: LiveStack, number: int) -> EventStream:
    """One client: a long prompt or a short one, and it reads from nothing to some ten pieces of the answer."""
    prompt = _LONG if number % 4 == 0 else _SHORT
    told = {"include_progress": True}
    stream = chat_stream(stack, prompt, max_tokens=_MAX_TOKENS, stream_options=told)
    stream.read((number // 4) % 12)
    stream.close()
    return stream


def _metrics(stack: LiveStack) -> list[Sample]:
    token = (stack.state_dir / "secrets" / "metrics_token").read_text().strip()
    request = urllib.request.Request(
        stack.base_url + "/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        text = response.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def _cancelled_at(stack: LiveStack) -> dict[str, int]:
    """How many generations were cancelled at which stage because their client had left, by the worker's metrics."""
    return {
        sample.labels["stage"]: int(sample.value)
        for sample in _metrics(stack)
        if sample.name == "signalbox_worker_cancellations_total"
        and sample.labels["reason"] == "client_disconnected"
    }


def _connections(stack: LiveStack) -> int:
    """Requests that are being served, without the one that asks."""
    return (
        sum(int(sample.value) for sample in _metrics(stack) if sample.name == "signalbox_connections_open")
        - 1
    )


def _left_in_dispatch(stack: LiveStack) -> list[bytes]:
    """What the queue still has of anybody."""
    with redis.Redis(unix_socket_path=str(stack.configuration.valkey_socket)) as client:
        kinds = ("places", "queue", "fifo", "leases", "cancels")
        return [key for kind in kinds for key in client.keys(f"dispatch:{kind}:*")]


def _wait_until_nothing_is_left(stack: LiveStack) -> None:
    deadline = time.monotonic() + SLACK_S
    while _left_in_dispatch(stack) or _connections(stack):
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.1)


def test_f16_two_hundred_clients_that_leave_at_any_stage_leave_nothing_behind(stack: LiveStack) -> None:
    before = books(stack)
    with ThreadPoolExecutor(_AT_ONCE) as clients:
        streams = list(clients.map(lambda number: _come_and_go(stack, number), range(_CLIENTS)))
    after = wait_until_nothing_is_live(stack, 2 * SLACK_S)
    states = [stack.generation(stream.generation) for stream in streams]
    assert {state["state"] for state in states} == {"cancelled"}
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)
    _wait_until_nothing_is_left(stack)
    stages = _cancelled_at(stack)
    assert {"decoding", "parked"} <= stages.keys(), json.dumps(stages)
    stream = chat_stream(stack, _SHORT, max_tokens=8).read_to_end()
    assert stream.usage is not None
    assert stream.usage["completion_tokens"] == 8, "and the next one is served as ever"


async def _leave_at_the_head(stack: LiveStack, number: int) -> str:
    """Ask, read the answer's head to its last byte and no further, and hang up; which generation it was.

    Every other client's answer begins at once, with its place in the queue, and the others' with the first text.
    """
    body = json.dumps(
        {
            "model": stack.model,
            "prompt": f"Client {number}",
            "max_tokens": _MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_progress": number % 2 == 0},
        }
    ).encode()
    request = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {stack.api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(_MOST_RETURNS):
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        try:
            writer.write(request.encode() + body)
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        finally:
            writer.transport.abort()
        if " 503 " not in status:  # a busy machine's SQLite has not room for so many writers
            break
    assert " 200 " in status, status
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    return headers["x-signalbox-generation"]


def test_s13_a_hundred_clients_that_leave_between_the_head_and_the_first_byte_leave_nothing_behind(
    stack: LiveStack,
) -> None:
    before = wait_until_nothing_is_live(stack, SLACK_S)

    async def come_and_go() -> list[str]:
        return await asyncio.gather(*(_leave_at_the_head(stack, number) for number in range(100)))

    generations = asyncio.run(come_and_go())
    assert len(set(generations)) == 100
    after = wait_until_nothing_is_live(stack, 2 * SLACK_S)
    states = [stack.generation(generation) for generation in generations]
    assert {(state["state"], state["cancel_reason"]) for state in states} == {
        ("cancelled", "client_disconnected")
    }
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)
    _wait_until_nothing_is_left(stack)
