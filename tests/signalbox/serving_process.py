"""A server process for tests: our server, around an application that sends without end, or takes nothing.

``python -m tests.signalbox.serving_process PORT STALLED_S``; each ended request is told on standard output.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from signalbox.connections import closed_by_server
from signalbox.logging import logging_settings
from signalbox.server import Server

CHUNK = b"x" * 16_384


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """``/endless`` and the socket ``/flood`` send for ever, ``/slow`` ends after two seconds, ``/events`` after three,
    ``/hang`` never; ``/later`` begins after a second, ``/never`` not at all; ``/fault/`` fails; the socket ``/deaf``
    takes no message before the file of its query string is there; other sockets are silent, other pages done at once.
    """
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        if scope["path"] == "/deaf":
            await _deaf(scope, receive, send)
            return
        flood = _flood(send, {"type": "websocket.send", "bytes": CHUNK})
        await _until_disconnected(scope, receive, flood if scope["path"] == "/flood" else asyncio.sleep(3600))
        return
    if scope["path"].startswith("/fault/"):
        raise RuntimeError(scope["path"])
    while (await receive()).get("more_body"):
        pass
    if scope["path"] in ("/later", "/never"):
        wait = asyncio.sleep(1 if scope["path"] == "/later" else 3600)
        if await _until_disconnected(scope, receive, wait):
            return
    headers = [(b"content-type", b"text/event-stream")] if scope["path"] == "/events" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["path"] == "/endless":
        more = {"type": "http.response.body", "body": CHUNK, "more_body": True}
        await _until_disconnected(scope, receive, _flood(send, more))
        return
    if scope["path"] in ("/slow", "/events", "/hang"):
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        seconds = {"/slow": 2, "/events": 3, "/hang": 3600}[scope["path"]]
        if await _until_disconnected(scope, receive, asyncio.sleep(seconds)):
            return
    await send({"type": "http.response.body", "body": b"last"})


async def _deaf(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Take nothing for a while; then tell how many messages and bytes came, and send to whoever may have left."""
    awake = Path(scope["query_string"].decode())
    while not await asyncio.to_thread(awake.exists):
        await asyncio.sleep(0.02)
    messages = size = 0
    while (message := await receive())["type"] == "websocket.receive":
        messages, size = messages + 1, size + len(message["text"])
        if message["text"] == "close":
            await send({"type": "websocket.close"})
            await send({"type": "websocket.send", "text": "too late"})
            break
    print("took", messages, size, flush=True)


async def _flood(send: Any, message: dict[str, Any]) -> None:
    while True:
        await send(message)
        await asyncio.sleep(0)


async def _until_disconnected(scope: dict[str, Any], receive: Any, work: Any) -> bool:
    """Do ``work`` until it ends or the connection does; whether the connection did."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
    gone = leaving.done()
    working.cancel()
    leaving.cancel()
    if gone:
        print("ended", scope["path"], closed_by_server(scope) or "client", flush=True)
    return gone


async def _disconnected(receive: Any) -> None:
    while not (await receive())["type"].endswith("disconnect"):
        pass


def main() -> None:
    logging_settings("INFO", "json")
    server = Server(
        application,
        [f"tcp:port={int(sys.argv[1])}:interface=127.0.0.1"],
        max_body_bytes=1_000_000,
        stalled_s=float(sys.argv[2]),
        drain_s=5.0,
    )
    server.run()
    if server.failure:
        sys.exit(server.failure)


if __name__ == "__main__":
    main()
