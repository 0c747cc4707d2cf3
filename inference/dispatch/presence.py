"""Presence: whether anybody reads a generation.

Whoever delivers a generation's events refreshes a key that expires. A worker watches the keys of what it runs and
cancels what nobody has read for the grace period (never what may run unattended: that is the caller's to leave out).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import redis
import redis.asyncio

from inference.dispatch import functions, keys

#: Longest life of a presence key, in seconds.
_LONGEST_TTL_S = 15.0


def ttl_s(grace_s: float) -> float:
    """How long a reader counts as present after its last refresh: part of the grace period. Refresh thrice as often."""
    return min(_LONGEST_TTL_S, grace_s / 2)


def refresh(client: redis.Redis, generations: Collection[str], grace_s: float) -> None:
    """Say that ``generations`` are being read."""
    functions.attend(client, round(ttl_s(grace_s) * 1000), *generations)


async def arefresh(client: redis.asyncio.Redis, generations: Collection[str], grace_s: float) -> None:
    """``refresh`` for event loops."""
    await functions.attend.acall(client, round(ttl_s(grace_s) * 1000), *generations)


def absent(client: redis.Redis, generations: Collection[str]) -> set[str]:
    """Those of ``generations`` that nobody reads at the moment."""
    asked = list(generations)
    if not asked:
        return set()
    present = client.mget([keys.presence(generation) for generation in asked])
    return {one for one, mark in zip(asked, present, strict=True) if mark is None}


class AbsenceWatch:
    """Tells a worker which of its generations have been without a reader for the grace period.

    The time is counted here, from what was seen with Valkey answering: keys that expire while Valkey is down, or before
    readers have found it again, cost no generation its life.
    """

    def __init__(
        self, client: redis.Redis, grace_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._patience_s = grace_s - ttl_s(grace_s)
        self._clock = clock
        self._since: dict[str, float] = {}

    def detached(self, generations: Collection[str]) -> set[str]:
        """Those of ``generations`` to be cancelled as detached. To be asked about once a second.

        Raises ``redis.RedisError`` when Valkey cannot be reached; all readers are then given the grace period anew.
        """
        try:
            missing = absent(self._client, generations)
        except redis.RedisError:
            self._since.clear()
            raise
        now = self._clock()
        self._since = {one: self._since.get(one, now) for one in missing}
        return {one for one, since in self._since.items() if now - since >= self._patience_s}
