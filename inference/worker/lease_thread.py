"""Keeps leases while ticks progress, off the tick thread: a long chunk costs no lease, a hung model does."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
import structlog

from inference.dispatch import claims
from inference.worker.holdings import Holdings
from inference.worker.metrics import WorkerMetrics
from inference.worker.progress import Progress
from inference.worker.requests import Drop
from inference.worker.threads import Job, JobThread

_log = structlog.get_logger(__name__)

#: Renewals in the life of a lease: one may fail, and the next still come in time.
_RENEWALS = 4
#: Rounds without a stall after which the next one is news: a model whose ticks all take too long would fill the log.
_CALM_ROUNDS = 10 * _RENEWALS
_REMEDY = "make the model's prefill chunks smaller, or SIGNALBOX_LEASE_SECONDS larger"


class LeaseRenewal:
    """One round of renewal."""

    def __init__(
        self,
        client: redis.Redis,
        worker: str,
        lease_s: float,
        holdings: Holdings,
        progress: Progress,
        metrics: WorkerMetrics,
        ask: Callable[[Drop], object],
    ) -> None:
        self._client = client
        self._worker = worker
        self._lease_s = lease_s
        self._holdings = holdings
        self._progress = progress
        self._metrics = metrics
        self._ask = ask
        self._calm_rounds = _CALM_ROUNDS
        self._warned = False
        #: What was told to be lost, with its epoch, and is not let go of yet: the tick that has it may take long.
        self._told = set[tuple[str, int]]()

    def __call__(self) -> None:
        """Renew everything held, and have dropped what turns out to be another's."""
        if self._stalls():
            return
        epochs, asked_at = self._holdings.epochs(), time.monotonic()
        lost = claims.renew(self._client, self._worker, epochs, self._lease_s)
        self._holdings.renewed({key: epoch for key, epoch in epochs.items() if key not in lost}, asked_at)
        # What has ended is let go of by its settlement, perhaps just now: that is no loss.
        dropped = {key: epochs[key] for key in lost if self._holdings.runs(key, epochs[key])}
        untold = dropped.items() - self._told
        self._told = set(dropped.items())
        if untold:
            self._metrics.leases_lost.add(len(untold))
            _log.warning("leases_lost", generations=sorted(key for key, _ in untold))
        if dropped:
            self._ask(Drop(dropped))

    def _stalls(self) -> bool:
        """Whether no tick has finished for the length of a lease: others may take over then."""
        age_s = self._progress.age_s
        stalled = age_s > self._lease_s
        if stalled:
            if self._calm_rounds >= _CALM_ROUNDS:
                _log.error("ticks_stalled", seconds=round(age_s, 1), lease_s=self._lease_s, remedy=_REMEDY)
        elif age_s > self._lease_s / 2 and not self._warned:
            self._warned = True
            _log.warning(
                "tick_takes_half_a_lease",
                seconds=round(age_s, 1),
                lease_s=self._lease_s,
                remedy=_REMEDY,
            )
        self._calm_rounds = 0 if stalled else self._calm_rounds + 1
        return stalled


def lease_thread(renewal: LeaseRenewal, lease_s: float) -> JobThread:
    """The thread that renews."""
    return JobThread("leases", [Job("renew_leases", lease_s / _RENEWALS, renewal)])
