"""One HTTP connection's edges: heads that are too large or malformed, and clients that close only their sending side.

Twisted closes on a head it does not take, mostly without a word. Here the client reads why, in the API's own shape.

The end of what a client sends looks alike whether the client is gone or only has no more to say. So it is asked: with
an interim answer, or a comment within a stream of events, both of which clients skip. The system of one that is gone
answers with a reset, at once; one that waits gets its answer.
"""

from __future__ import annotations

import json
import logging
import math
import socket
from enum import StrEnum
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import connectionDone
from twisted.web.http import HTTPChannel
from zope.interface import implementer

from signalbox import web_metrics
from signalbox.logging import ACCESS_LOG

access_log = logging.getLogger(ACCESS_LOG)

#: Bytes of a request's line and headers together.
HEAD_LIMIT_BYTES: Final = 16 * 1024
HEADER_COUNT_LIMIT: Final = 500

#: How long a refused client may take to read why, while what it still sends is dropped. Closed at once, with bytes
#: unread, the connection would be reset, and the answer lost on its way.
_LINGER_S: Final = 2.0
#: How often it is looked whether a client that was asked has turned out to be gone.
_LOOK_S: Final = 0.02
#: What a client that cannot be asked is given: enough for what is answered at once, and little of a generation is made
#: for nobody. Time in which something is on its way to it does not count: that asks as well.
_PATIENCE_S: Final = 2.0
_EVENT_STREAM: Final = b"text/event-stream"
_COMMENT: Final = b": half-closed\n"


class HeadRefusal(StrEnum):
    """Why a request's head was not taken: the API's ``code``."""

    MALFORMED = "malformed_request"
    REQUEST_LINE_TOO_LONG = "request_line_too_long"
    HEADERS_TOO_LARGE = "headers_too_large"


_ANSWERS: Final = {
    HeadRefusal.MALFORMED: (400, b"Bad Request", "This is no well-formed HTTP/1.1 request."),
    HeadRefusal.REQUEST_LINE_TOO_LONG: (
        414,
        b"URI Too Long",
        f"The request's first line is longer than {HEAD_LIMIT_BYTES} bytes, the most that is accepted.",
    ),
    HeadRefusal.HEADERS_TOO_LARGE: (
        431,
        b"Request Header Fields Too Large",
        f"The request's headers are more than {HEAD_LIMIT_BYTES} bytes or {HEADER_COUNT_LIMIT} lines, the most that "
        "is accepted.",
    ),
}


def unsent_bytes(transport: Any) -> int:
    """What was written to a connection and not yet taken by the system. Twisted keeps it in these three places."""
    return int(len(transport.dataBuffer) - transport.offset + transport._tempDataLen)


def error_body(code: str, message: str) -> bytes:
    """An error of the server itself, in the API's shape."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return json.dumps({"error": error}).encode()


@implementer(IHalfCloseableProtocol)
class HttpChannel(HTTPChannel):
    """Twisted's HTTP/1.1 connection, which says why it refuses and tells who is gone from who has sent all it will."""

    transport: Any

    MAX_LENGTH = HEAD_LIMIT_BYTES
    totalHeadersSize = HEAD_LIMIT_BYTES
    maxHeaders = HEADER_COUNT_LIMIT

    def __init__(self) -> None:
        super().__init__()
        self._refused = False
        self._all_sent = False
        #: The call that comes next: the end of a refused connection, or the next look at one that was asked.
        self._later: Any = None

    def dataReceived(self, data: bytes) -> None:
        if not self._refused:
            super().dataReceived(data)

    def lineLengthExceeded(self, line: bytes) -> None:
        self._refuse(self._too_large())

    def _respondToBadRequestAndDisconnect(self) -> None:
        too_many = self._receivedHeaderCount > self.maxHeaders
        if too_many or self._receivedHeaderSize > self.totalHeadersSize:
            self._refuse(self._too_large())
        else:
            self._refuse(HeadRefusal.MALFORMED)

    def _too_large(self) -> HeadRefusal:
        # Set from the first line to the end of the request.
        if hasattr(self, "_command"):
            return HeadRefusal.HEADERS_TOO_LARGE
        return HeadRefusal.REQUEST_LINE_TOO_LONG

    def _refuse(self, refusal: HeadRefusal) -> None:
        if self._refused:
            return
        self._refused = True
        self.clearLineBuffer()
        self.setTimeout(None)
        status, reason, message = _ANSWERS[refusal]
        body = error_body(refusal, message)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (status, reason, len(body), body)
        )
        self._networkProducer.unregisterProducer()
        self.transport.loseWriteConnection()
        self._later = self.callLater(_LINGER_S, self.transport.abortConnection)
        method = getattr(self, "_command", b"-").decode("ascii", "replace")
        web_metrics.count_request(method, status, 0.0)
        access_log.info("%s refused %s %s", self.transport.getPeer().host, status, refusal.value)

    def readConnectionLost(self) -> None:
        """The client sends nothing more."""
        self._all_sent = True
        if self._refused or not self._handlingRequest:
            self.transport.loseConnection()
        elif self._later is None:
            self._ask(self.requests[0])

    def writeConnectionLost(self) -> None:
        """Only a refused connection closes its own side alone, and waits for the client's."""

    def requestDone(self, request: Any) -> None:
        self._look_no_more()
        super().requestDone(request)
        if self._all_sent and not self._handlingRequest:
            self.loseConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self._look_no_more()
        super().connectionLost(reason)

    def _ask(self, request: Any) -> None:
        """Send what a client skips, and look for what its system says to that."""
        patience = math.inf
        if request.startedWriting:
            content_type = request.responseHeaders.getRawHeaders(b"content-type", [b""])[0]
            if content_type.startswith(_EVENT_STREAM):
                request.write(_COMMENT)
            else:
                patience = _PATIENCE_S
        elif request.clientproto == b"HTTP/1.1":
            self._send100Continue()
        else:
            # HTTP/1.0 has no interim answers.
            patience = _PATIENCE_S
        self._look(patience)

    def _look(self, patience: float) -> None:
        # A connection that neither reads nor writes is not watched, so its reset has to be looked for.
        if patience <= 0 or self.transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._later = None
            self.transport.abortConnection()
            return
        waited = 0.0 if unsent_bytes(self.transport) else _LOOK_S
        self._later = self.callLater(_LOOK_S, partial(self._look, patience - waited))

    def _look_no_more(self) -> None:
        if self._later is not None and self._later.active():
            self._later.cancel()
        self._later = None
