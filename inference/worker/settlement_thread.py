"""Settles what has ended, then lets go of it: off the tick thread, until it succeeds."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import redis
import structlog
from django import db

from inference.dispatch import claims
from inference.messages import End
from inference.settlement import settle
from inference.worker.backoff import Backoff
from inference.worker.holdings import Holdings
from inference.worker.metrics import WorkerMetrics
from inference.worker.threads import AWAY, WorkerThread

_log = structlog.get_logger(__name__)

_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 5.0


@dataclass(slots=True)
class Ended:
    """A generation whose end is in its log.

    ``charged_tokens``: what fair share charged for it at the claim. ``first_token_at``: Unix seconds.
    """

    generation: str
    epoch: int
    end: End
    charged_tokens: int
    first_token_at: float | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S))
    failed: bool = False

    @property
    def unused_tokens(self) -> int:
        usage = self.end.usage
        return self.charged_tokens - usage.prompt_tokens - usage.completion_tokens


class SettlementThread(WorkerThread):
    """One ended generation at a time: settle, acknowledge, release.

    What fails is tried again for as long as the generation is this worker's, while others go on.
    """

    def __init__(self, client: redis.Redis, holdings: Holdings, metrics: WorkerMetrics) -> None:
        super().__init__("settlement")
        self._client = client
        self._holdings = holdings
        self._metrics = metrics
        self._waiting: list[tuple[float, int, Ended]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._unfinished = 0

    def add(self, ended: Ended) -> None:
        """Settle it soon."""
        with self._changed:
            self._unfinished += 1
            self._wait(0.0, ended)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is settled. False: something is not, after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unfinished, timeout_s)

    def stop(self) -> None:
        super().stop()
        with self._changed:
            self._changed.notify_all()

    def work(self) -> None:
        while (ended := self._next()) is not None:
            try:
                self._settle(ended)
            except Exception as error:  # noqa: BLE001 (whatever it is, the others must not wait for it)
                db.connections.close_all()
                self._retry(ended, error)
            else:
                self._done(ended)

    def _settle(self, ended: Ended) -> None:
        if not self._holdings.holds(ended.generation, ended.epoch):
            return
        settle(UUID(ended.generation), ended.epoch, ended.end, first_token_at=ended.first_token_at)
        claims.acknowledge(self._client, ended.generation, ended.epoch, ended.unused_tokens)
        self._metrics.settlements.add()

    def _done(self, ended: Ended) -> None:
        self._holdings.release(ended.generation, ended.epoch)
        if ended.failed:
            _log.info("settled_after_retries", generation=ended.generation)
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()

    def _retry(self, ended: Ended, error: Exception) -> None:
        self._metrics.settlement_retries.add()
        if not ended.failed:
            ended.failed = True
            _log.warning(
                "settlement_failing",
                generation=ended.generation,
                error=str(error),
                exc_info=None if isinstance(error, AWAY) else error,
            )
        with self._changed:
            self._wait(ended.backoff.delay(), ended)

    def _wait(self, delay_s: float, ended: Ended) -> None:
        heapq.heappush(self._waiting, (time.monotonic() + delay_s, next(self._numbers), ended))
        self._changed.notify_all()

    def _next(self) -> Ended | None:
        with self._changed:
            while not self._stopped.is_set():
                due = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if due is not None and due <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(due)
        return None
