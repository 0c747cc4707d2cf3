"""A client of the whole ASGI application, middleware and guard included, that can hang up at any moment.

Requests run on the test's own event loop: no server, no sockets, and a disconnect exactly where the test wants it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from signalbox.asgi import application
from signalbox.connections import SCOPE_KEY, Connection, ServerClose

ANSWER_S = 60.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        body = self.json()
        assert set(body) == {"error"}, body
        error = body["error"]
        assert set(error) - {"limit"} == {"message", "type", "param", "code"}, error
        return dict(error)


@dataclass
class Exchange:
    """One request under way: what the application sent so far, and the client's end of the line."""

    connection: Connection = field(default_factory=Connection)
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    sent: bytes = b""
    finished: bool = False
    _to_application: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        else:
            self.sent += message.get("body", b"")
            if not message.get("more_body", False):
                self.finished = True
                self.hang_up()
        self._news.set()

    def hang_up(self, *, closed_by_server: ServerClose | None = None) -> None:
        """What an application is told when its connection ends, whoever ended it."""
        self.connection.closed_by_server = closed_by_server
        self._to_application.put_nowait({"type": "http.disconnect"})

    async def kill(self) -> None:
        """End the application as a server does that is itself ended."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, text: bytes) -> None:
        """Return when the answer holds ``text``."""
        while text not in self.sent:
            assert not self.finished, f"the answer ended without {text!r}: {self.sent!r}"
            await self.news()

    async def news(self) -> None:
        """Return when the application has sent something more."""
        async with asyncio.timeout(ANSWER_S):
            self._news.clear()
            await self._news.wait()

    async def end(self) -> Answer:
        """The whole answer, when the application has cleared everything away."""
        assert self._task is not None
        async with asyncio.timeout(ANSWER_S):
            await self._task
        return Answer(self.status or 0, self.headers, self.sent)


class AsgiClient:
    def __init__(self, key: str | None = None) -> None:
        self.key = key

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        exchange: Exchange | None = None,
    ) -> AsyncIterator[Exchange]:
        """Start a request; on leaving, whatever of it still runs is ended. ``exchange``: a client of another kind."""
        exchange = exchange or Exchange()
        content = raw if raw is not None else json.dumps(body).encode() if body is not None else b""
        sent_headers = {"host": "localhost"}
        if self.key is not None:
            sent_headers["authorization"] = f"Bearer {self.key}"
        if raw is not None or body is not None:
            sent_headers["content-type"] = "application/json"
            sent_headers["content-length"] = str(len(content))
        sent_headers.update({name.lower(): value for name, value in (headers or {}).items()})
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(n.encode(), v.encode("latin1")) for n, v in sent_headers.items() if v],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
            SCOPE_KEY: exchange.connection,
        }
        exchange._to_application.put_nowait({"type": "http.request", "body": content, "more_body": False})
        exchange._task = asyncio.create_task(application(scope, exchange._to_application.get, exchange.send))
        try:
            yield exchange
        finally:
            if not exchange._task.done():
                await exchange.kill()

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        async with self.open(method, path, body, **options) as exchange:
            return await exchange.end()

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.request("POST", path, body, **options)


def events_of(stream: bytes) -> list[tuple[str | None, str]]:
    """The ``(id, data)`` of each event in a stream; comments are left out."""
    events = []
    for block in stream.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            events.append((fields.get("id"), fields["data"]))
    return events


def comments_of(stream: bytes) -> list[str]:
    return [line[2:] for line in stream.decode().split("\n") if line.startswith(": ")]
