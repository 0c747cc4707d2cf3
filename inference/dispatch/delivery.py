"""Delivery: from the workers' stream to everyone who follows a generation, in a web process.

One task reads the stream for the whole process and fans it out to a bounded queue per follower. The stream only makes
it quick: each follower's events are those of the token log, which it reads at its start, after a gap, and whenever
it has heard nothing for a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

import msgspec
import redis
import redis.asyncio
import structlog

from inference.dispatch import keys, presence
from inference.dispatch.follower import Follower, LogExpired, RefillReason, StreamDiverged
from inference.messages import tick_entry_decoder
from signalbox import store
from signalbox.configuration import configuration

__all__ = ["Delivery", "Follower", "LogExpired", "RefillReason", "StreamDiverged", "delivery"]

#: How long an answer's end may wait until the generation is settled. A busy worker settles within tenths of a second;
#: where the database is away, the answer is there all the same.
SETTLED_WITHIN_S: Final = 2.0
#: Stream entries that are read at once at most.
_ENTRIES_PER_READ: Final = 256
#: Pause before Valkey is asked again after an error, in seconds.
_RECONNECT_S: Final = 0.25
#: Pause before a task that was cancelled, and still runs, is cancelled again, in seconds.
_CANCEL_AGAIN_S: Final = 0.2

#: An entry's id and fields.
_Entry = tuple[bytes, dict[bytes, bytes]]

_log = structlog.get_logger(__name__)


class Delivery:
    """The followers of one event loop, and the tasks that serve them (started by the first ``follow``).

    ``connect`` makes a client of the Valkey that holds the queue. ``settled_within_s``: how many seconds the end of an
    answer waits at most until it is settled.
    """

    def __init__(
        self,
        connect: Callable[[], redis.asyncio.Redis] = store.async_client,
        settled_within_s: float = SETTLED_WITHIN_S,
    ) -> None:
        self.settled_within_s = settled_within_s
        #: How often followers went to the token log, by reason.
        self.refills: Counter[RefillReason] = Counter()
        self._client = connect()
        # The client of `connect` repeats nothing by itself: a lost connection is noticed here, because what
        # was written meanwhile, or lost by the server, is only found by reading the logs again.
        self._stream_client = connect()
        self._followers: dict[str, set[Follower]] = {}
        self._arrival = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def following(self) -> int:
        """How many followers there are."""
        return sum(len(followers) for followers in self._followers.values())

    @asynccontextmanager
    async def follow(
        self, generation: str, after: int = 0, epoch: int | None = None
    ) -> AsyncIterator[Follower]:
        """Follow a generation that lives, or ended lately, from the event after ``seq`` ``after``.

        ``epoch``: that of the event ``after``, if the reader knows it; it proves that the log still holds that event.
        The follower yields ``Delta`` and ``End`` in the order of their ``seq``, without gaps or repeats, and
        ``PrefillProgress`` as it comes; it ends after ``End``, which waits ``settled_within_s`` at most until the
        generation is settled. It survives restarts of Valkey, workers and reader. While it is followed the generation
        counts as attached.

        The follower raises ``LogExpired`` (at once if ``after`` is not 0, else after two sweeps without a trace) and
        ``StreamDiverged``.
        """
        follower = Follower(self._client, generation, after, epoch, self.refills, self.settled_within_s)
        self._followers.setdefault(generation, set()).add(follower)
        self._start_tasks()
        self._arrival.set()
        try:
            yield follower
        finally:
            follower.close()
            followers = self._followers[generation]
            followers.remove(follower)
            if not followers:
                del self._followers[generation]

    async def aclose(self) -> None:
        """Stop the tasks and close the connections."""
        # More than once: a connection to Valkey that is just being made can swallow a cancellation.
        while running := [task for task in self._tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)

    def _start_tasks(self) -> None:
        """Start what is not running: at first, and again should a fault have ended it."""
        if self._tasks and not any(task.done() for task in self._tasks):
            return
        for task in self._tasks:
            task.cancel()
        self._tasks = [
            asyncio.create_task(self._read_stream(), name="dispatch delivery: stream"),
            asyncio.create_task(self._keep_present(), name="dispatch delivery: presence"),
        ]
        for task in self._tasks:
            task.add_done_callback(_report_fault)

    async def _read_stream(self) -> None:
        try:
            while True:
                try:
                    await self._fan_out()
                except redis.RedisError as error:
                    _log.warning("stream_unreachable", error=str(error), followers=self.following)
                    await asyncio.sleep(_RECONNECT_S)
        finally:
            await self._stream_client.aclose()

    async def _fan_out(self) -> None:
        """Hand out what comes from now on; what came before is in the logs."""
        newest = cast(list[_Entry], await self._stream_client.xrevrange(keys.STREAM, count=1))
        position = newest[0][0] if newest else b"0-0"
        self._refill_all(RefillReason.RECONNECTED)
        while True:
            answer = await self._stream_client.xread(
                {keys.STREAM: position}, count=_ENTRIES_PER_READ, block=store.BLOCK_MS
            )
            for _, entries in cast(list[tuple[bytes, list[_Entry]]], answer):
                position = entries[-1][0]
                for _, fields in entries:
                    if self._followers:
                        self._offer(fields[b"tick"])

    def _offer(self, entry: bytes) -> None:
        try:
            tick = tick_entry_decoder.decode(entry)
        except msgspec.DecodeError:
            # A worker of another version: its logs may be readable all the same.
            _log.exception("stream_entry_unreadable")
            self._refill_all(RefillReason.GAP)
            return
        for generation, publication in tick.publications:
            for follower in self._followers.get(generation, ()):
                follower.offer(publication)

    def _refill_all(self, reason: RefillReason) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.refill(reason)

    async def _keep_present(self) -> None:
        """Refresh the presence of all that is followed; of newcomers at once."""
        grace_s = configuration().detach_grace_seconds
        try:
            while True:
                self._arrival.clear()
                try:
                    if self._followers:
                        await presence.arefresh(self._client, list(self._followers), grace_s)
                except redis.RedisError as error:
                    _log.warning("presence_not_refreshed", error=str(error), followers=self.following)
                    await asyncio.sleep(_RECONNECT_S)
                    continue
                try:
                    async with asyncio.timeout(presence.ttl_s(grace_s) / 3):
                        await self._arrival.wait()
                except TimeoutError:
                    continue
        finally:
            await self._client.aclose()


def _report_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        _log.error("delivery_task_failed", task=task.get_name(), exc_info=fault)


_instances: dict[asyncio.AbstractEventLoop, Delivery] = {}
_instances_lock = threading.Lock()


def delivery() -> Delivery:
    """The running event loop's delivery: one in a web process."""
    loop = asyncio.get_running_loop()
    with _instances_lock:
        for closed in [other for other in _instances if other.is_closed()]:
            del _instances[closed]
        if loop not in _instances:
            _instances[loop] = Delivery()
        return _instances[loop]
