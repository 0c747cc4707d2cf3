"""Many requests at the same instant, dealt out to several web processes in turn."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Longest wait for one answer's head.
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Ask:
    """A request for ``max_tokens`` after a prompt of ``prompt_tokens``, with somebody's key."""

    key: str
    model: str
    prompt_tokens: int
    max_tokens: int
    service_tier: str | None = None

    @property
    def tokens(self) -> int:
        """What it may use at worst."""
        return self.prompt_tokens + self.max_tokens

    def wire(self) -> bytes:
        """As HTTP. Resumable, so that hanging up after the answer's head ends nothing."""
        fields = {
            "model": self.model,
            # Token ids, so that it is known how many there are.
            "prompt": [5] * self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"resumable": True},
        }
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        body = json.dumps(fields).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


@dataclass(frozen=True)
class Answer:
    """What came back: ``error`` where it was refused, else the lane that was given; headers by lower-case names."""

    ask: Ask
    port: int
    status: int
    lane: str | None
    error: dict[str, Any] | None
    headers: dict[str, str]

    @property
    def code(self) -> str:
        """``accepted``, or why not."""
        return "accepted" if self.error is None else str(self.error["code"])


def stampede(ports: Sequence[int], asks: Sequence[Ask]) -> list[Answer]:
    """Send all ``asks`` at once, the first to the first port, and so on around; their answers, in order.

    Each request is sent but for its last byte; when all are there, the last bytes follow.
    """
    connections: list[socket.socket] = []
    try:
        for number, ask in enumerate(asks):
            connection = socket.create_connection(("127.0.0.1", ports[number % len(ports)]), PATIENCE_S)
            connections.append(connection)
            connection.sendall(ask.wire()[:-1])
        for connection, ask in zip(connections, asks, strict=True):
            connection.sendall(ask.wire()[-1:])
        return [
            _answer(connection, ask, ports[number % len(ports)])
            for number, (connection, ask) in enumerate(zip(connections, asks, strict=True))
        ]
    finally:
        for connection in connections:
            connection.close()


def _answer(connection: socket.socket, ask: Ask, port: int) -> Answer:
    with http.client.HTTPResponse(connection, method="POST") as response:
        response.begin()
        error = None if response.status == 200 else json.loads(response.read())["error"]
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(ask, port, response.status, headers.get("x-signalbox-lane"), error, headers)
