"""From what a worker publishes to what a client reads: a stream of events, or one answer made of the same pieces.

Whether a fault becomes an HTTP status or an event depends on whether anything was sent. So a stream's response starts
with the first thing there is to say: text, the end, or, after ``KEEP_ALIVE_S`` without either, a comment. Who asked for
progress, or for a stream that can be resumed, is answered at once: they want to know the generation's name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol
from uuid import UUID

import redis
import structlog
from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

from inference.api import ids, sse
from inference.api.answers import AnswerModel, Shape
from inference.api.attachment import Attachment
from inference.api.errors import ApiError, ErrorCode, as_api_error
from inference.api.ids import EventId
from inference.api.sampling_parameters import StreamOptions
from inference.dispatch.queue import dispatch_queue
from inference.messages import (
    CancelReason,
    Delta,
    End,
    EndState,
    FinishReason,
    LogEntry,
    PrefillProgress,
    Publication,
)

_log = structlog.get_logger(__name__)

#: Longest silence on a stream.
KEEP_ALIVE_S: Final = 10.0
#: How often a queued client that asked for progress is told its place.
_POSITION_S: Final = 2.0

_CANCELLED: Final = {
    CancelReason.ACCESS_REVOKED: (
        ErrorCode.ACCESS_REVOKED,
        "The generation was ended because its API key, session or membership was revoked.",
    ),
    CancelReason.DETACHED: (
        ErrorCode.GENERATION_CANCELLED,
        "The generation was cancelled because nobody had been reading it for too long.",
    ),
    CancelReason.OPERATOR_REQUESTED: (
        ErrorCode.GENERATION_CANCELLED,
        "The generation was cancelled by an operator of this server.",
    ),
}


def failure_of(end: End) -> ApiError:
    """What the client of a generation that did not end well is told."""
    if end.state is EndState.CANCELLED:
        code, message = _CANCELLED.get(
            end.cancel_reason or CancelReason.CLIENT_REQUESTED,
            (ErrorCode.GENERATION_CANCELLED, "The generation was cancelled."),
        )
        return ApiError(code, message)
    if end.state is EndState.EXPIRED:
        return expired(end.cancel_reason)
    if end.failure is not None and end.failure.code == ErrorCode.KV_MEMORY_EXCEEDED:
        # Its worker's memory shrank before this was known at the door: the answer is the one that is given there.
        return ApiError(ErrorCode.KV_MEMORY_EXCEEDED, end.failure.message)
    if end.failure is not None:
        return ApiError(ErrorCode.GENERATION_FAILED, end.failure.message, failure=end.failure.code)
    return ApiError(ErrorCode.GENERATION_FAILED, "The generation failed.")


def expired(reason: CancelReason | None) -> ApiError:
    """What the client of a generation is told that was ended for taking too long."""
    if reason is CancelReason.QUEUE_WAIT_EXCEEDED:
        return ApiError(
            ErrorCode.QUEUE_WAIT_EXCEEDED,
            "The generation was ended because it had waited for a worker for longer than its entitlement lets it wait. "
            "Nothing of it was run, and it costs nothing.",
        )
    return ApiError(
        ErrorCode.GENERATION_EXPIRED, "The generation was ended because it had not finished in time."
    )


class Publications(Protocol):
    """What a generation publishes, in order, up to its ``End``."""

    def __aiter__(self) -> AsyncIterator[Publication]: ...

    async def next(self, timeout_s: float) -> Publication | None:
        """The next one; None if there is none within ``timeout_s``. Raises ``StopAsyncIteration`` after the end."""


class Replay:
    """Publications that are all there already."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        self._entries = iter(entries)

    async def __aiter__(self) -> AsyncIterator[Publication]:
        for entry in self._entries:
            yield entry

    async def next(self, timeout_s: float) -> Publication | None:
        for entry in self._entries:
            return entry
        raise StopAsyncIteration


class Answering:
    """One client reading one generation, from the event behind ``after`` on."""

    def __init__(
        self,
        generation: UUID,
        publications: Publications,
        shape: Shape,
        attachment: Attachment,
        *,
        options: StreamOptions | None = None,
        after: int = 0,
    ) -> None:
        self._generation = generation
        self._publications = publications
        self._shape = shape
        self._attachment = attachment
        self._options = options or StreamOptions()
        self._after = after

    async def whole(self) -> AnswerModel:
        """The answer in one piece. Raises ``ApiError`` where the generation did not end well."""
        text: list[str] = []
        async for publication in self._publications:
            match publication:
                case Delta():
                    text.append(publication.text)
                case End():
                    return self._shape.whole("".join(text), self._ended(publication), publication.usage)
        raise _cut_short()

    async def response(self) -> StreamingHttpResponse:
        """The stream's response, once there is something to send. Raises what goes wrong before."""
        frames = self._frames()
        first = await anext(frames)
        return StreamingHttpResponse(
            _told(first, frames),
            content_type="text/event-stream; charset=utf-8",
            # Proxies must pass events on as they come.
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def _frames(self) -> AsyncIterator[bytes]:
        """What is sent, piece by piece, up to the end. Raises what goes wrong."""
        if self._options.resumable or self._options.include_progress:
            yield sse.comment("accepted", generation=ids.generation_id(self._generation))
        tells_position = self._options.include_progress and self._after == 0
        position: int | None = None
        clock = asyncio.get_running_loop().time
        quiet_since = clock()
        wait = 0.0 if tells_position else KEEP_ALIVE_S
        while True:
            publication = await self._next(wait)
            frame = b""
            match publication:
                case End():
                    yield self._end(publication)
                    return
                case Delta():
                    tells_position = False
                    frame = self._delta(publication)
                case PrefillProgress(done=done, total=total):
                    tells_position = False
                    if self._options.include_progress:
                        frame = sse.comment("prefill", done=done, total=total)
                case None if tells_position and (place := await self._position()) not in (None, position):
                    position = place
                    frame = sse.comment("queued", position=place)
                case None if clock() - quiet_since >= KEEP_ALIVE_S:
                    frame = sse.KEEP_ALIVE
            if frame:
                yield frame
                quiet_since = clock()
            wait = max(0.0, quiet_since + KEEP_ALIVE_S - clock())
            if tells_position:
                wait = min(wait, _POSITION_S)

    async def _next(self, wait: float) -> Publication | None:
        try:
            return await self._publications.next(wait)
        except StopAsyncIteration:
            raise _cut_short() from None

    async def _position(self) -> int | None:
        try:
            return await sync_to_async(dispatch_queue().position, thread_sensitive=False)(
                self._generation.hex
            )
        except redis.RedisError as error:
            # Following goes on and mends itself; a place in the queue is not worth the stream.
            _log.warning("queue_position_unknown", generation=self._generation.hex, error=str(error))
            return None

    def _delta(self, delta: Delta) -> bytes:
        if delta.seq <= self._after:
            return b""
        frames = []
        opening = self._shape.opening() if delta.seq == 1 else None
        if opening is not None:
            frames.append(self._event(opening))
        if delta.text:
            frames.append(self._event(self._shape.text(delta.text), delta))
        return b"".join(frames)

    def _end(self, end: End) -> bytes:
        reason = self._ended(end)
        frames = []
        if end.seq > self._after:
            opening = self._shape.opening() if end.seq == 1 else None
            if opening is not None:
                frames.append(self._event(opening))
            frames.append(self._event(self._shape.finish(reason), end))
        if self._options.include_usage:
            frames.append(self._event(self._shape.usage(end.usage), end))
        return b"".join([*frames, sse.DONE])

    def _ended(self, end: End) -> FinishReason:
        self._attachment.ended()
        if end.state is EndState.COMPLETED and end.finish_reason is not None:
            return end.finish_reason
        raise failure_of(end)

    def _event(self, chunk: AnswerModel, entry: LogEntry | None = None) -> bytes:
        without = None if self._options.include_usage else {"usage"}
        id_ = EventId(self._generation, entry.seq if entry else 0, entry.epoch if entry else None)
        return sse.event(chunk.model_dump_json(exclude=without), id_=str(id_))


async def _told(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The frames; what goes wrong from here on is told as the last event."""
    yield first
    try:
        async for frame in rest:
            yield frame
    except Exception as error:  # noqa: BLE001 — as_api_error logs what nobody foresaw
        yield sse.event(json.dumps(as_api_error(error).body()))


def _cut_short() -> RuntimeError:
    """A log that ends without its end."""
    return RuntimeError("the publications of a generation ended before its End")
