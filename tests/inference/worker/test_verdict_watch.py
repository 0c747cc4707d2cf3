"""The worker's verdict and the stored one, whatever comes between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django import db

from inference import speculation_verdicts
from inference.models import DrafterKind, LanguageModel
from inference.scheduling.speculation import Verdict
from inference.speculation_verdicts import Measured, profile_again, verdict_of
from inference.worker.verdict_watch import VerdictWatch
from tests.factories import ACTOR, LanguageModelFactory
from tests.inference.test_speculation_verdicts import MEASURED
from tests.inference.worker.conftest import SETTINGS

pytestmark = pytest.mark.django_db

HARDWARE = "a machine"
PAYS = MEASURED.verdict
LONG = replace(SETTINGS.speculation, drafter=DrafterKind.PROMPT_LOOKUP, draft_tokens=8)
SHORT = replace(LONG, draft_tokens=2)


class Worker:
    """A worker as its watch sees it."""

    def __init__(self, model: LanguageModel) -> None:
        self.settings = LONG
        self.batch_cost: float | None = 0.25
        self.told: list[Verdict | None] = []
        self.watch = VerdictWatch(
            model.id, HARDWARE, lambda: self.settings, lambda: self.batch_cost, self.told.append
        )


@pytest.fixture
def model() -> LanguageModel:
    made: LanguageModel = LanguageModelFactory(name="tiny")
    return made


@pytest.fixture
def worker(model: LanguageModel) -> Worker:
    made = Worker(model)
    made.watch()
    assert made.told == [None]
    return made


def stored(model: LanguageModel, draft_tokens: int) -> Measured | None:
    return verdict_of(
        model_id=model.id, drafter="prompt_lookup", hardware=HARDWARE, draft_tokens=draft_tokens
    )


def test_what_a_batch_costs_is_what_it_cost_when_the_verdict_was_settled(
    worker: Worker, model: LanguageModel
) -> None:
    worker.watch.settled(LONG, PAYS)
    worker.batch_cost = None
    worker.watch()
    assert stored(model, 8) == Measured(verdict=PAYS, batch_cost=0.25)
    assert worker.told == [None, PAYS]


def test_a_verdict_is_stored_for_the_pairing_that_it_was_measured_with(
    worker: Worker, model: LanguageModel
) -> None:
    worker.watch.settled(LONG, PAYS)
    worker.settings = SHORT
    worker.watch()
    assert (stored(model, 8), stored(model, 2)) == (Measured(verdict=PAYS, batch_cost=0.25), None)
    assert worker.told == [None, None]
    worker.settings = LONG
    worker.watch()
    assert worker.told == [None, None, PAYS]


def test_a_verdict_that_cannot_be_stored_is_stored_later(
    worker: Worker, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(**_: Any) -> None:
        raise db.OperationalError("away")

    worker.watch.settled(LONG, PAYS)
    with monkeypatch.context() as patched:
        patched.setattr(speculation_verdicts, "record", away)
        with pytest.raises(db.OperationalError):
            worker.watch()
    worker.watch()
    assert stored(model, 8) == Measured(verdict=PAYS, batch_cost=0.25)
    assert worker.told == [None, PAYS]


def test_what_was_forgotten_is_measured_again_and_counts_once_it_is(
    worker: Worker, model: LanguageModel
) -> None:
    worker.watch.settled(LONG, PAYS)
    worker.watch()
    assert profile_again(model=model, actor=ACTOR) == 1
    worker.watch()
    worker.watch.settled(LONG, replace(PAYS, speedup=1.75))
    worker.watch()
    assert worker.told == [None, PAYS, None, replace(PAYS, speedup=1.75)]
