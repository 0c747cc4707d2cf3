"""``POST /v1/generations/{id}/cancel`` in each stage that a generation can be in, over HTTP, while its client reads: it
ends, has cost exactly what was run of it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from inference.dispatch import token_log
from inference.messages import End
from tests.fixtures.live_stack import LONG_CONTEXT, Installation, LiveStack, running_stack
from tests.inference.admission.stack_books import SLACK_S, books, wait_until_nothing_is_live
from tests.inference.admission.stack_clients import (
    LONG,
    MAX_TOKENS,
    PREFILL,
    QUEUED,
    SHORT,
    TEXT,
    Client,
    leaving_nothing,
    schedule,
    told,
    wait_for,
    wait_until_nothing_is_left,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_REASON = "client_requested"
_CANCELLED = re.compile(rb'"code": ?"generation_cancelled"')
_DONE = re.compile(rb"data: \[DONE\]")
#: As long as the model's context lets an answer be: it does not end by itself.
_ENDLESS = LONG_CONTEXT - 200
_CHUNK = 16
#: How often a stage is tried for that is over so soon that a cancel may come too late for it.
_ATTEMPTS = 10

Scene = Callable[["Stage"], Coroutine[Any, Any, str]]


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    with running_stack(long_installation, {"SIGNALBOX_DRAIN_SECONDS": "0"}) as stack:
        yield stack


def _cancel(stack: LiveStack, generation: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{stack.base_url}/v1/generations/{generation}/cancel",
        method="POST",
        headers={"Authorization": f"Bearer {stack.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=SLACK_S) as response:
        answer: dict[str, Any] = json.load(response)
    assert answer["id"] == generation
    return answer


class Stage:
    """Clients of one scene, each of which reads until its generation was cancelled."""

    def __init__(self, stack: LiveStack) -> None:
        self.stack = stack
        self.clients: list[Client] = []

    async def come(self, prompt: str, max_tokens: int = MAX_TOKENS, lane: str | None = None) -> Client:
        client = await Client.come(self.stack, prompt, max_tokens, lane)
        self.clients.append(client)
        return client

    async def cancel(self, client: Client) -> None:
        """Over HTTP; its own stream says so, and the answer is its record."""
        answer = await asyncio.to_thread(_cancel, self.stack, client.generation)
        assert answer["cancel_reason"] == _REASON
        await client.read(_CANCELLED)
        client.leave()
        self.clients.remove(client)

    async def state_of(self, client: Client) -> dict[str, Any]:
        return await asyncio.to_thread(self.stack.generation, client.generation)

    async def until(self, condition: Callable[[], bool]) -> None:
        await asyncio.to_thread(wait_for, self.stack, condition)


@asynccontextmanager
async def _staged(stack: LiveStack, left: list[str]) -> AsyncIterator[Stage]:
    """A scene, at whose end everybody who is still there is cancelled too.

    The last to come is the first to go: a prompt waits behind the stream that was there before it, and would be through
    as soon as that had left.
    """
    stage = Stage(stack)
    yield stage
    for client in reversed(stage.clients):
        left.append(client.generation)
        await stage.cancel(client)


def _played(stack: LiveStack, scene: Scene) -> tuple[Counter[str], dict[str, Any]]:
    """At which stages the scene's generations were cancelled, and what became of the one that it is about."""
    left, stages = list[str](), Counter[str]()

    async def play() -> str:
        async with _staged(stack, left) as stage:
            generation = await scene(stage)
            left.append(generation)
        return generation

    with leaving_nothing(stack, left, stages, _REASON):
        generation = asyncio.run(play())
    return stages, stack.generation(generation)


def test_queued(stack: LiveStack) -> None:
    schedule(stack, slots=1, speculation="off")

    async def scene(stage: Stage) -> str:
        await (await stage.come(SHORT, _ENDLESS)).read(TEXT)
        waiting = await stage.come(SHORT)
        await waiting.read(QUEUED)
        await stage.cancel(waiting)
        return waiting.generation

    stages, record = _played(stack, scene)
    assert stages == {"queued": 1, "decoding": 1}
    assert record["usage"]["total_tokens"] == 0


def test_deferred_for_want_of_memory(stack: LiveStack) -> None:
    """A MiB is memory for 2,048 tokens of this model: the stream takes almost all that there is."""
    budget_mib = LONG_CONTEXT // 2048
    schedule(stack, kv_budget_mib=budget_mib, speculation="off")
    wait_for(stack, lambda: 0 < told(stack, "kv_budget_bytes") <= budget_mib << 20)

    async def scene(stage: Stage) -> str:
        await (await stage.come(SHORT, _ENDLESS)).read(TEXT)
        before = told(stack, "deferrals_total")
        large = await stage.come(SHORT, max_tokens=1000)
        await stage.until(lambda: told(stack, "deferrals_total") == before + 1)
        await stage.cancel(large)
        return large.generation

    stages, record = _played(stack, scene)
    assert stages == {"queued": 1, "decoding": 1}
    assert record["usage"]["total_tokens"] == 0


def test_parked_with_nothing_of_its_prompt_run(stack: LiveStack) -> None:
    """One chunk of another prompt owes the stream so many ticks that the next chunk is far off."""
    schedule(stack, prefill_chunk_tokens=_CHUNK, prefill_interval=4096, speculation="off")

    async def scene(stage: Stage) -> str:
        await (await stage.come(SHORT, _ENDLESS)).read(TEXT)
        await (await stage.come(LONG)).read(PREFILL)
        parked = await stage.come(LONG)
        await stage.until(lambda: stack.generation(parked.generation)["state"] == "running")
        await stage.cancel(parked)
        return parked.generation

    stages, record = _played(stack, scene)
    assert stages == {"prefilling": 2, "decoding": 1}
    assert record["usage"]["total_tokens"] == 0


def test_in_prefill(stack: LiveStack) -> None:
    """The stream ends before a prompt of so many chunks that far apart is through."""
    schedule(stack, prefill_chunk_tokens=_CHUNK, prefill_interval=512, speculation="off")

    async def scene(stage: Stage) -> str:
        await (await stage.come(SHORT, _ENDLESS)).read(TEXT)
        prompt = await stage.come(LONG)
        await prompt.read(PREFILL)
        await stage.cancel(prompt)
        return prompt.generation

    stages, record = _played(stack, scene)
    assert stages == {"prefilling": 1, "decoding": 1}
    usage = record["usage"]
    assert usage["prompt_tokens"] >= _CHUNK
    assert usage["completion_tokens"] == 0


def test_decoding(stack: LiveStack) -> None:
    schedule(stack, speculation="off")

    async def scene(stage: Stage) -> str:
        stream = await stage.come(SHORT)
        await stream.read(TEXT, times=2)
        await stage.cancel(stream)
        return stream.generation

    stages, record = _played(stack, scene)
    assert stages == {"decoding": 1}
    assert record["usage"]["completion_tokens"] >= 2


def test_speculating(stack: LiveStack) -> None:
    schedule(stack)

    async def scene(stage: Stage) -> str:
        holder = await stage.come(SHORT)
        await holder.read(TEXT, times=2)
        await stage.cancel(holder)
        return holder.generation

    stages, record = _played(stack, scene)
    assert stages == {"speculating": 1}
    assert record["usage"]["completion_tokens"] >= 2


def _tried(stack: LiveStack, scene: Scene, stage: str) -> dict[str, Any]:
    """What became of the one that the scene is about, once its cancel has come in time for the stage."""
    for _ in range(_ATTEMPTS):
        stages, record = _played(stack, scene)
        if stages[stage]:
            return record
    raise AssertionError(f"{_ATTEMPTS} cancels came too late for a generation that is {stage}")


def test_waiting_for_the_slot(stack: LiveStack) -> None:
    schedule(stack, prefill_chunk_tokens=_CHUNK, prefill_interval=2, grant_rounds=256)

    async def scene(stage: Stage) -> str:
        await (await stage.come(SHORT, _ENDLESS)).read(TEXT)
        waiting = await stage.come(SHORT * 2)
        await waiting.read_to_last_chunk(_CHUNK)
        await stage.cancel(waiting)
        return waiting.generation

    usage = _tried(stack, scene, "waiting")["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] == 0


def test_parked_at_the_slot(stack: LiveStack) -> None:
    schedule(stack, grant_rounds=256)

    async def scene(stage: Stage) -> str:
        parked = await stage.come(SHORT)
        await parked.read(TEXT)
        await (await stage.come(SHORT)).read(TEXT)  # whose grant begins where the first one's has expired
        await stage.cancel(parked)
        return parked.generation

    assert _tried(stack, scene, "parked")["usage"]["completion_tokens"] > 0


def test_preempted(stack: LiveStack) -> None:
    """It waits again, with what it has said: that is what it costs."""
    schedule(stack, slots=1, speculation="off")

    async def scene(stage: Stage) -> str:
        low = await stage.come(SHORT, lane="low")
        await low.read(TEXT, times=2)
        await (await stage.come(SHORT, lane="high")).read(TEXT)
        assert (await stage.state_of(low))["state"] == "running", "of the database it is its last worker's"
        await stage.cancel(low)
        return low.generation

    stages, record = _played(stack, scene)
    assert stages == {"queued": 1, "decoding": 1}
    usage = record["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] >= 2


def test_settling(stack: LiveStack) -> None:
    """Its end is in the log, and its worker is about to tell the database: it has ended, and stays as it is."""
    schedule(stack, speculation="off")
    before = books(stack)
    length = 1000  # the database is held before they are all there
    with redis.Redis(unix_socket_path=str(stack.configuration.valkey_socket)) as client:

        def has_its_end(generation: str) -> bool:
            log = token_log.read(client, generation.removeprefix("gen_"))
            return bool(log) and isinstance(log[-1], End)

        async def scene() -> str:
            reader = await Client.come(stack, SHORT, length)
            await reader.read(TEXT)
            with stack.holding_the_database():  # nobody settles anything
                await asyncio.to_thread(wait_for, stack, lambda: has_its_end(reader.generation))
                stack.worker.stop()
            try:
                assert (await asyncio.to_thread(_cancel, stack, reader.generation))["state"] in (
                    "running",
                    "completed",  # where the lease has lapsed meanwhile, whoever cancels it settles it
                )
            finally:
                stack.worker.resume()
            await reader.read(_DONE)
            reader.leave()
            return reader.generation

        generation = asyncio.run(scene())
    after = wait_until_nothing_is_live(stack, 2 * SLACK_S)
    record = stack.generation(generation)
    assert (record["state"], record["finish_reason"], record["cancel_reason"]) == (
        "completed",
        "length",
        None,
    )
    assert record["usage"]["completion_tokens"] == length
    assert after.used - before.used == record["usage"]["total_tokens"]
    wait_until_nothing_is_left(stack)
