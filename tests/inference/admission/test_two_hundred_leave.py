"""F16 and S13 over HTTP: crowds of clients hang up, in each stage by itself (queued, in prefill, decoding, waiting for
the speculative slot, parked), in all of them at once, and between their answer's head and its first byte; nothing
stays behind."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.fixtures.event_stream import EventStream, chat_stream
from tests.fixtures.live_stack import LONG_CONTEXT, Installation, LiveStack, running_stack
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
_CONTENDED = {
    "slots": 8,
    "prefill_chunk_tokens": 256,
    "prefill_interval": 4,
    "speculation": "on",
    "grant_rounds": 2,
}
#: What the worker tells of each setting.
_TOLD = {
    "slots": ("slots", float),
    "prefill_chunk_tokens": ("prefill_chunk_limit_tokens", float),
    "prefill_interval": ("prefill_interval_ticks", float),
    "speculation": ("speculation_on", lambda mode: float(mode == "on")),
    "grant_rounds": ("slot_grant_rounds", float),
}
_SCHEDULE = """
from inference.models import LanguageModel
LanguageModel.objects.update(prefix_cache_mib=0, **{settings!r})
"""
#: What a worker tells of what it runs.
_HELD = ("decoding", "prefilling", "slot_waiting", "kv_reserved_bytes")


@pytest.fixture(scope="module")
def stack(long_installation: Installation) -> Iterator[LiveStack]:
    with running_stack(long_installation, {"SIGNALBOX_DRAIN_SECONDS": "0"}) as stack:
        yield stack


def _schedule(stack: LiveStack, **changes: object) -> None:
    """Have the worker go by these settings, and by ``_CONTENDED`` for the rest."""
    settings = {**_CONTENDED, **changes}
    stack.python(_SCHEDULE.format(settings=settings))
    wanted = {series: of(settings[name]) for name, (series, of) in _TOLD.items()}  # type: ignore[no-untyped-call]
    _wait(stack, lambda: {series: _told(stack, series) for series in wanted} == wanted)


def _told(stack: LiveStack, series: str) -> float:
    """What the worker tells of itself."""
    return sum(sample.value for sample in _metrics(stack) if sample.name == f"signalbox_worker_{series}")


def _wait(stack: LiveStack, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SLACK_S
    while not until():
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.1)


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


def _cancelled_at(stack: LiveStack) -> Counter[str]:
    """How many generations were ended at which stage because their client had left, by the metrics."""
    stages: Counter[str] = Counter()
    for sample in _metrics(stack):
        if sample.labels.get("reason") != "client_disconnected":
            continue
        if sample.name == "signalbox_worker_cancellations_total":
            stages[sample.labels["stage"]] += int(sample.value)
        elif sample.name == "signalbox_queue_withdrawals_total":
            stages["queued"] += int(sample.value)
    return stages


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
    """In the queue, in the web's connections, in the worker's rows, caches and slot."""
    _wait(stack, lambda: not _left_in_dispatch(stack) and not _connections(stack))
    _wait(stack, lambda: not any(_told(stack, series) for series in _HELD))


@contextmanager
def _leaving_nothing(stack: LiveStack, left: list[str], stages: Counter[str] | None = None) -> Iterator[None]:
    """When all in ``left`` have hung up, each has cost exactly what was run of it, and nothing of them is left.

    ``stages``: to be filled with how many left at which, when that is known of all.
    """
    before, earlier = books(stack), _cancelled_at(stack)
    yield
    after = wait_until_nothing_is_live(stack, 2 * SLACK_S)
    states = [stack.generation(generation) for generation in left]
    assert {(state["state"], state["cancel_reason"]) for state in states} == {
        ("cancelled", "client_disconnected")
    }
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)
    _wait_until_nothing_is_left(stack)
    if stages is not None:
        _wait(stack, lambda: (_cancelled_at(stack) - earlier).total() == len(left))
        stages.update(_cancelled_at(stack) - earlier)


# F16


#: Clients that leave in one stage: five stages make two hundred.
_CROWD = 40
_PREFILL = re.compile(rb': prefill \{"done": (\d+), "total": (\d+)\}')
_TEXT = re.compile(rb'"text": ?"[^"]')
_QUEUED = re.compile(rb": queued ")


class _Client:
    """One that asks for a long answer, reads line by line, and hangs up. ``generation``: which it was."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: str) -> None:
        self._reader = reader
        self._writer = writer
        self.generation = generation

    @classmethod
    async def come(cls, stack: LiveStack, prompt: str, max_tokens: int = _MAX_TOKENS) -> _Client:
        return cls(*await _asked(stack, prompt, max_tokens, progress=True))

    async def read(self, what: re.Pattern[bytes], times: int = 1) -> re.Match[bytes]:
        """Until it was told this so often."""
        while True:
            line = await self._reader.readline()
            assert line, "the stream has ended"
            if found := what.search(line):
                times -= 1
                if not times:
                    return found

    async def read_to_last_chunk(self, chunk: int) -> None:
        while True:
            done, total = map(int, (await self.read(_PREFILL)).groups())
            if total - done <= chunk:
                return

    def leave(self) -> None:
        self._writer.transport.abort()


async def _crowd(stack: LiveStack, prompt: str, what: re.Pattern[bytes], times: int = 1) -> list[str]:
    """Clients that all come at once, and leave each when it was told this so often."""

    async def come_and_go(number: int) -> str:
        client = await _Client.come(stack, f"Client {number}. {prompt}")
        await client.read(what, times)
        client.leave()
        return client.generation

    return await asyncio.gather(*(come_and_go(number) for number in range(_CROWD)))


@contextmanager
def _occupied(stack: LiveStack, left: list[str]) -> Iterator[None]:
    """Somebody streams all the time, and leaves at last."""
    stream = chat_stream(stack, _SHORT, max_tokens=LONG_CONTEXT - 200).read(1)
    left.append(stream.generation)
    yield
    assert stack.generation(stream.generation)["state"] == "running", "it was too short for this machine"
    stream.close()


def test_f16_clients_that_leave_while_queued_leave_nothing_behind(stack: LiveStack) -> None:
    _schedule(stack, slots=1, speculation="off")
    left, stages = list[str](), Counter[str]()
    with _leaving_nothing(stack, left, stages), _occupied(stack, left):
        crowd = asyncio.run(_crowd(stack, _SHORT, _QUEUED))
        _wait(stack, lambda: not _left_waiting(stack))
        left += crowd
    assert stages == {"queued": _CROWD, "decoding": 1}
    assert {stack.generation(one)["usage"]["total_tokens"] for one in crowd} == {0}


def _left_waiting(stack: LiveStack) -> list[bytes]:
    return [key for key in _left_in_dispatch(stack) if key.startswith(b"dispatch:queue:")]


def test_f16_clients_that_leave_in_prefill_leave_nothing_behind(stack: LiveStack) -> None:
    """The prompts are run beside a stream, in small chunks far apart: nobody's is done when its client leaves."""
    _schedule(stack, prefill_chunk_tokens=16, prefill_interval=32, speculation="off")
    left, stages = list[str](), Counter[str]()
    with _leaving_nothing(stack, left, stages), _occupied(stack, left):
        crowd = asyncio.run(_crowd(stack, _LONG, _PREFILL))
        _wait(stack, lambda: books(stack).live == 1)
        left += crowd
    assert stages == {"prefilling": _CROWD, "decoding": 1}
    for one in crowd:
        usage = stack.generation(one)["usage"]
        assert usage["prompt_tokens"] >= 16
        assert usage["completion_tokens"] == 0


def test_f16_clients_that_leave_while_they_are_answered_leave_nothing_behind(stack: LiveStack) -> None:
    _schedule(stack, speculation="off")
    left, stages = list[str](), Counter[str]()
    with _leaving_nothing(stack, left, stages):
        left += asyncio.run(_crowd(stack, _SHORT, _TEXT, times=2))
    assert stages == {"decoding": _CROWD}
    assert all(stack.generation(one)["usage"]["completion_tokens"] >= 2 for one in left)


def test_f16_clients_that_leave_while_they_wait_for_the_slot_leave_nothing_behind(stack: LiveStack) -> None:
    """Time and again one has the slot for a long turn, two come to wait for it, and these are gone before it leaves."""
    chunk = 16
    _schedule(stack, prefill_chunk_tokens=chunk, prefill_interval=2, grant_rounds=256)
    left, stages = list[str](), Counter[str]()

    async def come_and_go() -> None:
        holder = await _Client.come(stack, _SHORT)
        await holder.read(_TEXT)
        waiters = await asyncio.gather(*(_Client.come(stack, _SHORT * 2) for _ in range(2)))
        await asyncio.gather(*(waiter.read_to_last_chunk(chunk) for waiter in waiters))
        left.extend(client.generation for client in (*waiters, holder))
        for waiter in waiters:
            waiter.leave()
        await asyncio.to_thread(_wait, stack, lambda: books(stack).live == 1)
        holder.leave()

    with _leaving_nothing(stack, left, stages):
        for _ in range(_CROWD // 2):
            asyncio.run(come_and_go())
            _wait(stack, lambda: books(stack).live == 0)
    assert stages["waiting"] >= _CROWD / 2, stages


def test_f16_clients_that_leave_while_they_are_parked_leave_nothing_behind(stack: LiveStack) -> None:
    """Time and again three take turns of one round: one has the slot, and two are parked, whenever they leave."""
    _schedule(stack, grant_rounds=1)
    left, stages = list[str](), Counter[str]()

    async def come_and_go() -> None:
        clients = await asyncio.gather(*(_Client.come(stack, _SHORT) for _ in range(3)))
        await asyncio.gather(*(client.read(_TEXT, times=3) for client in clients))
        for client in clients:
            client.leave()
            left.append(client.generation)

    with _leaving_nothing(stack, left, stages):
        for _ in range(_CROWD // 2):
            asyncio.run(come_and_go())
            _wait(stack, lambda: books(stack).live == 0)
    assert stages["parked"] >= _CROWD / 4, stages


def test_f16_two_hundred_clients_that_leave_at_any_stage_leave_nothing_behind(stack: LiveStack) -> None:
    _schedule(stack)
    left, earlier = list[str](), _cancelled_at(stack)
    with _leaving_nothing(stack, left), ThreadPoolExecutor(_AT_ONCE) as clients:
        streams = clients.map(lambda number: _come_and_go(stack, number), range(_CLIENTS))
        left += [stream.generation for stream in streams]
    _wait(stack, lambda: {"decoding", "parked"} <= (_cancelled_at(stack) - earlier).keys())
    stream = chat_stream(stack, _SHORT, max_tokens=8).read_to_end()
    assert stream.usage is not None
    assert stream.usage["completion_tokens"] == 8, "and the next one is served as ever"


# S13


async def _leave_at_the_head(stack: LiveStack, number: int) -> str:
    """Ask, read the answer's head to its last byte and no further, and hang up; which generation it was.

    Every other client's answer begins at once, with its place in the queue, and the others' with the first text.
    """
    _, writer, generation = await _asked(stack, f"Client {number}", _MAX_TOKENS, progress=number % 2 == 0)
    writer.transport.abort()
    return generation


async def _asked(
    stack: LiveStack, prompt: str, max_tokens: int, *, progress: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """The connection of a client that has read its answer's head to the last byte, and which generation it is."""
    body = json.dumps(
        {
            "model": stack.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_progress": progress},
        }
    ).encode()
    request = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {stack.api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(_MOST_RETURNS):
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(request.encode() + body)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        if " 503 " not in status:  # a busy machine's SQLite has not room for so many writers
            break
        writer.transport.abort()
    assert " 200 " in status, status
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    return reader, writer, headers["x-signalbox-generation"]


def test_s13_a_hundred_clients_that_leave_between_the_head_and_the_first_byte_leave_nothing_behind(
    stack: LiveStack,
) -> None:
    _schedule(stack)
    left = list[str]()

    async def come_and_go() -> list[str]:
        return await asyncio.gather(*(_leave_at_the_head(stack, number) for number in range(100)))

    with _leaving_nothing(stack, left):
        left += asyncio.run(come_and_go())
    assert len(set(left)) == 100
