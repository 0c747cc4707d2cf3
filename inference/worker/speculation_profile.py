"""Whether this worker's pairing of model and drafter pays: measured on the generations that speculate, then settled."""

from __future__ import annotations

from collections.abc import Callable

from inference.scheduler_settings import SpeculationSettings
from inference.scheduling.speculation import (
    DeclineReason,
    Sample,
    SpeculationMode,
    Verdict,
    declined,
    judge,
)


class SpeculationProfile:
    """What was measured, and what follows from it. Belongs to the tick thread.

    While there is no verdict, each generation that holds the slot is timed; ``settled`` is told the verdict that comes
    of it, and the settings that it holds for. A verdict that is known from before settles it at once.
    """

    def __init__(
        self, settings: SpeculationSettings, settled: Callable[[SpeculationSettings, Verdict], object]
    ) -> None:
        self.verdict: Verdict | None = None
        self._settings = settings
        self._settled = settled
        self._running: dict[str, Sample] = {}
        #: Who was looked at for long enough, and runs on.
        self._done: set[str] = set()
        self._complete: list[Sample] = []

    @property
    def samples(self) -> int:
        """Generations that were timed since the profile began."""
        return len(self._complete)

    @property
    def state(self) -> str:
        """One word for what decides: the operator, a verdict, or neither yet."""
        if self._settings.mode is not SpeculationMode.MEASURED:
            return f"forced_{self._settings.mode.value}"
        return "profiling" if self.verdict is None else "settled"

    def reconfigure(self, settings: SpeculationSettings) -> None:
        """Go by these settings. What was measured with another drafter or draft length says nothing about them."""
        earlier, self._settings = self._settings, settings
        if settings.pairing != earlier.pairing:
            self.rule(None)

    def rule(self, verdict: Verdict | None) -> None:
        """Go by this verdict; with None it is to be measured, from the beginning."""
        if verdict is not None and verdict == self.verdict:
            return
        self.verdict = verdict
        self._running.clear()
        self._done.clear()
        self._complete.clear()

    def declined(self, *, decoding_rows: int, sharing: int, batch_cost: float) -> DeclineReason | None:
        """Why a generation should not speculate beside ``decoding_rows``; see ``scheduling.speculation.declined``."""
        return declined(
            self._settings.mode,
            self.verdict,
            speculate_undecided=self._settings.speculate_undecided,
            decoding_rows=decoding_rows,
            sharing=sharing,
            batch_cost=batch_cost,
        )

    def wants_probe(self, key: str) -> bool:
        """Whether the next round of this generation is to be run without drafts, for comparison."""
        return self._profiling and key not in self._done and self._running.get(key, Sample()).probing

    def ran(self, key: str, ms: float, accepted: int, proposed: int) -> None:
        """A round of this generation took so long; it was a probe if one was wanted."""
        if not self._profiling or key in self._done:
            return
        sample = self._running.get(key, Sample())
        sample = sample.probed(ms) if sample.probing else sample.ran(ms, accepted, proposed)
        self._running[key] = sample
        if sample.full:
            self._done.add(key)
            self._take(self._running.pop(key))

    def left(self, key: str) -> None:
        """This generation speculates no more."""
        self._done.discard(key)
        sample = self._running.pop(key, None)
        if sample is not None:
            self._take(sample)

    def _take(self, sample: Sample) -> None:
        if not sample.complete or not self._profiling:
            return
        self._complete.append(sample)
        verdict = judge(self._complete)
        if verdict is not None:
            self.verdict = verdict
            self._running.clear()
            self._settled(self._settings, verdict)

    @property
    def _profiling(self) -> bool:
        return self._settings.mode is SpeculationMode.MEASURED and self.verdict is None
