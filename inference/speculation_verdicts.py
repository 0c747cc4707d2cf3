"""Whether speculation pays, as workers have measured it: the one place that writes those rows.

A verdict holds for a pairing: a model, what drafts for it, the hardware, and the draft length. A pairing without a
verdict is measured by the next worker that runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts import audit
from accounts.principal import Actor
from inference.models import DrafterKind, LanguageModel, SpeculationVerdict
from inference.scheduling.speculation import Outcome, Verdict

_MOST_HARDWARE_CHARACTERS: Final = 200


def drafter_key(drafter: DrafterKind, draft_model: str | None) -> str:
    """What a pairing has for its drafter: the kind, and the name of a draft model."""
    return f"{drafter.value}:{draft_model}" if drafter is DrafterKind.DRAFT_MODEL else drafter.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured for a pairing. ``batch_cost``: None while no two rows were decoded together."""

    verdict: Verdict
    batch_cost: float | None


def record(
    *, model_id: UUID, drafter: str, hardware: str, draft_tokens: int, measured: Measured
) -> SpeculationVerdict:
    """Keep what a worker has measured for a pairing, instead of an earlier verdict. Two may; the later one counts.

    ``drafter`` is a ``drafter_key``. Raises ``IntegrityError`` for figures that cannot be.
    """
    verdict = measured.verdict
    row, _ = SpeculationVerdict.objects.update_or_create(
        language_model_id=model_id,
        drafter=drafter,
        hardware=hardware[:_MOST_HARDWARE_CHARACTERS],
        draft_tokens=draft_tokens,
        defaults={
            "verdict": verdict.outcome.value,
            "speedup": verdict.speedup,
            "classic_ms": verdict.classic_ms,
            "round_ms": verdict.round_ms,
            "accepted_per_round": verdict.accepted_per_round,
            "samples": verdict.samples,
            "batch_cost": measured.batch_cost,
            "measured_at": timezone.now(),
        },
    )
    return row


def verdict_of(*, model_id: UUID, drafter: str, hardware: str, draft_tokens: int) -> Measured | None:
    """What was measured for a pairing; None: it is to be measured."""
    row = SpeculationVerdict.objects.filter(
        language_model_id=model_id,
        drafter=drafter,
        hardware=hardware[:_MOST_HARDWARE_CHARACTERS],
        draft_tokens=draft_tokens,
    ).first()
    if row is None:
        return None
    verdict = Verdict(
        outcome=Outcome(row.verdict),
        speedup=row.speedup,
        classic_ms=row.classic_ms,
        round_ms=row.round_ms,
        accepted_per_round=row.accepted_per_round,
        samples=row.samples,
    )
    return Measured(verdict=verdict, batch_cost=row.batch_cost)


def profile_again(*, model: LanguageModel, actor: Actor) -> int:
    """Forget what was measured for a model, so that its workers measure anew; returns how many verdicts there were.

    Workers notice within seconds. Where there is none, nothing is changed or recorded.
    """
    with transaction.atomic():
        model = LanguageModel.objects.select_for_update().get(id=model.id)
        forgotten = [_in_words(verdict) for verdict in model.speculation_verdicts.all()]
        if forgotten:
            model.speculation_verdicts.all().delete()
            audit.record(
                actor, "language_model.profile_again", model, {"verdicts": forgotten}, {"verdicts": []}
            )
    return len(forgotten)


def forget_weights(model: LanguageModel) -> None:
    """Forget what was measured with a model's former weights, in the transaction that registers its new ones."""
    drafts = drafter_key(DrafterKind.DRAFT_MODEL, model.name)
    SpeculationVerdict.objects.filter(Q(language_model=model) | Q(drafter=drafts)).delete()


def _in_words(verdict: SpeculationVerdict) -> str:
    """For the audit, which knows no fractions."""
    return (
        f"{verdict.drafter}, {verdict.draft_tokens} tokens, {verdict.hardware}: {verdict.verdict}, "
        f"{verdict.speedup:.2f} times"
    )
