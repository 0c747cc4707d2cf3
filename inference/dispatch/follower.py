"""One reader of one generation: its events in order, without gaps or repeats, whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from enum import StrEnum
from typing import Final, Self

import redis
import redis.asyncio
import structlog

from inference.dispatch import token_log
from inference.dispatch.token_log import LogExcerpt
from inference.messages import Delta, End, LogEntry, PrefillProgress, Publication
from signalbox.configuration import configuration

#: Publications that wait for one reader at most; one that is slower takes them from the token log.
WAITING_LIMIT: Final = 256
#: Log entries that are read at once at most: what a reader costs is bounded by this and the limit above.
EXCERPT_ENTRIES: Final = 512
#: A reader that heard nothing for so long looks at the log, so that nothing depends on the stream.
IDLE_S: Final = 5.0
#: Pause before the log is asked again that could not be read, or of which there is no trace.
RETRY_S: Final = 0.25
#: Pauses between looks whether an ended generation is settled, at first and at most: that takes some hundredths.
_SETTLED_YET_S: Final = (0.005, 0.1)

_log = structlog.get_logger(__name__)


class LogExpired(Exception):
    """The generation's events can no longer be replayed: it ended a while ago (or never was here)."""

    def __init__(self, generation: str) -> None:
        super().__init__(f"the events of generation {generation} have expired")
        self.generation = generation


class StreamDiverged(Exception):
    """The log no longer continues what the reader has seen: Valkey lost its last seconds. What was seen is void."""

    def __init__(self, generation: str, after: int) -> None:
        super().__init__(
            f"the token log of generation {generation} does not continue event {after}: read it anew from its start"
        )
        self.generation = generation
        self.after = after


class RefillReason(StrEnum):
    """Why a reader went to the token log."""

    START = "start"
    GAP = "gap"
    OVERFLOW = "overflow"
    IDLE = "idle"
    RECONNECTED = "reconnected"


class Follower:
    """An asynchronous iterator over a generation's publications; it ends after ``End``.

    ``End`` waits until the generation is settled, ``settled_within_s`` seconds at most: whoever has read it may ask for
    more at once, and finds given back what the generation has not used.

    Made by ``Delivery.follow``. For one task at a time. Waiting for the next publication may be cancelled (by a
    time-out, say) and taken up again; nothing is lost.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        generation: str,
        after: int,
        epoch: int | None,
        refills: Counter[RefillReason],
        settled_within_s: float = 0.0,
    ) -> None:
        self.generation = generation
        #: The last ``seq`` that was handed out, and its epoch (None: not known yet).
        self.seq = after
        self.epoch = epoch
        self._client = client
        self._refills = refills
        self._arrived: deque[Publication] = deque()
        self._replay: deque[LogEntry] = deque()
        self._refill: RefillReason | None = RefillReason.START
        self._reading: asyncio.Task[None] | None = None
        self._settled_within_s = settled_within_s
        self._settling: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._ended = False
        self._was_known = False
        self._unknown_until = time.monotonic() + 2 * configuration().sweep_seconds

    def offer(self, publication: Publication) -> None:
        """Take what the stream brought: bounded, never waits."""
        if len(self._arrived) >= WAITING_LIMIT:
            self._arrived.clear()
            self.refill(RefillReason.OVERFLOW)
        else:
            self._arrived.append(publication)
            self._news.set()

    def refill(self, reason: RefillReason) -> None:
        """Have the log read before anything else is handed out."""
        self._refill = self._refill or reason
        self._news.set()

    def close(self) -> None:
        """Stop what it still does."""
        for task in (self._reading, self._settling):
            if task is not None:
                task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Publication:
        """The next publication. Raises ``LogExpired`` or ``StreamDiverged`` where there can be none."""
        while True:
            if self._replay and self._reading is None:
                if not self._may_hand_out(self._replay[0]):
                    await self._until_settled()
                    continue
                return self._hand_out(self._replay.popleft())
            if self._ended:
                raise StopAsyncIteration
            if self._refill is not None or self._reading is not None:
                await self._replenish()
            elif self._arrived:
                if not self._may_hand_out(self._arrived[0]):
                    await self._until_settled()
                    continue
                publication = self._arrived.popleft()
                if isinstance(publication, PrefillProgress):
                    return publication
                if self._continues(publication):
                    return self._hand_out(publication)
            else:
                await self._wait()

    async def next(self, timeout_s: float) -> Publication | None:
        """The next publication, or None if there is none within ``timeout_s`` seconds.

        Raises as the iterator does, ``StopAsyncIteration`` after the end included.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self)
        except TimeoutError:
            return None

    def _hand_out(self, entry: LogEntry) -> LogEntry:
        self.seq, self.epoch = entry.seq, entry.epoch
        self._ended = isinstance(entry, End)
        return entry

    def _continues(self, entry: Delta | End) -> bool:
        """Whether the entry is the next one. What was seen is dropped; a gap sends to the log."""
        if entry.seq > self.seq + 1:
            self.refill(RefillReason.GAP)
            return False
        if self.epoch is not None and entry.seq <= self.seq and entry.epoch > self.epoch:
            raise StreamDiverged(self.generation, self.seq)
        return entry.seq == self.seq + 1 and (self.epoch is None or entry.epoch >= self.epoch)

    async def _wait(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(IDLE_S):
                await self._news.wait()
        except TimeoutError:
            self.refill(RefillReason.IDLE)

    def _may_hand_out(self, publication: Publication) -> bool:
        return not isinstance(publication, End) or (self._settling is not None and self._settling.done())

    async def _until_settled(self) -> None:
        """In a task of its own, as the log is read. Once: what is not settled by then is handed out all the same."""
        if self._settling is None:
            self._settling = asyncio.create_task(self._watch_settlement())
        await asyncio.wait({self._settling})

    async def _watch_settlement(self) -> None:
        until = time.monotonic() + self._settled_within_s
        pause_s, longest_s = _SETTLED_YET_S
        while time.monotonic() < until:
            try:
                excerpt = await token_log.aread_excerpt(self._client, self.generation, self.seq, 1)
            except redis.RedisError as error:
                _log.warning("settlement_not_awaited", generation=self.generation, error=str(error))
                return
            if excerpt.over or not excerpt.known:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _replenish(self) -> None:
        """Read on from the last entry that was handed out.

        In a task of its own, which outlives whoever waits for it: a reader with short time-outs must come on too, and
        cancelling a command would cost its connection.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_log(self._refill or RefillReason.START))
            self._refill = None
        await asyncio.wait({self._reading})
        reading, self._reading = self._reading, None
        reading.result()

    async def _read_log(self, reason: RefillReason) -> None:
        # The last entry that was handed out is read again: it must still be the one that was.
        witness = 1 if self.seq else 0
        try:
            excerpt = await token_log.aread_excerpt(
                self._client, self.generation, self.seq - witness, EXCERPT_ENTRIES
            )
        except redis.RedisError as error:
            _log.warning("token_log_unreachable", generation=self.generation, error=str(error))
            self.refill(reason)
            await asyncio.sleep(RETRY_S)
            return
        self._refills[reason] += 1
        if not excerpt.known and not excerpt.last_seq:
            await self._without_trace(reason)
            return
        self._was_known = True
        self._check_witness(excerpt)
        self._replay.extend(excerpt.entries[witness:])
        if excerpt.over and not self._replay and not self._ended:
            raise LogExpired(self.generation)  # let go of without an end: its log was lost
        if self.seq + len(self._replay) < excerpt.last_seq:
            self.refill(reason)

    async def _without_trace(self, reason: RefillReason) -> None:
        """There is neither log nor generation: it has expired, or Valkey was emptied and the sweep brings it back."""
        if self.seq and self._was_known:
            raise StreamDiverged(self.generation, self.seq)
        if self.seq or time.monotonic() > self._unknown_until:
            raise LogExpired(self.generation)
        self.refill(reason)
        await asyncio.sleep(RETRY_S)

    def _check_witness(self, excerpt: LogExcerpt) -> None:
        if not self.seq:
            return
        if excerpt.last_seq < self.seq:
            raise StreamDiverged(self.generation, self.seq)
        seen = excerpt.entries[0]
        if self.epoch is not None and seen.epoch != self.epoch:
            raise StreamDiverged(self.generation, self.seq)
        self.epoch = seen.epoch
        self._ended = isinstance(seen, End)
