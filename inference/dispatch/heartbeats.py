"""Heartbeats: what each worker says of itself about once a second, gone a few seconds after its last word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import redis
import redis.asyncio

from inference.dispatch import functions, keys
from inference.messages import Heartbeat, encode, heartbeat_decoder

#: How long a heartbeat is believed, in seconds.
HEARTBEAT_TTL_S = 5.0
#: How long a silent worker's name is kept in the index: long, as it is compared across machines' clocks.
_INDEX_TTL_S = 86400.0


def beat(client: redis.Redis, heartbeat: Heartbeat) -> None:
    """Tell that the worker lives, and how it fares."""
    functions.beat(
        client,
        heartbeat.worker,
        encode(heartbeat),
        heartbeat.sent_at,
        round(HEARTBEAT_TTL_S * 1000),
        _INDEX_TTL_S,
    )


def retire(client: redis.Redis, worker: str) -> None:
    """Take back the heartbeat of a worker that stops in order."""
    with client.pipeline() as pipeline:
        pipeline.delete(keys.heartbeat(worker))
        pipeline.zrem(keys.WORKERS, worker)
        pipeline.execute()


def heartbeats(client: redis.Redis) -> list[Heartbeat]:
    """The last word of every living worker, by name."""
    workers = cast(list[bytes], client.zrange(keys.WORKERS, 0, -1))
    return _decode(cast(list[bytes | None], client.mget(_heartbeat_keys(workers)))) if workers else []


async def aheartbeats(client: redis.asyncio.Redis) -> list[Heartbeat]:
    """``heartbeats`` for event loops."""
    workers = cast(list[bytes], await client.zrange(keys.WORKERS, 0, -1))
    return _decode(cast(list[bytes | None], await client.mget(_heartbeat_keys(workers)))) if workers else []


def _heartbeat_keys(workers: Sequence[bytes]) -> list[str]:
    return [keys.heartbeat(worker.decode()) for worker in workers]


def _decode(beats: Sequence[bytes | None]) -> list[Heartbeat]:
    living = [heartbeat_decoder.decode(beat) for beat in beats if beat is not None]
    return sorted(living, key=lambda heartbeat: heartbeat.worker)
