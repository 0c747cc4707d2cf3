"""What a tick has to say, and what follows from its having been heard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from inference.dispatch.publishing import PublishOutcome
from inference.messages import End, GenerationTask, LogEntry, PrefillProgress, Publication
from inference.models import RunOutcome
from inference.runs import RunRecord
from inference.worker.holdings import Holdings
from inference.worker.metrics import WorkerMetrics
from inference.worker.publisher import TickPublisher
from inference.worker.sequences import RunningSequence
from inference.worker.settlement_thread import Ended, SettlementThread


class Outbox:
    """Collects publications. An end is passed on to settlement only once its log has it."""

    def __init__(
        self,
        publisher: TickPublisher,
        settlements: SettlementThread,
        holdings: Holdings,
        metrics: WorkerMetrics,
    ) -> None:
        self._publisher = publisher
        self._settlements = settlements
        self._holdings = holdings
        self._metrics = metrics
        self._publications: list[tuple[str, int, Publication]] = []
        self._ended: list[tuple[GenerationTask, Ended]] = []

    def __bool__(self) -> bool:
        return bool(self._publications)

    def progress(self, sequence: RunningSequence, done: int, total: int) -> None:
        self._publications.append((sequence.key, sequence.epoch, PrefillProgress(done=done, total=total)))

    def send(self, sequence: RunningSequence, entries: Iterable[LogEntry]) -> None:
        """Append to the sequence's log."""
        for entry in entries:
            if isinstance(entry, End):
                self.end(
                    sequence.task,
                    entry,
                    sequence.timeline.ended(entry),
                    first_token_at=sequence.first_token_at,
                )
            else:
                self._publications.append((sequence.key, sequence.epoch, entry))

    def end(
        self, task: GenerationTask, end: End, run: RunRecord, *, first_token_at: float | None = None
    ) -> None:
        """Append the last entry of a log, with which the run is over."""
        self._publications.append((task.generation, end.epoch, end))
        self._ended.append((task, Ended(task.generation, end.epoch, end, task.cost, first_token_at, run)))

    def report(self, run: RunRecord) -> None:
        """Keep the report of a run that is over without an end. It is not waited for."""
        self._settlements.report(run)

    def publish(self) -> PublishOutcome:
        """Publish what was collected, or with nothing collected ask for cancels."""
        publications, self._publications = self._publications, []
        ended, self._ended = self._ended, []
        outcome = self._publisher.publish(publications)
        self._metrics.publish_refusals.add(len(outcome.refused))
        for task, one in ended:
            if one.generation in outcome.refused:
                self._holdings.release(one.generation, one.epoch)
                if one.run is not None:
                    self.report(replace(one.run, outcome=RunOutcome.LOST))
                continue
            self._holdings.vacate(one.generation, one.epoch)
            self._settlements.add(one)
            self._metrics.generations(one.end.state, task.lane).add()
            lane = self._metrics.lane(task.lane)
            lane.prompt_tokens.add(one.end.usage.prompt_tokens)
            lane.cached_tokens.add(one.end.usage.cached_tokens)
        return outcome
