"""Settles what has ended, then lets go of it: off the tick thread, until it succeeds. Reports runs beside that."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import redis
import structlog
from django import db

from inference.dispatch import claims
from inference.messages import End
from inference.models import RunOutcome, Worker
from inference.runs import RunRecord, write
from inference.settlement import settle
from inference.worker.backoff import Backoff
from inference.worker.holdings import Holdings
from inference.worker.metrics import WorkerMetrics
from inference.worker.threads import AWAY, WorkerThread

_log = structlog.get_logger(__name__)

_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 5.0
#: Attempts to report a run that ended without settlement. Its row is for people to look at: nothing depends on it.
_REPORTS: Final = 5


def _backoff() -> Backoff:
    return Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)


@dataclass(slots=True)
class Ended:
    """A generation whose end is in its log.

    ``charged_tokens``: what fair share charged for it at the claim. ``first_token_at``: Unix seconds. ``run``: None if
    an earlier run had written the end already.
    """

    generation: str
    epoch: int
    end: End
    charged_tokens: int
    first_token_at: float | None = None
    run: RunRecord | None = None
    backoff: Backoff = field(default_factory=_backoff)
    failed: bool = False

    @property
    def unused_tokens(self) -> int:
        usage = self.end.usage
        return self.charged_tokens - usage.prompt_tokens - usage.completion_tokens


@dataclass(slots=True)
class _Report:
    """A run that ended without settlement."""

    run: RunRecord
    backoff: Backoff = field(default_factory=_backoff)
    attempts: int = 0


class SettlementThread(WorkerThread):
    """One ended generation at a time: settle, acknowledge, release.

    What fails is tried again for as long as the generation is this worker's, while others go on. Of ``worker`` are
    the runs that it writes.
    """

    def __init__(
        self, client: redis.Redis, holdings: Holdings, metrics: WorkerMetrics, worker: Worker | None = None
    ) -> None:
        super().__init__("settlement")
        self._client = client
        self._holdings = holdings
        self._metrics = metrics
        self._worker = worker
        self._waiting: list[tuple[float, int, Ended | _Report]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._unfinished = 0

    def add(self, ended: Ended) -> None:
        """Settle it soon."""
        with self._changed:
            self._unfinished += 1
            self._wait(0.0, ended)

    def report(self, run: RunRecord) -> None:
        """Write soon what a run was that ended without settlement. After a few attempts it is let go."""
        with self._changed:
            self._unfinished += 1
            self._wait(0.0, _Report(run))

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is settled and reported. False: something is not, after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unfinished, timeout_s)

    def stop(self) -> None:
        super().stop()
        with self._changed:
            self._changed.notify_all()

    def work(self) -> None:
        while (item := self._next()) is not None:
            try:
                if isinstance(item, Ended):
                    self._settle(item)
                else:
                    write(replace(item.run, worker=self._worker))
            except Exception as error:  # noqa: BLE001 (whatever it is, the others must not wait for it)
                db.connections.close_all()
                if isinstance(item, Ended):
                    self._retry(item, error)
                else:
                    self._report_again(item, error)
            else:
                if isinstance(item, Ended):
                    self._let_go(item)
                self._done()

    def _settle(self, ended: Ended) -> None:
        run = replace(ended.run or _settling(ended), worker=self._worker)
        if not self._holdings.holds(ended.generation, ended.epoch):
            self.report(run)
            return
        settle(UUID(ended.generation), ended.epoch, ended.end, first_token_at=ended.first_token_at, run=run)
        claims.acknowledge(self._client, ended.generation, ended.epoch, ended.unused_tokens)
        self._metrics.settlements.add()

    def _let_go(self, ended: Ended) -> None:
        self._holdings.release(ended.generation, ended.epoch)
        if ended.failed:
            _log.info("settled_after_retries", generation=ended.generation)

    def _done(self) -> None:
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

    def _report_again(self, report: _Report, error: Exception) -> None:
        report.attempts += 1
        if report.attempts < _REPORTS:
            with self._changed:
                self._wait(report.backoff.delay(), report)
            return
        _log.warning(
            "run_not_reported",
            generation=report.run.generation.hex,
            epoch=report.run.epoch,
            outcome=report.run.outcome.value,
            error=str(error),
            exc_info=None if isinstance(error, AWAY) else error,
        )
        self._done()

    def _wait(self, delay_s: float, item: Ended | _Report) -> None:
        heapq.heappush(self._waiting, (time.monotonic() + delay_s, next(self._numbers), item))
        self._changed.notify_all()

    def _next(self) -> Ended | _Report | None:
        with self._changed:
            while not self._stopped.is_set():
                due = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if due is not None and due <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(due)
        return None


def _settling(ended: Ended) -> RunRecord:
    """The run that only settled what an earlier one had ended."""
    now = time.time()
    return RunRecord(
        generation=UUID(ended.generation),
        epoch=ended.epoch,
        claimed_at=now,
        ended_at=now,
        outcome=RunOutcome.SETTLED,
    )
