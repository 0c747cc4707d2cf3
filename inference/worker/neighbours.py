"""The other workers of this one's model: how long a sequence they have memory for."""

from __future__ import annotations

from collections.abc import Iterable

import redis

from inference.dispatch.heartbeats import heartbeats
from inference.messages import Heartbeat
from inference.worker.kv_memory import KvMemory


class Neighbours:
    """Looks at the heartbeats, and tells the ``memory`` of this ``worker`` what the others of its ``model`` can hold.

    A worker that has not ticked for ``lease_s`` seconds claims nothing that could be waited for. Raises
    ``redis.RedisError`` where Valkey cannot be asked; what was told before then holds.
    """

    def __init__(
        self, client: redis.Redis, worker: str, model: str, lease_s: float, memory: KvMemory
    ) -> None:
        self._client = client
        self._worker = worker
        self._model = model
        self._lease_s = lease_s
        self._memory = memory

    def __call__(self) -> None:
        others = (
            beat
            for beat in heartbeats(self._client)
            if beat.model == self._model and beat.worker != self._worker
        )
        self._memory.longest_elsewhere = longest_of(others, self._lease_s)


def longest_of(beats: Iterable[Heartbeat], lease_s: float) -> int:
    """Tokens of the longest sequence that one of these workers can take on; 0 if none takes on anything."""
    return max(
        (
            beat.longest_sequence or 0
            for beat in beats
            if beat.ready and not beat.draining and beat.sent_at - beat.progressed_at <= lease_s
        ),
        default=0,
    )
