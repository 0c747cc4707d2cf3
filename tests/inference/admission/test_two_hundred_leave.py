"""F16 and S13 over HTTP: crowds of clients hang up, in each stage by itself (queued, in prefill, decoding, waiting for
the speculative slot, parked), in all of them at once, and between their answer's head and its first byte; nothing
stays behind."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import Installation, LiveStack, running_stack
from tests.inference.admission.stack_books import books
from tests.inference.admission.stack_clients import (
    LONG,
    MAX_TOKENS,
    PREFILL,
    QUEUED,
    SHORT,
    TEXT,
    Client,
    asked,
    cancelled_at,
    leaving_nothing,
    left_in_dispatch,
    occupied,
    schedule,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_CLIENTS, _AT_ONCE = 200, 40


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    with running_stack(long_installation, {"SIGNALBOX_DRAIN_SECONDS": "0"}) as stack:
        yield stack


def _come_and_go(stack: LiveStack, number: int) -> EventStream:
    """One client: a long prompt or a short one, and it reads from nothing to some ten pieces of the answer."""
    prompt = LONG if number % 4 == 0 else SHORT
    told = {"include_progress": True}
    stream = chat_stream(stack, prompt, max_tokens=MAX_TOKENS, stream_options=told)
    stream.read((number // 4) % 12)
    stream.close()
    return stream


# F16


#: Clients that leave in one stage: five stages make two hundred.
_CROWD = 40


async def _crowd(stack: LiveStack, prompt: str, what: re.Pattern[bytes], times: int = 1) -> list[str]:
    """Clients that all come at once, and leave each when it was told this so often."""

    async def come_and_go(number: int) -> str:
        client = await Client.come(stack, f"Client {number}. {prompt}")
        await client.read(what, times)
        client.leave()
        return client.generation

    return await asyncio.gather(*(come_and_go(number) for number in range(_CROWD)))


def test_f16_clients_that_leave_while_queued_leave_nothing_behind(stack: LiveStack) -> None:
    schedule(stack, slots=1, speculation="off")
    left, stages = list[str](), Counter[str]()
    with leaving_nothing(stack, left, stages), occupied(stack, left):
        crowd = asyncio.run(_crowd(stack, SHORT, QUEUED))
        wait_for(stack, lambda: not _left_waiting(stack))
        left += crowd
    assert stages == {"queued": _CROWD, "decoding": 1}
    assert {stack.generation(one)["usage"]["total_tokens"] for one in crowd} == {0}


def _left_waiting(stack: LiveStack) -> list[bytes]:
    return [key for key in left_in_dispatch(stack) if key.startswith(b"dispatch:queue:")]


def test_f16_clients_that_leave_in_prefill_leave_nothing_behind(stack: LiveStack) -> None:
    """The prompts are run beside a stream, in small chunks far apart: nobody's is done when its client leaves."""
    schedule(stack, prefill_chunk_tokens=16, prefill_interval=128, speculation="off")
    left, stages = list[str](), Counter[str]()
    with leaving_nothing(stack, left, stages), occupied(stack, left):
        crowd = asyncio.run(_crowd(stack, LONG, PREFILL))
        wait_for(stack, lambda: books(stack).live == 1)
        left += crowd
    assert stages == {"prefilling": _CROWD, "decoding": 1}
    for one in crowd:
        usage = stack.generation(one)["usage"]
        assert usage["prompt_tokens"] >= 16
        assert usage["completion_tokens"] == 0


def test_f16_clients_that_leave_while_they_are_answered_leave_nothing_behind(stack: LiveStack) -> None:
    schedule(stack, speculation="off")
    left, stages = list[str](), Counter[str]()
    with leaving_nothing(stack, left, stages):
        left += asyncio.run(_crowd(stack, SHORT, TEXT, times=2))
    assert stages == {"decoding": _CROWD}
    assert all(stack.generation(one)["usage"]["completion_tokens"] >= 2 for one in left)


def test_f16_clients_that_leave_while_they_wait_for_the_slot_leave_nothing_behind(stack: LiveStack) -> None:
    """Time and again one has the slot for a long turn, two come to wait for it, and these are gone before it leaves."""
    chunk = 16
    schedule(stack, prefill_chunk_tokens=chunk, prefill_interval=2, grant_rounds=256)
    left, stages = list[str](), Counter[str]()

    async def come_and_go() -> None:
        holder = await Client.come(stack, SHORT)
        await holder.read(TEXT)
        waiters = await asyncio.gather(*(Client.come(stack, SHORT * 2) for _ in range(2)))
        await asyncio.gather(*(waiter.read_to_last_chunk(chunk) for waiter in waiters))
        left.extend(client.generation for client in (*waiters, holder))
        for waiter in waiters:
            waiter.leave()
        await asyncio.to_thread(wait_for, stack, lambda: books(stack).live == 1)
        holder.leave()

    with leaving_nothing(stack, left, stages):
        for _ in range(_CROWD // 2):
            asyncio.run(come_and_go())
            wait_for(stack, lambda: books(stack).live == 0)
    assert stages["waiting"] >= _CROWD / 2, stages


def test_f16_clients_that_leave_while_they_are_parked_leave_nothing_behind(stack: LiveStack) -> None:
    """Time and again three take turns of one round: one has the slot, and two are parked, whenever they leave."""
    schedule(stack, grant_rounds=1)
    left, stages = list[str](), Counter[str]()

    async def come_and_go() -> None:
        clients = await asyncio.gather(*(Client.come(stack, SHORT) for _ in range(3)))
        await asyncio.gather(*(client.read(TEXT, times=3) for client in clients))
        for client in clients:
            client.leave()
            left.append(client.generation)

    with leaving_nothing(stack, left, stages):
        for _ in range(_CROWD // 2):
            asyncio.run(come_and_go())
            wait_for(stack, lambda: books(stack).live == 0)
    assert stages["parked"] >= _CROWD / 4, stages


def test_f16_two_hundred_clients_that_leave_at_any_stage_leave_nothing_behind(stack: LiveStack) -> None:
    schedule(stack)
    left, earlier = list[str](), cancelled_at(stack)
    with leaving_nothing(stack, left), ThreadPoolExecutor(_AT_ONCE) as clients:
        streams = clients.map(lambda number: _come_and_go(stack, number), range(_CLIENTS))
        left += [stream.generation for stream in streams]
    wait_for(stack, lambda: {"decoding", "parked"} <= (cancelled_at(stack) - earlier).keys())
    stream = chat_stream(stack, SHORT, max_tokens=8).read_to_end()
    assert stream.usage is not None
    assert stream.usage["completion_tokens"] == 8, "and the next one is served as ever"


# S13


async def _leave_at_the_head(stack: LiveStack, number: int) -> str:
    """Ask, read the answer's head to its last byte and no further, and hang up; which generation it was.

    Every other client's answer begins at once, with its place in the queue, and the others' with the first text.
    """
    _, writer, generation = await asked(stack, f"Client {number}", MAX_TOKENS, progress=number % 2 == 0)
    writer.transport.abort()
    return generation


def test_s13_a_hundred_clients_that_leave_between_the_head_and_the_first_byte_leave_nothing_behind(
    stack: LiveStack,
) -> None:
    schedule(stack)
    left = list[str]()

    async def come_and_go() -> list[str]:
        return await asyncio.gather(*(_leave_at_the_head(stack, number) for number in range(100)))

    with leaving_nothing(stack, left):
        left += asyncio.run(come_and_go())
    assert len(set(left)) == 100
