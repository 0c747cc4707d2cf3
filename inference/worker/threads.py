"""What the worker's threads beside the tick thread have in common."""

from __future__ import annotations

import contextvars
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis
import structlog
from django import db

_log = structlog.get_logger(__name__)

#: What a store raises while it is away. Everything else is our fault.
AWAY = (redis.RedisError, db.Error)


class WorkerThread(threading.Thread, ABC):
    """Works until ``stop``, with the log fields of the thread that made it.

    A daemon: it never keeps a process alive that has nothing else to do.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._log_fields = contextvars.copy_context()
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            self._log_fields.run(self.work)
        finally:
            db.connections.close_all()

    def stop(self) -> None:
        """Ask it to end; ``join`` waits for that."""
        self._stopped.set()

    @abstractmethod
    def work(self) -> None:
        """Return soon after ``self._stopped`` is set."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something that is done every ``interval_s`` seconds."""

    name: str
    interval_s: float
    do: Callable[[], object]


class JobThread(WorkerThread):
    """Does a few short jobs, each at its own interval, one at a time.

    A job that fails is tried again at its next turn: none ends the thread. While a store is away that is said
    once, and once more when it is back; then ``recovered`` is called.
    """

    def __init__(
        self, name: str, jobs: Sequence[Job], recovered: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(name)
        self._jobs = {job.name: job for job in jobs}
        self._due = dict.fromkeys(self._jobs, 0.0)
        self._failing: set[str] = set()
        self._recovered = recovered
        self._hurried = threading.Event()

    def hurry(self, name: str) -> None:
        """Do the job now, whatever its interval. For any thread."""
        self._due[name] = 0.0
        self._hurried.set()

    def stop(self) -> None:
        super().stop()
        self._hurried.set()

    def work(self) -> None:
        while not self._stopped.is_set():
            self._hurried.clear()
            for name, job in self._jobs.items():
                if self._due[name] <= time.monotonic() and not self._stopped.is_set():
                    self._due[name] = time.monotonic() + job.interval_s
                    self._try(job)
            self._hurried.wait(max(0.0, min(self._due.values()) - time.monotonic()))

    def _try(self, job: Job) -> None:
        try:
            job.do()
        except AWAY as error:
            db.connections.close_all()
            if job.name not in self._failing:
                self._failing.add(job.name)
                _log.warning("job_failing", job=job.name, error=str(error), retry_s=job.interval_s)
        except Exception:  # noqa: BLE001 (a bug in one job must not end the others)
            _log.exception("job_failed", job=job.name, retry_s=job.interval_s)
        else:
            if job.name in self._failing:
                self._failing.discard(job.name)
                _log.info("job_recovered", job=job.name)
                self._recovered()
