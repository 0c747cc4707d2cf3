"""A load generator that costs next to nothing: on two cores a busy client would be measured with the server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class StreamTiming:
    """One streamed chat completion, as its client saw it; times are ``perf_counter`` seconds."""

    sent: float
    #: When each event that carried text arrived.
    arrivals: tuple[float, ...]
    completion_tokens: int
    text: str

    @property
    def time_to_first_token(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def ended(self) -> float:
        return self.arrivals[-1]


async def stream_chat(
    port: int, model: str, messages: list[dict[str, str]], max_tokens: int, api_key: str = "none"
) -> StreamTiming:
    """Send one streamed, greedy chat completion to 127.0.0.1 and read it to its end.

    Raises ``RuntimeError`` with the server's answer when that is not a complete event stream.
    """
    body = json.dumps(
        {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    sent = time.perf_counter()
    writer.write(head + body)
    lines: list[tuple[float, bytes]] = []
    try:
        while line := await reader.readline():
            if line.startswith(b"data: {") or not lines:
                lines.append((time.perf_counter(), line))
    finally:
        writer.close()
    if b" 200 " not in lines[0][1]:
        raise RuntimeError(f"port {port} answered {lines[0][1].decode().strip()}")
    return _timing(sent, lines[1:])


def _timing(sent: float, lines: list[tuple[float, bytes]]) -> StreamTiming:
    arrivals: list[float] = []
    text: list[str] = []
    completion_tokens = 0
    for arrived, line in lines:
        event = json.loads(line.removeprefix(b"data: "))
        if event.get("usage"):
            completion_tokens = event["usage"]["completion_tokens"]
        for choice in event.get("choices", ()):
            if piece := choice["delta"].get("content"):
                arrivals.append(arrived)
                text.append(piece)
    if not arrivals or not completion_tokens:
        raise RuntimeError(f"the stream ended without text or usage; its last event was {lines[-1:]}")
    return StreamTiming(sent, tuple(arrivals), completion_tokens, "".join(text))
