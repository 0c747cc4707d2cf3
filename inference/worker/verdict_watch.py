"""Keeps the worker's verdict on speculation and the stored one the same."""

from __future__ import annotations

from collections import deque
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
        """``batch_cost`` is asked on the tick thread, which settles a verdict. ``apply`` is called with the verdict of
        the pairing in ``settings`` whenever it is another than before."""
        self._model_id = model_id
        self._hardware = hardware
        self._settings = settings
        self._batch_cost = batch_cost
        self._apply = apply
        self._settled: deque[tuple[tuple[str, int], Measured]] = deque()
        self._known: tuple[tuple[str, int], Verdict | None] | None = None

    def settled(self, settings: SpeculationSettings, verdict: Verdict) -> None:
        """The worker has measured this with these settings. For the tick thread."""
        self._settled.append((settings.pairing, Measured(verdict=verdict, batch_cost=self._batch_cost())))

    def __call__(self) -> None:
        """Store what was measured, then read what is stored. What cannot be stored now is stored the next time."""
        while self._settled:
            self._record(*self._settled[0])
            self._settled.popleft()
        pairing = self._settings().pairing
        stored = self._stored(pairing)
        if (pairing, stored) != self._known:
            self._known = (pairing, stored)
            self._apply(stored)

    def _record(self, pairing: tuple[str, int], measured: Measured) -> None:
        drafter, draft_tokens = pairing
        speculation_verdicts.record(
            model_id=self._model_id,
            drafter=drafter,
            hardware=self._hardware,
            draft_tokens=draft_tokens,
            measured=measured,
        )
        _log.info(
            "speculation_measured",
            drafter=drafter,
            draft_tokens=draft_tokens,
            verdict=measured.verdict.outcome.value,
            speedup=round(measured.verdict.speedup, 3),
        )

    def _stored(self, pairing: tuple[str, int]) -> Verdict | None:
        drafter, draft_tokens = pairing
        measured = speculation_verdicts.verdict_of(
            model_id=self._model_id, drafter=drafter, hardware=self._hardware, draft_tokens=draft_tokens
        )
        return None if measured is None else measured.verdict
