"""A load generator that costs next to nothing: on two cores a busy client would be measured with the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class StreamTiming:
    """One streamed chat completion, as its client saw it; times are ``perf_counter`` seconds."""

    sent: float
    #: When each event that carried text arrived.
    arrivals: tuple[float, ...]
    completion_tokens: int
    text: str
    #: Drafted tokens that became part of the answer, and those that did not.
    accepted_tokens: int = 0
    rejected_tokens: int = 0

    @property
    def time_to_first_token(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def ended(self) -> float:
        return self.arrivals[-1]


class OpenStream:
    """A streamed, greedy chat completion from 127.0.0.1 that is under way."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sent = time.perf_counter()
        #: When each event that carried text arrived.
        self.arrivals: list[float] = []
        self.text: list[str] = []
        self.completion_tokens = 0
        self.accepted_tokens = self.rejected_tokens = 0
        self._port = port
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(
        cls,
        port: int,
        model: str,
        messages: list[dict[str, str]],
        max_tokens: int,
        api_key: str = "none",
        tier: str | None = None,
        logit_bias: Mapping[str, float] | None = None,
    ) -> Self:
        """``tier``: a service tier to ask for; None, the key's own. ``logit_bias``: by token, as OpenAI has it."""
        asked: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tier is not None:
            asked["service_tier"] = tier
        if logit_bias is not None:
            asked["logit_bias"] = dict(logit_bias)
        body = json.dumps(asked).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {api_key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        stream = cls(port, *await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
        stream._writer.write(head + body)
        return stream

    async def read(self) -> None:
        """Read to the end, or until ``close``.

        Raises ``RuntimeError`` with the server's answer when that is not an event stream.
        """
        try:
            status = await self._reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"port {self._port} answered {status.decode().strip()}")
            while line := await self._reader.readline():
                if line.startswith(b"data: {"):
                    self._take(time.perf_counter(), line)
        finally:
            self._writer.close()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
        self._reader.feed_eof()

    def timing(self) -> StreamTiming:
        """What was seen, at the end. Raises ``RuntimeError`` where there was no text or no usage."""
        if not self.arrivals or not self.completion_tokens:
            raise RuntimeError(f"the stream from port {self._port} ended without text or usage")
        return StreamTiming(
            self.sent,
            tuple(self.arrivals),
            self.completion_tokens,
            "".join(self.text),
            self.accepted_tokens,
            self.rejected_tokens,
        )

    def _take(self, arrived: float, line: bytes) -> None:
        event = json.loads(line.removeprefix(b"data: "))
        if event.get("usage"):
            self.completion_tokens = event["usage"]["completion_tokens"]
            details = event["usage"].get("completion_tokens_details") or {}
            self.accepted_tokens = details.get("accepted_prediction_tokens") or 0
            self.rejected_tokens = details.get("rejected_prediction_tokens") or 0
        for choice in event.get("choices", ()):
            if piece := choice["delta"].get("content"):
                self.arrivals.append(arrived)
                self.text.append(piece)


async def stream_chat(
    port: int,
    model: str,
    messages: list[dict[str, str]],
    max_tokens: int,
    api_key: str = "none",
    logit_bias: Mapping[str, float] | None = None,
) -> StreamTiming:
    """Send one streamed chat completion and read it to its end. Raises ``RuntimeError`` when it is not complete."""
    stream = await OpenStream.start(port, model, messages, max_tokens, api_key, logit_bias=logit_bias)
    await stream.read()
    return stream.timing()
