"""Keeps the worker's verdict on speculation and the stored one the same."""

from __future__ import annotations

import queue
from collections.abc import Callable
from uuid import UUID

import structlog

from inference import speculation_verdicts
from inference.scheduler_settings import SpeculationSettings
from inference.scheduling.speculation import Verdict
from inference.speculation_verdicts import Measured

_log = structlog.get_logger(__name__)


class VerdictWatch:
    """Stores what the worker has measured for its pairing, and tells it what is stored.

    A verdict that another worker has measured, or that somebody has had forgotten, reaches this worker so.
    """

    def __init__(
        self,
        model_id: UUID,
        hardware: str,
        settings: Callable[[], SpeculationSettings],
        batch_cost: Callable[[], float | None],
        apply: Callable[[Verdict | None], object],
    ) -> None:
        """``apply`` is called with the verdict of the pairing in ``settings`` whenever it is another than before."""
        self._model_id = model_id
        self._hardware = hardware
        self._settings = settings
        self._batch_cost = batch_cost
        self._apply = apply
        self._settled: queue.SimpleQueue[tuple[SpeculationSettings, Verdict]] = queue.SimpleQueue()
        self._known: tuple[tuple[str, int], Verdict | None] | None = None

    def settled(self, settings: SpeculationSettings, verdict: Verdict) -> None:
        """The worker has measured this with these settings. For any thread."""
        self._settled.put((settings, verdict))

    def __call__(self) -> None:
        """Store what was measured, then read what is stored."""
        while not self._settled.empty():
            settings, verdict = self._settled.get_nowait()
            self._record(settings, verdict)
        pairing = self._settings().pairing
        stored = self._stored(pairing)
        if (pairing, stored) != self._known:
            self._known = (pairing, stored)
            self._apply(stored)

    def _record(self, settings: SpeculationSettings, verdict: Verdict) -> None:
        drafter, draft_tokens = settings.pairing
        speculation_verdicts.record(
            model_id=self._model_id,
            drafter=drafter,
            hardware=self._hardware,
            draft_tokens=draft_tokens,
            measured=Measured(verdict=verdict, batch_cost=self._batch_cost()),
        )
        _log.info(
            "speculation_measured",
            drafter=drafter,
            draft_tokens=draft_tokens,
            verdict=verdict.outcome.value,
            speedup=round(verdict.speedup, 3),
        )

    def _stored(self, pairing: tuple[str, int]) -> Verdict | None:
        drafter, draft_tokens = pairing
        measured = speculation_verdicts.verdict_of(
            model_id=self._model_id, drafter=drafter, hardware=self._hardware, draft_tokens=draft_tokens
        )
        return None if measured is None else measured.verdict
