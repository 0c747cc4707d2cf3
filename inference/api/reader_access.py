"""Readers of somebody else's generation, whose own access may end while they read.

What an access has begun is ended by the workers' sweep (``inference.recovery.cancel_revoked``). That sweep looks at the
generation's owner; whoever else follows it is looked after here: one look at the database for all readers of
the process, and none while there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary

import structlog
from channels.db import database_sync_to_async

from accounts.principal import Principal
from accounts.revocation import ended_among
from inference.api.errors import ApiError, ErrorCode
from inference.api.streaming import Publications
from inference.messages import Publication

#: Reading ends within a second of the access that it was opened with.
LOOK_S: Final = 0.5

_log = structlog.get_logger(__name__)


class ReaderRevoked(ApiError):
    """The reader's own access ended. The generation goes on for its owner."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.ACCESS_REVOKED,
            "Reading was ended because the API key, session or membership that it was opened with was revoked.",
        )


class WatchedPublications:
    """What a generation publishes, for as long as its reader may read. Raises ``ReaderRevoked`` from then on."""

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self._revoked = False
        self._waiting: asyncio.Timeout | None = None

    def revoke(self) -> None:
        """End the reading, a wait for the next publication included."""
        self._revoked = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def __aiter__(self) -> AsyncIterator[Publication]:
        while True:
            try:
                publication = await self.next(LOOK_S)
            except StopAsyncIteration:
                return
            if publication is not None:
                yield publication

    async def next(self, timeout_s: float) -> Publication | None:
        try:
            async with asyncio.timeout(None) as self._waiting:
                publication = None if self._revoked else await self._publications.next(timeout_s)
        except TimeoutError:
            publication = None
        finally:
            self._waiting = None
        if self._revoked:
            raise ReaderRevoked
        return publication


class ReaderAccess:
    """The readers of one event loop, and the task that looks after them while there are any."""

    def __init__(self) -> None:
        self._readers: dict[WatchedPublications, Principal] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def readers(self) -> int:
        """How many are looked after."""
        return len(self._readers)

    @contextmanager
    def watched(self, principal: Principal, publications: Publications) -> Iterator[WatchedPublications]:
        """``publications`` for as long as ``principal`` holds, looked after inside of the context."""
        reader = WatchedPublications(publications)
        self._readers[reader] = principal
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on())
        try:
            yield reader
        finally:
            del self._readers[reader]
            if not self._readers and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look_on(self) -> None:
        look: Callable[[Collection[Principal]], Awaitable[set[Principal]]] = database_sync_to_async(
            ended_among, thread_sensitive=False
        )
        failing = False
        while True:
            try:
                ended = await look(set(self._readers.values()))
            except Exception:  # noqa: BLE001 — logged whole
                # Nobody's access ends because the database is away, and the looking goes on whatever happens.
                if not failing:
                    _log.exception("reader_access_unknown", readers=len(self._readers), retry_s=LOOK_S)
                failing = True
            else:
                failing = False
                for reader, principal in self._readers.items():
                    if principal in ended:
                        reader.revoke()
            await asyncio.sleep(LOOK_S)


_instances: WeakKeyDictionary[asyncio.AbstractEventLoop, ReaderAccess] = WeakKeyDictionary()


def reader_access() -> ReaderAccess:
    """The running event loop's: one in a web process."""
    return _instances.setdefault(asyncio.get_running_loop(), ReaderAccess())
