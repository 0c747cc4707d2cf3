"""Publishing a tick, through outages of Valkey that are shorter than a lease."""

from __future__ import annotations

import time
from collections.abc import Sequence

import redis
import structlog

from inference.dispatch.publishing import PublishOutcome, publish
from inference.messages import Publication
from inference.worker.backoff import Backoff
from inference.worker.holdings import Holdings
from inference.worker.metrics import WorkerMetrics
from inference.worker.progress import Progress

_log = structlog.get_logger(__name__)

#: Longest pause between two attempts: streams wait for it.
_LONGEST_PAUSE_S = 0.25


class TickPublisher:
    """Publishes for the tick thread, which waits: nothing is produced that cannot be delivered."""

    def __init__(
        self,
        client: redis.Redis,
        worker: str,
        holdings: Holdings,
        metrics: WorkerMetrics,
        progress: Progress,
    ) -> None:
        self._client = client
        self._worker = worker
        self._holdings = holdings
        self._metrics = metrics
        self._progress = progress

    def publish(self, publications: Sequence[tuple[str, int, Publication]]) -> PublishOutcome:
        """Publish until Valkey has answered, or every lease concerned has lapsed: those are then refused."""
        started = time.monotonic()
        backoff = Backoff(0.02, _LONGEST_PAUSE_S)
        left, lapsed = list(publications), set[str]()
        failed = False
        while True:
            try:
                outcome = publish(self._client, self._worker, left)
            except redis.RedisError as error:
                if not failed:
                    _log.warning("publishing_waits_for_valkey", publications=len(left), error=str(error))
                failed = True
                self._metrics.publish_retries.add()
            else:
                self._metrics.publish_seconds.add(time.monotonic() - started)
                return PublishOutcome(outcome.refused | lapsed, outcome.cancelled)
            lapsed |= {key for key, epoch, _ in left if not self._holdings.leased(key, epoch)}
            left = [entry for entry in left if entry[0] not in lapsed]
            if not left:
                return PublishOutcome(lapsed, {})
            self._progress.mark()
            time.sleep(backoff.delay())
