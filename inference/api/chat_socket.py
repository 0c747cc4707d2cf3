"""The chat socket, ``/ws/chat/``: several generations at once over one connection.

Channels hands a consumer one frame at a time and waits for its handler, so handlers here only start and stop tasks: a
``cancel`` never waits for a ``generate``. Tokens come from ``inference.dispatch.delivery`` straight to the generation's
task and do not pass the channel layer. A generation belongs to no connection: when the socket closes, its tasks end and
the generation goes on (``cancellation`` and the workers decide for how long).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVarTuple, Unpack
from uuid import UUID

import redis
import structlog
from channels.generic.websocket import AsyncWebsocketConsumer
from msgspec import UNSET

from accounts.actors import address_of_socket
from accounts.principal import Principal
from inference import cancellation, intake
from inference.api import chat_turns, frames, ids
from inference.api.chat_stream import ChatStream, Stopwatch
from inference.api.chat_turns import in_thread
from inference.api.errors import ApiError, hide_keys
from inference.api.frame_errors import FrameError, FrameErrorCode
from inference.api.frames import Authenticate, Cancel, Generate, Resume, ServerFrame, TextDelta
from inference.api.reader_access import ReaderRevoked, reader_access
from inference.api.refusal_frames import error_frame
from inference.api.socket_credentials import Credentials, KeyCredentials, SessionCredentials, sockets_of
from inference.api.streaming import Replay
from inference.conversations import ConversationRefusal, ConversationRefused
from inference.dispatch.delivery import delivery
from inference.messages import CancelReason
from signalbox.request_ids import new_request_id

SUBPROTOCOL: Final = "signalbox.v1"
KEY_SUBPROTOCOL: Final = "key."
#: Close code: the session or key that opened the socket is no longer valid, or was never presented.
CLOSE_UNAUTHENTICATED: Final = 4401
#: Close code of the protocol itself, "policy violation": what the client sends makes no sense.
CLOSE_INVALID_FRAMES: Final = 1008
#: Close code of the protocol itself, "try again later": the store cannot be reached. Before the socket is open, 503.
CLOSE_TRY_AGAIN_LATER: Final = 1013
#: Invalid frames that a connection survives.
MOST_INVALID_FRAMES: Final = 16
#: Largest frame of a client that has not said who it is.
UNAUTHENTICATED_FRAME_BYTES: Final = 4096
#: How long a connection may stay open without saying who it is.
AUTHENTICATE_WITHIN_S: Final = 10.0
#: Generations that one connection may ask for or follow at once.
MOST_GENERATIONS: Final = 32
#: Tasks of one connection, cancels and log-ins among them.
_MOST_TASKS: Final = 3 * MOST_GENERATIONS
#: A reader that takes a frame only after so long is too slow to be followed for.
SLOW_READER_S: Final = 5.0
#: How long a new turn waits for the last answer, which has ended, to be settled.
SETTLED_WITHIN_S: Final = 3.0
_SETTLED_POLL_S: Final = 0.05
_CANCEL_AGAIN_S: Final = 0.2

_log = structlog.get_logger(__name__)

Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class _Outcome:
    """What became of what was tried: why it was refused, or None."""

    error: Exception | None = None


class ChatConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One client's connection."""

    def __init__(self) -> None:
        super().__init__()
        self._credentials: Credentials | None = None
        self._invalid_frames = 0
        self._closing = False
        #: The session that it was opened with. No frame changes it.
        self._session: SessionCredentials | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those of them that ask for a generation or follow one.
        self._following: set[asyncio.Task[None]] = set()
        #: The task that sends each generation's frames.
        self._streams: dict[UUID, asyncio.Task[Any] | None] = {}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        except redis.RedisError as error:
            # A socket that cannot hear that its session has ended is not opened.
            _log.warning("socket_without_store", error=str(error))
            await send({"type": "websocket.close", "code": CLOSE_TRY_AGAIN_LATER})
        finally:
            # `disconnect` is not called on every way out.
            await self._stop_all()

    async def connect(self) -> None:
        offered = self.scope.get("subprotocols", [])
        key = next((name for name in offered if name.startswith(KEY_SUBPROTOCOL)), None)
        session = self._session_presented() if key is None else None
        if session is not None:
            await self.channel_layer.group_add(sockets_of(self.scope["user"].id), self.channel_name)
        await self.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        if key is not None:
            self._credentials = self._of_key(key.removeprefix(KEY_SUBPROTOCOL))
            self._start(self._check_key)
        elif session is not None:
            self._session = self._credentials = session
        else:
            self._start(self._wait_for_credentials)

    async def disconnect(self, code: int) -> None:
        await self._stop_all()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._closing:
            return
        envelope = frames.Envelope()
        try:
            self._check_size(text_data or bytes_data or "")
            envelope = frames.open_envelope(text_data)
            self._handle(frames.read_frame(envelope, text_data or ""))
        except (FrameError, ApiError) as error:
            # No line in the log for each: whoever floods the socket would flood the log.
            await self._refuse(
                error, ref=envelope.known_ref, generation=envelope.known_generation, logged=False
            )
            if error.code is not FrameErrorCode.TOO_MANY_GENERATIONS:
                await self._count_invalid()

    async def session_check(self, event: dict[str, Any]) -> None:
        """Channel layer: the user's session may be over. If it is, so is what this socket has under way."""
        if self._session is None:
            return
        async with self._refusing() as outcome:
            await in_thread(self._session.user)()
        if outcome.error is not None:
            for generation in list(self._streams):
                await in_thread(cancellation.cancel)(generation, CancelReason.ACCESS_REVOKED)
            await self._stop_all()
            await self._close(CLOSE_UNAUTHENTICATED)

    def _check_size(self, data: str | bytes) -> None:
        if self._credentials is None and len(data) > UNAUTHENTICATED_FRAME_BYTES:
            self._invalid_frames = MOST_INVALID_FRAMES
            raise FrameError(
                FrameErrorCode.FRAME_TOO_LARGE,
                f"A first frame of more than {UNAUTHENTICATED_FRAME_BYTES} bytes is not read: say who you are before.",
            )

    async def _count_invalid(self) -> None:
        """One more frame that means nothing; too many of them close the connection."""
        self._invalid_frames += 1
        if self._invalid_frames > MOST_INVALID_FRAMES:
            _log.info("socket_closed_for_invalid_frames", authenticated=self._credentials is not None)
            await self._close(CLOSE_INVALID_FRAMES)

    async def _close(self, code: int) -> None:
        """Close, and take no more of what has arrived."""
        self._closing = True
        await self.close(code)

    def _handle(self, frame: frames.ClientFrame) -> None:
        match frame:
            case Authenticate():
                if self._session is not None:
                    raise FrameError(
                        FrameErrorCode.ALREADY_SIGNED_IN,
                        "This connection speaks for the browser's session, and takes no API key beside it. Open "
                        "another one without the session's cookie.",
                        param="type",
                    )
                # Taken at once, so that the next frame may rely on it; every frame that starts something checks anew.
                self._credentials = self._of_key(frame.api_key)
                self._start(self._authenticate)
            case Generate():
                self._start(self._generate, frame, self._presented(), follows=True)
            case Resume():
                self._start(self._resume, frame, self._presented(), follows=True)
            case Cancel():
                self._start(self._cancel, frame, self._presented())

    # Who it is

    def _session_presented(self) -> SessionCredentials | None:
        """The browser's session. Its origin was checked before; a program that sends none has no session here."""
        user = self.scope.get("user")
        has_origin = any(name == b"origin" for name, _ in self.scope["headers"])
        if not has_origin or user is None or not user.is_authenticated:
            return None
        return SessionCredentials(self.scope["session"].session_key)

    def _of_key(self, raw: str) -> KeyCredentials:
        return KeyCredentials(raw, address_of_socket(self.scope))

    def _presented(self) -> Credentials:
        if self._credentials is None:
            raise FrameError(
                FrameErrorCode.NOT_AUTHENTICATED, "Send an `authenticate` frame with an API key first."
            )
        return self._credentials

    async def _authenticate(self) -> None:
        credentials = self._presented()
        async with self._refusing() as outcome:
            principal = await in_thread(credentials.principal)()
            await self._tell(frames.Authenticated(tenant=principal.tenant_id.hex))
        if outcome.error is not None:
            if self._credentials is credentials:
                self._credentials = None
            await self._count_invalid()

    async def _check_key(self) -> None:
        """A key in the handshake that gives no access: say so, and close."""
        async with self._refusing() as outcome:
            await in_thread(self._presented().principal)()
        if outcome.error is not None:
            await self._close(CLOSE_UNAUTHENTICATED)

    async def _wait_for_credentials(self) -> None:
        await asyncio.sleep(AUTHENTICATE_WITHIN_S)
        if self._credentials is None:
            await self._refuse(
                FrameError(FrameErrorCode.NOT_AUTHENTICATED, "No credentials were presented in time.")
            )
            await self._close(CLOSE_UNAUTHENTICATED)

    # What it asks for

    async def _generate(self, frame: Generate, credentials: Credentials) -> None:
        async with self._refusing(ref=frame.ref):
            accepted = await self._accept(frame, credentials)
            admission, generation = accepted.admission, accepted.generation_id
            first = frames.Accepted(
                ref=frame.ref,
                generation=ids.generation_id(generation),
                model=accepted.task.model,
                lane=admission.lane,
                service_tier=admission.service_tier,
                requested_lane=admission.requested_lane or None,
                reason=admission.reason,
                conversation=UNSET if frame.conversation is None else frame.conversation,
            )
            stopwatch = Stopwatch(accepted.created_at.timestamp())
            await self._follow(generation, accepted.task.model, stopwatch=stopwatch, first=first)

    async def _accept(self, frame: Generate, credentials: Credentials) -> intake.Accepted:
        """Accept, waiting a moment for an answer that has ended (its reader knows) but is not settled yet."""
        deadline = asyncio.get_running_loop().time() + SETTLED_WITHIN_S
        while True:
            try:
                return await in_thread(chat_turns.accept)(frame, credentials)
            except ConversationRefused as refusal:
                late = asyncio.get_running_loop().time() > deadline
                if late or refusal.code is not ConversationRefusal.ANSWER_IN_PROGRESS:
                    raise
            await asyncio.sleep(_SETTLED_POLL_S)

    async def _resume(self, frame: Resume, credentials: Credentials) -> None:
        async with self._refusing(generation=frame.generation):
            principal, generation, entries = await in_thread(chat_turns.find_events)(frame, credentials)
            model = generation.model.name
            if entries is not None:
                replay = ChatStream(generation.id, model, Replay(entries), stopwatch=None, after=frame.after)
                await self._forward(generation.id, replay)
                return
            stopwatch = None if frame.after else Stopwatch(generation.created_at.timestamp())
            await self._follow(
                generation.id,
                model,
                stopwatch=stopwatch,
                after=frame.after,
                epoch=frame.epoch,
                reader=principal,
            )

    async def _cancel(self, frame: Cancel, credentials: Credentials) -> None:
        async with self._refusing(generation=frame.generation):
            await in_thread(chat_turns.cancel)(frame, credentials)

    # What it follows

    async def _follow(
        self,
        generation: UUID,
        model: str,
        *,
        stopwatch: Stopwatch | None,
        first: ServerFrame | None = None,
        after: int = 0,
        epoch: int | None = None,
        reader: Principal | None = None,
    ) -> None:
        """Follow a generation to its end: as its own client or, with a ``reader``, for as long as that one's access
        holds."""
        async with (
            self._refusing(generation=ids.generation_id(generation)) as outcome,
            delivery().follow(generation.hex, after, epoch) as follower,
        ):
            if first is not None:
                await self._tell(first)
            with (
                nullcontext(follower)
                if reader is None
                else reader_access().watched(reader, follower) as source
            ):
                await self._forward(
                    generation, ChatStream(generation, model, source, stopwatch=stopwatch, after=after)
                )
        if isinstance(outcome.error, ReaderRevoked) and self._session is None:
            # A key opens nothing more here. A session may have other tenants.
            await self._close(CLOSE_UNAUTHENTICATED)

    async def _forward(self, generation: UUID, stream: ChatStream) -> None:
        """Send the stream's frames, instead of another task that may do so for the same generation."""
        async with self._only_stream_of(generation):
            async for frame in stream.frames():
                waited_s = await self._tell(frame)
                if isinstance(frame, TextDelta) and waited_s > SLOW_READER_S:
                    _log.info("slow_reader_dropped", generation=generation.hex, waited_s=round(waited_s, 1))
                    raise FrameError(
                        FrameErrorCode.SLOW_READER,
                        f"This connection reads too slowly. The generation goes on: resume it after {frame.seq}.",
                    )

    @asynccontextmanager
    async def _only_stream_of(self, generation: UUID) -> AsyncIterator[None]:
        task = asyncio.current_task()
        earlier = self._streams.get(generation)
        if earlier is not None:
            earlier.cancel()
        self._streams[generation] = task
        try:
            yield
        finally:
            if self._streams.get(generation) is task:
                del self._streams[generation]

    # Sending

    async def _tell(self, frame: ServerFrame) -> float:
        """Send a frame. Returns how many seconds the client's connection took to take it: the server pushes back."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        await self.send(text_data=frames.encode(frame))
        return clock() - begun

    @asynccontextmanager
    async def _refusing(
        self, *, ref: str | None = None, generation: str | None = None
    ) -> AsyncIterator[_Outcome]:
        """What goes wrong inside is told to the client, in an ``error`` frame about its ``ref`` or ``generation``."""
        outcome = _Outcome()
        try:
            yield outcome
        except Exception as error:  # noqa: BLE001 — error_frame logs what nobody foresaw
            outcome.error = error
            await self._refuse(error, ref=ref, generation=generation)

    async def _refuse(
        self,
        error: Exception,
        *,
        ref: str | None = None,
        generation: str | None = None,
        logged: bool = True,
    ) -> None:
        fault = error_frame(error)
        generation = None if generation is None else hide_keys(generation)
        if ref is not None:
            fault.ref = hide_keys(ref)
        if generation is not None:
            fault.generation = generation
        if logged:
            _log.info("socket_error", code=fault.code, param=fault.param, generation=generation)
        await self._tell(fault)

    # Tasks

    def _start(
        self,
        work: Callable[[Unpack[Ts]], Coroutine[Any, Any, None]],
        *args: *Ts,
        follows: bool = False,
    ) -> None:
        """Start the work of a frame. What ``follows`` a generation takes one of the connection's places for it."""
        under_way, most = (self._following, MOST_GENERATIONS) if follows else (self._tasks, _MOST_TASKS)
        if len(under_way) >= most:
            raise FrameError(
                FrameErrorCode.TOO_MANY_GENERATIONS,
                f"{MOST_GENERATIONS} generations are under way on this connection, the most that it may have.",
            )
        task = asyncio.create_task(_as_request(work, *args))
        self._tasks.add(task)
        if follows:
            self._following.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._following.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("socket_task_failed", exc_info=fault)

    async def _stop_all(self) -> None:
        # More than once: a connection to Valkey that is just being made can swallow a cancellation.
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(list(self._tasks), timeout=_CANCEL_AGAIN_S)


async def _as_request(work: Callable[[Unpack[Ts]], Coroutine[Any, Any, None]], *args: *Ts) -> None:
    """Every frame is a request of its own, in the log and in the rows that it writes."""
    structlog.contextvars.bind_contextvars(request_id=new_request_id())
    await work(*args)
