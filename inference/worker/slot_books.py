"""What the speculative slot does, for others to see: metrics, the runs' timelines and the live scheduler page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from inference.messages import SlotHolder, SlotSnapshot, SlotWaiter
from inference.models import DrafterKind
from inference.scheduler_settings import SpeculationSettings
from inference.scheduling.slot import Holder, RingEntry, SlotState
from inference.scheduling.speculation import DeclineReason
from inference.worker.metrics import WorkerMetrics
from inference.worker.sequences import RunningSequence
from inference.worker.speculation_profile import SpeculationProfile

if TYPE_CHECKING:
    from inference.engine.engine import RoundResult
    from inference.engine.speculative.drafter_handle import DrafterHandle

#: Tenants whose grants a snapshot tells.
_TENANTS: Final = 16
#: Of what a drafter failed of, this much is told: a heartbeat stays small.
_FAULT_CHARACTERS: Final = 500


class SlotBooks:
    """Counts what it is told, and decides nothing. Belongs to the tick thread."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._grants: Counter[str] = Counter()
        self._drafted = self._accepted = self._draft_length = self._rotations = 0

    # What happens

    def declined(self, sequence: RunningSequence, reason: DeclineReason) -> None:
        """It was offered the slot and decodes classically."""
        self._metrics.declines(reason, sequence.task.lane).add()

    def waits(self, sequence: RunningSequence) -> None:
        """It has joined the ring, and has produced nothing."""
        sequence.timeline.slot_waits(time.monotonic())

    def granted(self, sequence: RunningSequence, *, rotated: bool) -> None:
        """It holds the slot; ``rotated``: whoever held it before waits for it again."""
        lane = self._metrics.slot(sequence.task.lane)
        if rotated:
            self._rotations += 1
            lane.rotations.add()
        self._grants[sequence.task.tenant] += 1
        lane.grants.add()
        sequence.timeline.slot_granted(time.monotonic())

    def ran(self, sequence: RunningSequence, result: RoundResult, next_length: int) -> None:
        """It ran a round; in its next one at most ``next_length`` tokens are drafted."""
        self._metrics.slot(sequence.task.lane).rounds.add()
        self._draft_length = next_length
        self._metrics.draft_length.set(next_length)
        self._metrics.draft_seconds.add(result.draft_ms / 1000)
        self._metrics.verify_seconds.add(result.verify_ms / 1000)
        sequence.timeline.slot_round()

    def kept(self, sequence: RunningSequence, proposed: int, accepted: int) -> None:
        """Of the ``proposed`` drafted tokens of its round, ``accepted`` became part of its answer."""
        lane = self._metrics.slot(sequence.task.lane)
        lane.proposed.add(proposed)
        lane.accepted.add(accepted)
        lane.rejected.add(proposed - accepted)
        self._drafted += proposed
        self._accepted += accepted
        sequence.timeline.drafted(proposed, accepted)

    def parked(self, sequence: RunningSequence) -> None:
        """Its grant has expired."""
        self._metrics.slot(sequence.task.lane).parks.add()
        sequence.timeline.slot_parked(time.monotonic())

    def left(self, sequence: RunningSequence, reason: DeclineReason) -> None:
        """It held the slot or waited for it, and decodes classically from here on."""
        self._metrics.declines(reason, sequence.task.lane).add()
        sequence.timeline.slot_left(time.monotonic(), reason)

    # How things stand

    def configured(self, settings: SpeculationSettings) -> None:
        """These settings hold from now on."""
        self._metrics.speculation_on.set(float(settings.drafts))
        self._metrics.slot_grant_rounds.set(settings.grant_rounds)

    def stand(self, state: SlotState, profile: SpeculationProfile, drafter_reloads: int) -> None:
        """How things stand after a tick."""
        self._metrics.slot_waiting.set(len(state.ring))
        self._metrics.speculation_gain.set(0.0 if profile.verdict is None else profile.verdict.speedup)
        self._metrics.drafter_reloads.set(drafter_reloads)

    def snapshot(
        self,
        state: SlotState,
        sequences: Mapping[str, RunningSequence],
        settings: SpeculationSettings,
        profile: SpeculationProfile,
        *,
        drafter: DrafterHandle,
        prompt_next: bool,
    ) -> SlotSnapshot | None:
        """The slot as it is now, with the ``sequences`` that are there; None if the model is to have no drafter."""
        if settings.drafter is DrafterKind.NONE:
            return None
        verdict, holder = profile.verdict, state.holder
        return SlotSnapshot(
            holder=None if holder is None else _holder(holder, sequences[holder.key]),
            waiting=[_waiter(entry, sequences[entry.key]) for entry in state.ring],
            rotations=self._rotations,
            grants=dict(self._grants.most_common(_TENANTS)),
            proposed=self._drafted,
            accepted=self._accepted,
            drafter=_drafter_key(drafter.name, settings),
            drafter_fault=str(drafter.fault or "")[:_FAULT_CHARACTERS],
            draft_length=self._draft_length,
            state=profile.state,
            verdict="" if verdict is None else verdict.outcome.value,
            speedup=None if verdict is None else verdict.speedup,
            samples=profile.samples,
            prompt_next=prompt_next,
            speculate_undecided=settings.speculate_undecided,
        )


def _drafter_key(name: str | None, settings: SpeculationSettings) -> str:
    """What drafts, whatever is set; the setting says which draft model it is."""
    return settings.drafter_key if name == settings.drafter.value else name or ""


def _holder(holder: Holder, sequence: RunningSequence) -> SlotHolder:
    return SlotHolder(**_shown(sequence), slices=holder.slices, budget=holder.budget)


def _waiter(entry: RingEntry, sequence: RunningSequence) -> SlotWaiter:
    return SlotWaiter(**_shown(sequence), skips=entry.skips, started=entry.started)


def _shown(sequence: RunningSequence) -> dict[str, Any]:
    """What is told of both."""
    return {
        "generation": sequence.key,
        "tenant": sequence.task.tenant,
        "lane": sequence.task.lane,
        "tokens": len(sequence.emitted),
        "max_tokens": sequence.task.max_tokens,
    }
