"""What the tests of clients that leave or cancel share: a stack that schedules as they want, clients that read so far
and no further, and what is to be seen when nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.fixtures.event_stream import chat_stream
from tests.fixtures.live_stack import ANSWER_S, LONG_CONTEXT, LiveStack
from tests.inference.admission.stack_books import SLACK_S, books, wait_until_nothing_is_live

#: How often a client comes that is told to come again.
_MOST_RETURNS = 10
#: Long enough that no generation ends before its client leaves, and room for the prompt besides.
MAX_TOKENS = 12_000
SHORT = "Who was given priority, when, and why?"
LONG = "Who was given priority, when, and why? " * 60
#: Everybody speculates, in short turns, so that the slot is contended all the time.
_CONTENDED = {
    "slots": 8,
    "prefill_chunk_tokens": 256,
    "prefill_interval": 4,
    "speculation": "on",
    "grant_rounds": 2,
    "kv_budget_mib": None,
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

PREFILL = re.compile(rb': prefill \{"done": (\d+), "total": (\d+)\}')
TEXT = re.compile(rb'"text": ?"[^"]')
QUEUED = re.compile(rb": queued ")


def schedule(stack: LiveStack, **changes: object) -> None:
    """Have the worker go by these settings, and by ``_CONTENDED`` for the rest."""
    settings = {**_CONTENDED, **changes}
    stack.python(_SCHEDULE.format(settings=settings))
    wanted = {series: of(settings[name]) for name, (series, of) in _TOLD.items()}  # type: ignore[no-untyped-call]
    wait_for(stack, lambda: {series: told(stack, series) for series in wanted} == wanted)


def told(stack: LiveStack, series: str) -> float:
    """What the worker tells of itself."""
    return sum(sample.value for sample in _metrics(stack) if sample.name == f"signalbox_worker_{series}")


def wait_for(stack: LiveStack, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SLACK_S
    while not until():
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.1)


def _metrics(stack: LiveStack) -> list[Sample]:
    token = (stack.state_dir / "secrets" / "metrics_token").read_text().strip()
    request = urllib.request.Request(
        stack.base_url + "/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
        text = response.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def cancelled_at(stack: LiveStack, reason: str = "client_disconnected") -> Counter[str]:
    """How many generations were ended at which stage for this reason, by the metrics."""
    stages: Counter[str] = Counter()
    for sample in _metrics(stack):
        if sample.labels.get("reason") != reason:
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


def left_in_dispatch(stack: LiveStack) -> list[bytes]:
    """What the queue still has of anybody."""
    with redis.Redis(unix_socket_path=str(stack.configuration.valkey_socket)) as client:
        kinds = ("places", "queue", "fifo", "leases", "cancels")
        return [key for kind in kinds for key in client.keys(f"dispatch:{kind}:*")]


def wait_until_nothing_is_left(stack: LiveStack) -> None:
    """In the queue, in the web's connections, in the worker's rows, caches and slot."""
    wait_for(stack, lambda: not left_in_dispatch(stack) and not _connections(stack))
    wait_for(stack, lambda: not any(told(stack, series) for series in _HELD))


@contextmanager
def leaving_nothing(
    stack: LiveStack,
    left: list[str],
    stages: Counter[str] | None = None,
    reason: str = "client_disconnected",
) -> Iterator[None]:
    """When all in ``left`` were ended for this reason, each has cost exactly what was run of it, and nothing is left.

    ``stages``: to be filled with how many were ended at which, when that is known of all.
    """
    before, earlier = books(stack), cancelled_at(stack, reason)
    yield
    after = wait_until_nothing_is_live(stack, 2 * SLACK_S)
    states = [stack.generation(generation) for generation in left]
    assert {(state["state"], state["cancel_reason"]) for state in states} == {("cancelled", reason)}
    assert after.used - before.used == sum(state["usage"]["total_tokens"] for state in states)
    wait_until_nothing_is_left(stack)
    if stages is not None:
        wait_for(stack, lambda: (cancelled_at(stack, reason) - earlier).total() == len(left))
        stages.update(cancelled_at(stack, reason) - earlier)


class Client:
    """One that asks for a long answer, reads line by line, and hangs up. ``generation``: which it was."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: str) -> None:
        self._reader = reader
        self._writer = writer
        self.generation = generation

    @classmethod
    async def come(
        cls, stack: LiveStack, prompt: str, max_tokens: int = MAX_TOKENS, lane: str | None = None
    ) -> Client:
        return cls(*await asked(stack, prompt, max_tokens, progress=True, lane=lane))

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
            done, total = map(int, (await self.read(PREFILL)).groups())
            if total - done <= chunk:
                return

    def leave(self) -> None:
        self._writer.transport.abort()


@contextmanager
def occupied(stack: LiveStack, left: list[str]) -> Iterator[None]:
    """Somebody streams all the time, and leaves at last."""
    stream = chat_stream(stack, SHORT, max_tokens=LONG_CONTEXT - 200).read(1)
    left.append(stream.generation)
    yield
    assert stack.generation(stream.generation)["state"] == "running", "it was too short for this machine"
    stream.close()


async def asked(
    stack: LiveStack, prompt: str, max_tokens: int, *, progress: bool, lane: str | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """The connection of a client that has read its answer's head to the last byte, and which generation it is."""
    body = json.dumps(
        {
            "model": stack.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            **({"lane": lane} if lane else {}),
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
