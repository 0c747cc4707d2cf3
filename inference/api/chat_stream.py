"""One generation on one socket: from what its worker publishes to the frames that its reader gets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from typing import Final
from uuid import UUID

import redis
import structlog
from asgiref.sync import sync_to_async

from inference.api import ids
from inference.api.answers import Usage
from inference.api.frames import Done, Prefill, Queued, ServerFrame, TextDelta, Timings
from inference.api.queue_estimates import ClaimRates
from inference.api.streaming import Publications, failure_of
from inference.dispatch.follower import LogExpired
from inference.dispatch.queue import dispatch_queue
from inference.messages import Delta, End, EndState, PrefillProgress, Publication

#: How often a waiting generation's place is looked up, in seconds.
POSITION_S: Final = 1.0
#: A worker with room takes a generation sooner than this: then there is no place to tell.
_FIRST_LOOK_S: Final = 0.15
#: The follower looks at the log by itself while it hears nothing.
_UNLIMITED_S: Final = 3600.0
#: ``finish_reason`` of what was ended before its own end.
CANCELLED: Final = "cancelled"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Stopwatch:
    """When what happened to one generation, in Unix seconds, as far as this reader has seen it."""

    accepted_at: float
    running_at: float | None = None
    first_token_at: float | None = None

    def timings(self, completion_tokens: int, now: float) -> Timings:
        pace = None
        if self.first_token_at is not None and completion_tokens > 1 and now > self.first_token_at:
            pace = round((completion_tokens - 1) / (now - self.first_token_at), 2)
        return Timings(
            queue_ms=self._since_accepted(self.running_at),
            first_token_ms=self._since_accepted(self.first_token_at),
            total_ms=self._since_accepted(now),
            tokens_per_second=pace,
        )

    def _since_accepted(self, at: float | None) -> int | None:
        return None if at is None else max(0, round((at - self.accepted_at) * 1000))


class ChatStream:
    """The frames of one generation, behind the event that its reader has seen last.

    ``stopwatch`` is None for a reader who was not there from the start: then nothing is known of the answer's pace.
    """

    def __init__(
        self,
        generation: UUID,
        model: str,
        publications: Publications,
        *,
        stopwatch: Stopwatch | None,
        after: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = ids.generation_id(generation)
        self._hex = generation.hex
        self._model = model
        self._publications = publications
        self._stopwatch = stopwatch
        self._after = after
        self._clock = clock

    async def frames(self) -> AsyncIterator[ServerFrame]:
        """Up to ``Done``. Raises ``ApiError`` where the generation failed, and what following it raises."""
        waits, position, patience = self._after == 0, None, _FIRST_LOOK_S
        while True:
            publication = await self._next(patience if waits else _UNLIMITED_S)
            waits, patience = waits and publication is None, POSITION_S
            match publication:
                case Delta(seq=seq, epoch=epoch, text=text):
                    self._runs(first_token=True)
                    if text and seq > self._after:
                        yield TextDelta(self._name, seq, epoch, text)
                case PrefillProgress(done=done, total=total):
                    self._runs()
                    yield Prefill(self._name, done, total)
                case End():
                    yield self._done(publication)
                    return
                case None if waits:
                    queued = await self._queued()
                    if queued is not None and queued.position != position:
                        position = queued.position
                        yield queued

    async def _next(self, wait_s: float) -> Publication | None:
        try:
            return await self._publications.next(wait_s)
        except StopAsyncIteration:
            raise LogExpired(self._hex) from None

    def _runs(self, *, first_token: bool = False) -> None:
        if self._stopwatch is None:
            return
        if self._stopwatch.running_at is None:
            self._stopwatch.running_at = self._clock()
        if first_token and self._stopwatch.first_token_at is None:
            self._stopwatch.first_token_at = self._clock()

    def _done(self, end: End) -> Done:
        if end.state not in (EndState.COMPLETED, EndState.CANCELLED):
            raise failure_of(end)
        timings = Timings()
        if self._stopwatch is not None:
            timings = self._stopwatch.timings(end.usage.completion_tokens, self._clock())
        return Done(
            generation=self._name,
            seq=end.seq,
            finish_reason=end.finish_reason.value if end.finish_reason else CANCELLED,
            cancel_reason=end.cancel_reason.value if end.cancel_reason else None,
            usage=Usage.of(end.usage).model_dump(),
            timings=timings,
        )

    async def _queued(self) -> Queued | None:
        try:
            position, wait_s = await sync_to_async(_place, thread_sensitive=False)(self._hex, self._model)
        except redis.RedisError as error:
            # Following goes on and mends itself; a place in the queue is not worth an error.
            _log.warning("queue_position_unknown", generation=self._hex, error=str(error))
            return None
        if position is None:
            return None
        return Queued(self._name, position, None if wait_s is None else round(wait_s * 1000))


@cache
def claim_rates() -> ClaimRates:
    """This process's readings."""
    return ClaimRates()


def _place(generation: str, model: str) -> tuple[int | None, float | None]:
    """Where it waits, and for how many more seconds."""
    queue = dispatch_queue()
    position = queue.position(generation)
    if position is None:
        return None, None
    now = time.monotonic()
    claim_rates().observe(model, queue.counters(model)["claims"], now)
    return position, claim_rates().wait_s(model, position, now)
