"""The web server: Daphne, with connections bounded both ways, an orderly end and access logs that hold no secrets.

Daphne writes whatever the application sends into the connection's buffer, so that a client that never reads
grows the process without end. Here ``send`` returns only when most of what was sent has left, and a connection
that takes nothing for a while, or holds more than ``unsent_limit``, is cut. Its generation goes on: the client
resumes from the last event it has seen.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from daphne.endpoints import build_endpoint_description_strings
from daphne.http_protocol import WebRequest
from daphne.server import Server as DaphneServer
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import reactor as _reactor

from signalbox import secret_files, web_metrics
from signalbox.configuration import Configuration
from signalbox.connections import DRAIN_S, SCOPE_KEY, Connection, ServerClose
from signalbox.http_channel import HttpChannel, error_body, unsent_bytes
from signalbox.logging import ACCESS_LOG
from signalbox.socket_input import BoundedWebSocket

# Twisted decides at run time what this is, so its type says nothing.
reactor: Any = _reactor

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

access_log = logging.getLogger(ACCESS_LOG)
log = logging.getLogger(__name__)

#: Bytes not yet taken by the client above which ``send`` waits.
PUSH_BACK_BYTES = 256 * 1024
#: Bytes not yet taken above which nothing more is accepted for a connection, and it is cut.
UNSENT_LIMIT_BYTES = 1024 * 1024
#: How long a connection with unsent bytes may take none of them.
STALLED_S = 30.0

_POLL_S = 0.05
#: Connections that may wait to be taken while the loop does something else: Twisted's 50 are less than come at once.
_BACKLOG = 1024
#: WebSocket close code 1012: the service restarts, come back.
_SERVICE_RESTART = 1012
#: Asked every few seconds by machines; not worth a line each.
_QUIET_PATHS = ("/health/", "/metrics")


def _transport(protocol: Any) -> Any:
    """The connection under an HTTP request or a WebSocket, or ``None`` when it is gone."""
    if isinstance(protocol, WebRequest):
        return protocol.channel.transport if protocol.channel else None
    return protocol.transport


class LimitedRequest(WebRequest):  # type: ignore[misc]
    """An HTTP request whose body is bounded, whose root path is the server's, and whose end is logged."""

    _body_bytes = 0
    _logged = False
    _request_id = "-"

    def handleContentChunk(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes <= self.server.max_body_bytes:
            super().handleContentChunk(data)

    def process(self) -> Any:
        # Daphne would take the application's root path from any client's header.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        if self._body_bytes > self.server.max_body_bytes:
            self.request_start = time.time()
            self._refuse_body()
            return None
        offered = self.requestHeaders.getRawHeaders(b"sec-websocket-protocol", [])
        if not all(value.isascii() for value in offered):
            # Daphne would fail on it.
            self.request_start = time.time()
            self.basic_error(400, b"Bad Request", "Sec-WebSocket-Protocol must be ASCII.")
            return None
        return super().process()

    def _refuse_body(self) -> None:
        message = (
            f"The request body is larger than {self.server.max_body_bytes} bytes, the most that is accepted."
        )
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        self.handle_reply({"type": "http.response.start", "status": 413, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": error_body("request_too_large", message)})

    def handle_reply(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            ids = [value for name, value in message.get("headers", []) if name.lower() == b"x-request-id"]
            self._request_id = ids[0].decode("latin1") if ids else "-"
        super().handle_reply(message)

    def finish(self) -> None:
        super().finish()
        self._log_end("complete")

    def connectionLost(self, reason: Any) -> None:
        super().connectionLost(reason)
        self._log_end(self.server.reason_closed(self))

    def _log_end(self, end: str) -> None:
        if self._logged or not hasattr(self, "request_start"):
            return
        self._logged = True
        path = self.path.decode("ascii", "replace")
        web_metrics.count_request(self.method.decode("ascii", "replace"), self.code, self.duration())
        access_log.log(
            logging.DEBUG if path.startswith(_QUIET_PATHS) else logging.INFO,
            "%s %s %s %s %d bytes %.0f ms %s %s",
            self.client_addr[0] if self.client_addr else "-",
            self.method.decode("ascii", "replace"),
            path,
            self.code,
            self.sentLength,
            self.duration() * 1000,
            end,
            self._request_id,
        )


class Server(DaphneServer):  # type: ignore[misc]
    """Daphne that pushes back, cuts off who does not read, and drains on SIGTERM and SIGINT."""

    def __init__(
        self,
        application: Any,
        endpoints: list[str],
        *,
        max_body_bytes: int,
        unsent_limit: int = UNSENT_LIMIT_BYTES,
        push_back: int = PUSH_BACK_BYTES,
        stalled_s: float = STALLED_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        super().__init__(
            _telling_what_it_takes(application),
            endpoints=[f"{endpoint}:backlog={_BACKLOG}" for endpoint in endpoints],
            signal_handlers=False,
            action_logger=_log_socket,
            websocket_timeout=-1,
            server_name="",
        )
        self.max_body_bytes = max_body_bytes
        self.unsent_limit = unsent_limit
        self.push_back = push_back
        self.stalled_s = stalled_s
        self.drain_s = drain_s
        #: Why it could not listen, if it could not.
        self.failure: str | None = None
        self._ports: list[Any] = []
        self._drain_task: asyncio.Task[None] | None = None
        self.connections: dict[Any, dict[str, Any]] = {}

    def run(self) -> None:
        """Serve until a signal has drained the server, or it could not listen (``failure`` says why)."""
        reactor.callWhenRunning(self._started)
        web_metrics.CONNECTIONS_OPEN.set_function(lambda: len(self._under_way()))
        super().run()

    def _started(self) -> None:
        self.http_factory.protocol = HttpChannel
        self.http_factory.buildProtocol = self._build_http_protocol
        self.ws_factory.protocol = BoundedWebSocket
        loop = asyncio.get_event_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _build_http_protocol(self, address: Any) -> Any:
        protocol = type(self.http_factory).buildProtocol(self.http_factory, address)
        protocol.requestFactory = LimitedRequest
        return protocol

    def listen_success(self, port: Any) -> None:
        self._ports.append(port)
        super().listen_success(port)

    def listen_error(self, failure: Any) -> None:
        self.failure = failure.getErrorMessage()
        self.stop()

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        connection = Connection(taken=getattr(protocol, "taken", None))
        self.connections[protocol]["connection"] = connection
        return super().create_application(protocol, {**scope, SCOPE_KEY: connection})

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        transport = _transport(protocol)
        if transport is not None and unsent_bytes(transport) > self.unsent_limit:
            self._cut(protocol, ServerClose.SLOW_READER)
            return
        await super().handle_reply(protocol, message)
        if transport is not None:
            await self._pushed_back(protocol, transport)

    async def _pushed_back(self, protocol: Any, transport: Any) -> None:
        """Return when the client has taken enough of what was sent, or is gone; cut it when it takes nothing."""
        least = unsent_bytes(transport)
        progressed = time.monotonic()
        while (unsent := unsent_bytes(transport)) > self.push_back and not transport.disconnected:
            if unsent < least:
                least, progressed = unsent, time.monotonic()
            elif time.monotonic() - progressed > self.stalled_s:
                self._cut(protocol, ServerClose.SLOW_READER)
                return
            await asyncio.sleep(_POLL_S)

    def _cut(self, protocol: Any, reason: ServerClose) -> None:
        """End a connection at once, and let its application know that the client did not."""
        details = self.connections.get(protocol, {})
        connection: Connection | None = details.get("connection")
        transport = _transport(protocol)
        if transport is None or "disconnected" in details:
            return
        if connection is not None:
            connection.closed_by_server = reason
        web_metrics.CONNECTIONS_CLOSED.labels(reason=reason.value).inc()
        transport.abortConnection()

    def reason_closed(self, protocol: Any) -> str:
        """Who closed a connection, for the log."""
        connection: Connection | None = self.connections.get(protocol, {}).get("connection")
        if connection is None or connection.closed_by_server is None:
            return "client_closed"
        return connection.closed_by_server.value

    def _signalled(self) -> None:
        if self._drain_task is not None:
            log.warning("second signal: stopping without waiting for answers under way")
            reactor.stop()
            return
        self._drain_task = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Take no new connections, let answers under way end, then cut what is left and stop."""
        try:
            for port in self._ports:
                port.stopListening()
            for protocol in self._under_way():
                if isinstance(protocol, WebSocketProtocol) and protocol.state == protocol.STATE_OPEN:
                    self.connections[protocol]["connection"].closed_by_server = ServerClose.DRAINING
                    # Autobahn's sendClose() knows of no restart.
                    protocol.sendCloseFrame(code=_SERVICE_RESTART)
            deadline = time.monotonic() + self.drain_s
            while self._under_way() and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_S)
            left = self._under_way()
            if left:
                log.info("drained; %d answers are still under way, their clients resume", len(left))
            for protocol in left:
                self._cut(protocol, ServerClose.DRAINING)
            # The applications learn of the cut before the loop ends with them.
            await asyncio.sleep(_POLL_S)
        finally:
            reactor.stop()

    def _under_way(self) -> list[Any]:
        return [
            protocol
            for protocol, details in self.connections.items()
            if "disconnected" not in details and "application_instance" in details
        ]

    def kill_all_applications(self) -> Any:
        # Daphne's own looks for an application on connections that have none any more.
        self.connections = {p: d for p, d in self.connections.items() if "application_instance" in d}
        return super().kill_all_applications()


def _telling_what_it_takes(application: Application) -> Application:
    """``application``, whose WebSockets learn of every message that it takes."""

    async def telling(scope: dict[str, Any], receive: Any, send: Any) -> None:
        taken = scope[SCOPE_KEY].taken
        if taken is None:
            await application(scope, receive, send)
            return

        async def take() -> Any:
            message = await receive()
            taken(message)
            return message

        await application(scope, take, send)

    return telling


def _log_socket(protocol: str, action: str, details: dict[str, Any]) -> None:
    # HTTP is logged by LimitedRequest, which also knows of answers that never completed.
    if protocol == "websocket" and action != "connecting":
        client = (details["client"] or "-").rsplit(":", 1)[0]
        access_log.info("%s WEBSOCKET %s %s", client, details["path"], action)


def serve(settings: Configuration) -> None:
    """Serve the site until SIGTERM or SIGINT. Exits with one line and status 1 when the port cannot be had."""
    from signalbox.asgi import application

    secret_files.read_or_create("metrics_token")  # there to be copied before anyone is refused without it
    server = Server(
        application,
        build_endpoint_description_strings(host=settings.host, port=settings.port),
        max_body_bytes=settings.max_body_bytes,
    )
    server.run()
    if server.failure:
        sys.exit(f"signalbox web: {server.failure}")
