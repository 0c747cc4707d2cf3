"""Sweeps that heal and end what nobody else would, and what the operator changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final
from uuid import UUID

import structlog
from django.utils import timezone

from inference import recovery
from inference.models import LanguageModel, Worker
from inference.scheduler_settings import SchedulerSettings, settings_of
from inference.worker.published_watch import PublishedWatch
from inference.worker.threads import Job, JobThread
from inference.worker.verdict_watch import VerdictWatch

_log = structlog.get_logger(__name__)

#: The name of the job that puts accepted generations back into the queue.
SWEEP: Final = "sweep"
#: Access ends within a second of its being revoked.
_REVOKED_S: Final = 0.5
#: Waits end about when they should. Celery ends them too, for when no worker lives (``inference.tasks``).
_WAITS_S: Final = 1.0
_SETTINGS_S: Final = 5.0
_LAST_SEEN_S: Final = 10.0


class SettingsWatch:
    """Follows the operator's settings of the worker's model.

    ``apply`` is called with settings that differ from the last, and the last, between two readings; if it fails, with
    the same again after the next.
    """

    def __init__(
        self,
        model_id: UUID,
        known: SchedulerSettings,
        apply: Callable[[SchedulerSettings, SchedulerSettings], object],
    ) -> None:
        self.current = known
        self._model_id = model_id
        self._apply = apply

    def __call__(self) -> None:
        """Read them, and apply what has changed."""
        settings = settings_of(LanguageModel.objects.get(id=self._model_id))
        if settings == self.current:
            return
        self._apply(settings, self.current)
        self.current = settings
        _log.info("scheduler_settings_changed", **asdict(settings))


def housekeeping_thread(
    worker_id: UUID,
    settings: SettingsWatch,
    published: PublishedWatch,
    verdicts: VerdictWatch,
    save_pools: Callable[[], object],
    follow_drafter: Callable[[], object],
    tell_capacity: Callable[[], object],
    sweep_s: float,
) -> JobThread:
    """The thread of all this. The first round is at once: a worker that starts sweeps first.

    ``follow_drafter``: leave to the caches what it does not hold. ``tell_capacity``: how long a sequence may be is told
    anew when another worker has come or gone.
    """
    workers = Worker.objects.filter(id=worker_id)
    return JobThread(
        "housekeeping",
        [
            Job(SWEEP, sweep_s, recovery.sweep),
            Job("cancel_revoked", _REVOKED_S, recovery.cancel_revoked),
            Job("expire_overdue", sweep_s, recovery.expire_overdue),
            Job("end_waits", _WAITS_S, recovery.end_waits),
            Job("settings", _SETTINGS_S, settings),
            Job("published_prefixes", _SETTINGS_S, published),
            Job("verdicts", _SETTINGS_S, verdicts),
            Job("pools", sweep_s, save_pools),
            Job("drafter_memory", _SETTINGS_S, follow_drafter),
            Job("capacity", _SETTINGS_S, tell_capacity),
            Job("last_seen", _LAST_SEEN_S, lambda: workers.update(last_seen_at=timezone.now())),
        ],
    )
