"""Says once a second how the worker fares, hears how the others do, and finds out which of its generations nobody reads
any more."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Final

import redis

from inference.dispatch import heartbeats
from inference.dispatch.presence import AbsenceWatch
from inference.messages import CancelReason, Heartbeat
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvMemory
from inference.worker.loop import TickLoop
from inference.worker.metrics import WorkerMetrics
from inference.worker.neighbours import Neighbours
from inference.worker.progress import Progress
from inference.worker.requests import Cancel
from inference.worker.threads import Job, JobThread

_INTERVAL_S: Final = 1.0


class Pulse:
    """What a worker tells of itself.

    ``ready``: it claims work. ``draining``: it was asked to end. ``slot_bytes``: what its KV memory sets aside for each
    slot.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker: str,
        model: str,
        loop: TickLoop,
        holdings: Holdings,
        progress: Progress,
        metrics: WorkerMetrics,
        memory: KvMemory,
        *,
        slot_bytes: int,
        blas: str,
        device: str,
    ) -> None:
        self.ready = True
        self.draining = False
        self._client = client
        self._worker = worker
        self._model = model
        self._loop = loop
        self._holdings = holdings
        self._progress = progress
        self._metrics = metrics
        self._memory = memory
        self._slot_bytes = slot_bytes
        self._blas = blas
        self._device = device
        self._started_at = time.time()

    def beat(self) -> None:
        """Tell it now."""
        running = list(self._loop.roster)
        decoding = sum(sequence.produces for sequence in running)
        heartbeats.beat(
            self._client,
            Heartbeat(
                worker=self._worker,
                model=self._model,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                started_at=self._started_at,
                sent_at=time.time(),
                progressed_at=self._progress.at,
                ready=self.ready,
                draining=self.draining,
                blas=self._blas,
                device=self._device,
                decoding=decoding,
                prefilling=len(running) - decoding,
                slots=self._holdings.slots,
                counters=self._metrics.counters.snapshot(),
                scheduler=self._loop.board.latest,
                longest_sequence=self._memory.longest_sequence(),
                slot_bytes=self._slot_bytes,
            ),
        )

    def retire(self) -> None:
        """Take the last word back: the worker ends in order."""
        heartbeats.retire(self._client, self._worker)


class DetachedReaders:
    """Ends what nobody has read for the grace period, except what may run unattended."""

    def __init__(
        self, client: redis.Redis, grace_s: float, loop: TickLoop, ask: Callable[[Cancel], object]
    ) -> None:
        self._watch = AbsenceWatch(client, grace_s)
        self._loop = loop
        self._ask = ask

    def __call__(self) -> None:
        attended = [sequence.key for sequence in self._loop.roster if not sequence.task.unattended]
        detached = self._watch.detached(attended)
        if detached:
            self._ask(Cancel(dict.fromkeys(detached, CancelReason.DETACHED)))


def heartbeat_thread(
    pulse: Pulse, neighbours: Neighbours, detached: DetachedReaders, recovered: Callable[[], object]
) -> JobThread:
    """The thread of all three. ``recovered`` is called when Valkey is back after it was away."""
    return JobThread(
        "heartbeat",
        [
            Job("heartbeat", _INTERVAL_S, pulse.beat),
            Job("neighbours", _INTERVAL_S, neighbours),
            Job("detached_readers", _INTERVAL_S, detached),
        ],
        recovered,
    )
