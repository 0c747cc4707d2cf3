"""Valkey clients, made in one place.

Only ``inference.dispatch``, and in ``accounts`` ``rates``, ``log_in_counters`` and ``sole_passes``, work with them.
"""

from __future__ import annotations

from functools import cache

import redis
import redis.asyncio
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from signalbox.configuration import Configuration, configuration

#: Longest that a client waits for an answer. Blocking reads must block for less.
SOCKET_TIMEOUT_S = 5.0
#: Longest ``BLOCK`` of a blocking read, in milliseconds.
BLOCK_MS = 4000

#: Connections of one client. Each thread that waits for an answer has one, and hundreds of requests may come at once:
#: the library's own limit of 100 would refuse those that are over it.
MOST_CONNECTIONS = 2000

_RETRIES = 3


def url(settings: Configuration | None = None) -> str:
    """Where Valkey is: the operator's own, or the embedded server's socket."""
    settings = settings or configuration()
    return settings.valkey_url or f"unix://{settings.valkey_socket}"


def celery_url(settings: Configuration | None = None) -> str:
    """The same address in the words of Celery and Channels, which know no ``unix://``."""
    address = url(settings)
    return address.replace("unix://", "redis+socket://", 1) if address.startswith("unix://") else address


def sync_client(
    settings: Configuration | None = None, *, timeout_s: float = SOCKET_TIMEOUT_S, retries: int = _RETRIES
) -> redis.Redis:
    """A client with its own connection pool, for threads. Answers are bytes.

    It waits ``timeout_s`` for each answer, and asks ``retries`` times more.
    """
    return redis.Redis.from_url(
        url(settings),
        max_connections=MOST_CONNECTIONS,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        health_check_interval=30,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), retries),
    )


def async_client(settings: Configuration | None = None) -> redis.asyncio.Redis:
    """A client with its own connection pool, for one event loop. Answers are bytes."""
    return redis.asyncio.Redis.from_url(
        url(settings),
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        health_check_interval=30,
    )


@cache
def shared_client() -> redis.Redis:
    """This process's thread-safe client. Not for use across a fork."""
    return sync_client()
