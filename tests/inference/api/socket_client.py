"""A client of the chat socket, in the test's own event loop, through the whole ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.testing import ApplicationCommunicator
from channels.testing import WebsocketCommunicator

from signalbox.asgi import application

PATH = "/ws/chat/"
FRAME_S = 60.0
OWN_ORIGIN = "http://localhost"


class _Communicator(WebsocketCommunicator):  # type: ignore[misc]
    """Channels' own keeps the application from closing its database connections, for tests that share theirs with it.

    Here every thread has its own, as in production, and gives it back.
    """

    send_input = ApplicationCommunicator.send_input
    receive_output = ApplicationCommunicator.receive_output


class SocketClient:
    """One connection, from ``address``. ``session`` is a session cookie's value, ``key`` goes into the subprotocol."""

    def __init__(
        self,
        *,
        session: str | None = None,
        origin: str | None = None,
        host: str = "localhost",
        key: str | None = None,
        subprotocols: list[str] | None = None,
        path: str = PATH,
        address: str | None = None,
    ) -> None:
        headers = [(b"host", host.encode())]
        if origin is not None:
            headers.append((b"origin", origin.encode()))
        if session is not None:
            headers.append((b"cookie", f"sessionid={session}".encode()))
        offered = subprotocols if subprotocols is not None else ["signalbox.v1"]
        if key is not None:
            offered = [*offered, f"key.{key}"]
        self._socket = _Communicator(application, path, headers, offered)
        if address is not None:
            self._socket.scope["client"] = [address, 50_000]

    async def connect(self) -> str | None:
        """Open it. Returns the subprotocol that the server chose; fails when it refuses."""
        connected, chosen = await self._socket.connect(timeout=FRAME_S)
        assert connected, f"refused with {chosen}"
        return None if chosen is None else str(chosen)

    async def is_refused(self) -> bool:
        connected, _ = await self._socket.connect(timeout=FRAME_S)
        return not connected

    async def send(self, **frame: Any) -> None:
        await self.send_text(json.dumps(frame))

    async def send_text(self, text: str) -> None:
        await self._socket.send_to(text_data=text)

    async def send_bytes(self, data: bytes) -> None:
        await self._socket.send_to(bytes_data=data)

    async def next(self) -> dict[str, Any]:
        """The next frame."""
        return dict(json.loads(await self._socket.receive_from(timeout=FRAME_S)))

    async def until(self, type_: str) -> dict[str, Any]:
        """The next frame of a type; the others before it are dropped, an unexpected error fails."""
        while True:
            frame = await self.next()
            if frame["type"] == type_:
                return frame
            assert frame["type"] != "error", frame

    async def until_error(self) -> dict[str, Any]:
        """The next ``error`` frame; the others before it are dropped."""
        return (await self.all_until("error"))[-1]

    async def all_until(self, type_: str) -> list[dict[str, Any]]:
        """The frames up to and with the next one of a type."""
        frames = [await self.next()]
        while frames[-1]["type"] != type_:
            frames.append(await self.next())
        return frames

    async def closed(self) -> int:
        """The code that the server closes with, when it does; frames before that are dropped."""
        async with asyncio.timeout(FRAME_S):
            while True:
                message = await self._socket.receive_output(timeout=FRAME_S)
                if message["type"] == "websocket.close":
                    return int(message["code"])

    async def hang_up(self) -> None:
        """Close it, and return when the server has cleared everything away."""
        await self._socket.disconnect(timeout=FRAME_S)


def text_of(frames: list[dict[str, Any]]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


#: Opens connections, which are closed at the test's end.
Connect = Callable[..., Awaitable[SocketClient]]
