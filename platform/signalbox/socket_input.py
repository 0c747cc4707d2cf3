"""What a WebSocket's client has sent and its application has not yet taken: bounded. And how it is refused and closed.

Daphne puts whatever arrives into a queue without end, so that a client that sends faster than its frames are handled
grows the process. Here reading stops while much waits, and the client's own system holds the rest back.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from daphne.ws_protocol import ConnectionDeny, WebSocketProtocol

#: Messages, and bytes of them, that wait for the application before reading stops.
MOST_WAITING: Final = 64
MOST_WAITING_BYTES: Final = 256 * 1024

_NORMAL: Final = 1000
#: Close code with which an application refuses a handshake for now.
_TRY_AGAIN_LATER: Final = 1013


class BoundedWebSocket(WebSocketProtocol):  # type: ignore[misc]
    """Daphne's connection, which is read only as fast as its messages are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[int] = deque()
        self._waiting_bytes = 0
        self._holds_back = False
        self._refuse_with: ConnectionDeny | None = None

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: N802, N803 — Autobahn's names
        # Frames still arrive for a while after the server has closed.
        if self.state != self.STATE_OPEN:
            return
        super().onMessage(payload, isBinary)
        self._waiting.append(len(payload))
        self._waiting_bytes += len(payload)
        if not self._holds_back and self._is_above(1):
            self._holds_back = True
            self.transport.pauseProducing()

    def processData(self) -> bool:  # noqa: N802 — Autobahn's name
        # One read can bring thousands of frames: those behind the bound stay bytes.
        if self._holds_back and self.state == self.STATE_OPEN:
            return False
        return bool(super().processData())

    def taken(self, message: dict[str, Any]) -> None:
        """The application took ``message``. Reading goes on once half of what may wait is gone."""
        if message["type"] != "websocket.receive":
            return
        self._waiting_bytes -= self._waiting.popleft()
        if self._holds_back and not self._is_above(2):
            self._holds_back = False
            self.consumeData()
            if not self._holds_back:
                self.transport.resumeProducing()

    def handle_reply(self, message: dict[str, Any]) -> None:
        # An application learns only afterwards that its client, or the server, has begun to close.
        if message["type"] == "websocket.send" and self.state not in (self.STATE_CONNECTING, self.STATE_OPEN):
            return
        if message["type"] == "websocket.close" and message.get("code") == _TRY_AGAIN_LATER:
            self._refuse_with = ConnectionDeny(ConnectionDeny.SERVICE_UNAVAILABLE, "Service Unavailable")
        super().handle_reply(message)

    def serverReject(self) -> None:  # noqa: N802 — Daphne's name
        # Daphne knows one way to refuse a handshake, 403, which says that trying again is no use.
        if self._refuse_with is None:
            super().serverReject()
            return
        self.handshake_deferred.errback(self._refuse_with)
        del self.handshake_deferred
        self.server.protocol_disconnected(self)
        client = ":".join(map(str, self.client_addr)) if self.client_addr else None
        self.server.log_action("websocket", "put off", {"path": self.request.path, "client": client})

    def serverClose(self, code: int | None = None) -> None:  # noqa: N802 — Daphne's name
        # Autobahn's sendClose() refuses the codes that the protocol itself defines.
        self.sendCloseFrame(code=_NORMAL if code is None else code, isReply=False)

    def _is_above(self, part: int) -> bool:
        """Whether more waits than the given part of the bounds: 1 the whole, 2 the half."""
        return len(self._waiting) > MOST_WAITING // part or self._waiting_bytes > MOST_WAITING_BYTES // part
