"""Sweeps that heal and end what nobody else would, and what the operator changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

import structlog
from django.utils import timezone

from inference import recovery
from inference.models import LanguageModel, Worker
from inference.scheduling.tick import PrefillLimits
from inference.worker.holdings import Holdings
from inference.worker.requests import Reconfigure
from inference.worker.threads import Job, JobThread

_log = structlog.get_logger(__name__)

#: The name of the job that puts accepted generations back into the queue.
SWEEP: Final = "sweep"
#: Access ends within a second of its being revoked.
_REVOKED_S: Final = 0.5
_SETTINGS_S: Final = 5.0
_LAST_SEEN_S: Final = 10.0


def limits_of(model: LanguageModel) -> PrefillLimits:
    """The model's scheduler settings as the tick's rule takes them."""
    return PrefillLimits(chunk_tokens=model.prefill_chunk_tokens, interval=model.prefill_interval)


class SchedulerSettings:
    """Follows the operator's settings of the worker's model."""

    def __init__(
        self, model: LanguageModel, holdings: Holdings, ask: Callable[[Reconfigure], object]
    ) -> None:
        self._model_id = model.id
        self._holdings = holdings
        self._ask = ask
        self._known = (model.slots, limits_of(model))

    def __call__(self) -> None:
        """Read them, and apply what has changed: limits between two ticks, slots as they become free."""
        model = LanguageModel.objects.get(id=self._model_id)
        current = slots, limits = model.slots, limits_of(model)
        if current == self._known:
            return
        self._known = current
        self._holdings.resize(slots)
        self._ask(Reconfigure(limits))
        _log.info(
            "scheduler_settings_changed",
            slots=slots,
            prefill_chunk_tokens=limits.chunk_tokens,
            prefill_interval=limits.interval,
        )


def housekeeping_thread(worker_id: UUID, settings: SchedulerSettings, sweep_s: float) -> JobThread:
    """The thread of all this. The first round is at once: a worker that starts sweeps first."""
    workers = Worker.objects.filter(id=worker_id)
    return JobThread(
        "housekeeping",
        [
            Job(SWEEP, sweep_s, recovery.sweep),
            Job("cancel_revoked", _REVOKED_S, recovery.cancel_revoked),
            Job("expire_overdue", sweep_s, recovery.expire_overdue),
            Job("settings", _SETTINGS_S, settings),
            Job("last_seen", _LAST_SEEN_S, lambda: workers.update(last_seen_at=timezone.now())),
        ],
    )
