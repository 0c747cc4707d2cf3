"""Verdicts are shown with what they rest on; operators have them measured again, others look."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.audit.reading import disclose
from accounts.models import AuditEvent
from inference.admin.speculation_verdicts import why
from inference.models import LanguageModel, SpeculationVerdict
from tests.factories import LanguageModelFactory, SpeculationVerdictFactory
from tests.fixtures.admin import save
from tests.inference.admin.test_scheduler_form import UNTOUCHED


def _page(name: str, *arguments: object) -> str:
    return reverse(f"admin:inference_{name}", args=arguments)


@pytest.fixture
def verdict(db: None) -> SpeculationVerdict:
    made: SpeculationVerdict = SpeculationVerdictFactory(
        language_model=LanguageModelFactory(name="tiny"), drafter="draft_model:small", batch_cost=0.31
    )
    return made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "A round takes 170 ms and yields 1.2 tokens, which take 157 ms without. "
            "Too few guesses hold for what a round costs.",
        ),
        (
            {"verdict": "enabled", "classic_ms": 5.25, "round_ms": 7.0, "accepted_per_round": 1.5},
            "A round takes 7.0 ms and yields 2.5 tokens, which take 13 ms without.",
        ),
    ],
)
def test_a_verdict_says_what_it_rests_on(changes: dict[str, Any], words: str) -> None:
    assert why(SpeculationVerdictFactory.build(**changes)) == words


@pytest.mark.parametrize(("used", "words"), [(True, "it is used all the same."), (False, "it is not used.")])
def test_one_that_decides_nothing_says_what_the_model_is_set_to(used: bool, words: str) -> None:
    model = LanguageModelFactory.build(speculate_undecided=used)
    assert why(SpeculationVerdictFactory.build(verdict="undecided", language_model=model)).endswith(words)


def test_verdicts_are_listed_and_shown_in_words(as_onlooker: Client, verdict: SpeculationVerdict) -> None:
    listed = as_onlooker.get(_page("speculationverdict_changelist")).content.decode()
    page = as_onlooker.get(_page("speculationverdict_change", verdict.pk)).content.decode()
    model = as_onlooker.get(_page("languagemodel_change", verdict.language_model.pk)).content.decode()
    for text in (listed, page, model):
        for words in ("Does not pay", "0.92 times", "Draft model small", "Too few guesses hold"):
            assert words in text
    assert "one more stream makes a decode tick 31% longer" in page


def test_many_verdicts_cost_no_more_queries_than_one(as_onlooker: Client) -> None:
    model = LanguageModelFactory()
    pages = (_page("speculationverdict_changelist"), _page("languagemodel_change", model.pk))

    def queries() -> list[int]:
        counts = []
        for page in pages:
            with CaptureQueriesContext(connection) as made:
                as_onlooker.get(page)
            counts.append(len(made))
        return counts

    SpeculationVerdictFactory(language_model=model, verdict="undecided")
    of_one = queries()
    for length in range(5, 9):
        SpeculationVerdictFactory(language_model=model, verdict="undecided", draft_tokens=length)
    assert queries() == of_one


def test_nobody_writes_a_verdict_by_hand(as_operator: Client, verdict: SpeculationVerdict) -> None:
    assert as_operator.get(_page("speculationverdict_add")).status_code == 403
    page = _page("speculationverdict_change", verdict.pk)
    assert as_operator.post(page, {"speedup": 9}).status_code == 403


def test_an_operator_profiles_again_after_a_question(
    as_operator: Client, verdict: SpeculationVerdict
) -> None:
    again = _page("languagemodel_profile_again", verdict.language_model.pk)
    page = _page("languagemodel_change", verdict.language_model.pk)
    assert again in as_operator.get(page).content.decode()
    assert "Measure anew" in as_operator.get(again).content.decode()
    assert SpeculationVerdict.objects.exists()
    answer = as_operator.post(again, follow=True).content.decode()
    assert "1 verdict of tiny forgotten: it is profiled again." in answer
    assert not SpeculationVerdict.objects.exists()
    event = AuditEvent.objects.get()
    assert (event.action, disclose(event).actor_name) == ("language_model.profile_again", "operator")
    assert again not in answer


def test_who_may_only_look_cannot_have_it_profiled(as_onlooker: Client, verdict: SpeculationVerdict) -> None:
    model = verdict.language_model
    again = _page("languagemodel_profile_again", model.pk)
    assert again not in as_onlooker.get(_page("languagemodel_change", model.pk)).content.decode()
    assert as_onlooker.post(again).status_code == 403
    assert SpeculationVerdict.objects.exists()


def test_a_model_with_verdicts_is_saved_like_any_other(
    as_operator: Client, verdict: SpeculationVerdict
) -> None:
    page = _page("languagemodel_change", verdict.language_model.pk)
    assert save(as_operator, page, {**UNTOUCHED, "draft_tokens": 6}).status_code == 302
    assert LanguageModel.objects.get().draft_tokens == 6
    assert SpeculationVerdict.objects.get() == verdict
