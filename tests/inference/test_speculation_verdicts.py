"""What workers measured of speculation is kept for each pairing until it is to be measured again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from accounts.models import AuditEvent
from inference.models import DrafterKind, LanguageModel, SpeculationRuling, SpeculationVerdict
from inference.scheduling.speculation import Outcome, Verdict
from inference.speculation_verdicts import Measured, drafter_key, profile_again, record, verdict_of
from tests.factories import ACTOR, LanguageModelFactory, SpeculationVerdictFactory

pytestmark = pytest.mark.django_db

MEASURED = Measured(
    verdict=Verdict(
        outcome=Outcome.ENABLED,
        speedup=1.5,
        classic_ms=131.0,
        round_ms=170.0,
        accepted_per_round=0.95,
        samples=4,
    ),
    batch_cost=0.3,
)


@pytest.fixture
def model() -> LanguageModel:
    made: LanguageModel = LanguageModelFactory(name="tiny")
    return made


def pairing(model: LanguageModel, **changes: Any) -> dict[str, Any]:
    return {
        "model_id": model.id,
        "drafter": "suffix_pool",
        "hardware": "cpu, OpenBLAS",
        "draft_tokens": 4,
        **changes,
    }


def test_a_verdict_comes_back_as_it_was_measured(model: LanguageModel) -> None:
    assert verdict_of(**pairing(model)) is None
    record(**pairing(model), measured=MEASURED)
    assert verdict_of(**pairing(model)) == MEASURED


def test_another_model_drafter_machine_or_length_is_another_pairing(model: LanguageModel) -> None:
    record(**pairing(model), measured=MEASURED)
    for other in (
        pairing(LanguageModelFactory()),
        pairing(model, drafter="prompt_lookup"),
        pairing(model, hardware="cpu"),
        pairing(model, draft_tokens=5),
    ):
        assert verdict_of(**other) is None


def test_a_later_verdict_replaces_an_earlier_one(model: LanguageModel) -> None:
    record(**pairing(model), measured=MEASURED)
    later = Measured(
        verdict=replace(MEASURED.verdict, outcome=Outcome.DECLINED, speedup=0.9), batch_cost=None
    )
    record(**pairing(model), measured=later)
    assert verdict_of(**pairing(model)) == later
    assert SpeculationVerdict.objects.count() == 1


def test_hardware_of_any_length_has_its_verdict(model: LanguageModel) -> None:
    record(**pairing(model, hardware="x" * 500), measured=MEASURED)
    assert verdict_of(**pairing(model, hardware="x" * 500)) == MEASURED


def test_a_draft_model_is_named_in_its_pairing() -> None:
    assert drafter_key(DrafterKind.DRAFT_MODEL, "small") == "draft_model:small"
    assert drafter_key(DrafterKind.PROMPT_LOOKUP, None) == "prompt_lookup"


def test_profiling_again_forgets_one_models_verdicts_and_records_them(model: LanguageModel) -> None:
    SpeculationVerdictFactory(language_model=model)
    SpeculationVerdictFactory(language_model=model, drafter="prompt_lookup")
    other = SpeculationVerdictFactory()
    assert profile_again(model=model, actor=ACTOR) == 2
    assert SpeculationVerdict.objects.get() == other
    event = AuditEvent.objects.get()
    assert (event.action, event.object_name) == ("language_model.profile_again", "tiny")
    assert event.before is not None
    assert sorted(event.before["verdicts"]) == [
        "prompt_lookup, 4 tokens, cpu: declined, 0.92 times",
        "suffix_pool, 4 tokens, cpu: declined, 0.92 times",
    ]
    assert event.after == {"verdicts": []}


def test_profiling_again_what_was_never_measured_records_nothing(model: LanguageModel) -> None:
    assert profile_again(model=model, actor=ACTOR) == 0
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "perhaps"},
        {"draft_tokens": 0},
        {"draft_tokens": 17},
        {"speedup": -1.0},
        {"classic_ms": 0.0},
        {"round_ms": 0.0},
        {"accepted_per_round": -0.1},
        {"samples": 0},
        {"batch_cost": -0.1},
    ],
)
def test_the_database_refuses_verdicts_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        SpeculationVerdictFactory(**changes)


def test_the_database_keeps_one_verdict_for_a_pairing(model: LanguageModel) -> None:
    SpeculationVerdictFactory(language_model=model)
    with pytest.raises(IntegrityError), transaction.atomic():
        SpeculationVerdictFactory(language_model=model)


def test_the_rows_and_the_rules_have_the_same_outcomes() -> None:
    assert SpeculationRuling.values == [outcome.value for outcome in Outcome]
