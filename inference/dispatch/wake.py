"""Waking idle workers: enqueueing publishes on the model's channel.

A wake-up is a hint: one that is lost costs the time-out of a wait, nothing else.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import redis

from inference.dispatch import keys


class WakeListener:
    """Hears that something came to wait for a model. For one thread; ``close`` when done."""

    def __init__(self, client: redis.Redis, model: str) -> None:
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._channel = keys.wake_channel(model)
        self._pubsub.subscribe(self._channel)

    def wait(self, timeout_s: float) -> bool:
        """Return early (True) when something came to wait since the last call.

        Raises ``redis.RedisError`` when Valkey cannot be reached; the next call subscribes again.
        """
        woken = self._pubsub.get_message(timeout=timeout_s) is not None
        while woken and self._pubsub.get_message(timeout=0) is not None:
            pass
        return woken

    def close(self) -> None:
        self._pubsub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
