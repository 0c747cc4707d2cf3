"""Heartbeats: what is told, by whom, and for how long it is believed."""

from __future__ import annotations

import redis

from inference.dispatch import heartbeats, keys
from inference.messages import Heartbeat
from signalbox import store
from tests.heartbeats import make_heartbeat
from tests.inference.dispatch.conftest import MODEL


def heartbeat(worker: str, sent_at: float = 1000.0) -> Heartbeat:
    return make_heartbeat(sent_at, worker=worker, model=MODEL, decoding=1, counters={"ticks": 5.0})


async def test_every_living_workers_last_word_is_told(valkey: redis.Redis) -> None:
    assert heartbeats.heartbeats(valkey) == []
    for beat in (heartbeat("b"), heartbeat("a", 1000.0), heartbeat("a", 1001.0)):
        heartbeats.beat(valkey, beat)
    expected = [heartbeat("a", 1001.0), heartbeat("b")]
    assert heartbeats.heartbeats(valkey) == expected
    client = store.async_client()
    assert await heartbeats.aheartbeats(client) == expected
    await client.aclose()


def test_a_heartbeat_ends_by_itself(valkey: redis.Redis) -> None:
    heartbeats.beat(valkey, heartbeat("a"))
    assert 0 < valkey.pttl(keys.heartbeat("a")) <= heartbeats.HEARTBEAT_TTL_S * 1000
    valkey.delete(keys.heartbeat("a"))
    assert heartbeats.heartbeats(valkey) == []


def test_a_worker_that_stops_in_order_is_gone_at_once(valkey: redis.Redis) -> None:
    heartbeats.beat(valkey, heartbeat("a"))
    heartbeats.retire(valkey, "a")
    assert heartbeats.heartbeats(valkey) == []
    assert valkey.exists(keys.WORKERS) == 0


def test_names_of_long_silent_workers_are_forgotten(valkey: redis.Redis) -> None:
    heartbeats.beat(valkey, heartbeat("old", 1000.0))
    heartbeats.beat(valkey, heartbeat("new", 1000.0 + 2 * 86400))
    assert valkey.zrange(keys.WORKERS, 0, -1) == [b"new"]
