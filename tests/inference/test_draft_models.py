"""A model is chosen to draft for another only if it means the same by its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from accounts.models import AuditEvent
from inference import draft_models
from inference.language_models import change_settings
from inference.models import LanguageModel
from tests.factories import ACTOR, LanguageModelFactory
from tests.inference.engine.tiny_model import make_tiny_model
from tests.inference.test_scheduler_settings import SETTINGS

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Prepared models: two of a family, and one that spells a token otherwise."""
    root = tmp_path_factory.mktemp("models")
    made = {name: make_tiny_model(root / name) for name in ("large", "small", "foreign")}
    file = made["foreign"] / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_end|>", "<|eot_id|>"))
    return made


@pytest.fixture
def large(directories: dict[str, Path]) -> LanguageModel:
    return offered(directories, "large")


def offered(directories: dict[str, Path], name: str) -> LanguageModel:
    made: LanguageModel = LanguageModelFactory(name=name, directory=str(directories[name]))
    return made


def let_draft(model: LanguageModel, draft_model: LanguageModel | None, **changes: object) -> LanguageModel:
    values = {**SETTINGS, "drafter": "draft_model", "draft_model": draft_model, **changes}
    return change_settings(model=model, actor=ACTOR, **values)  # type: ignore[arg-type]


def test_a_model_of_the_same_vocabulary_drafts_and_the_audit_names_it(
    large: LanguageModel, directories: dict[str, Path]
) -> None:
    small = offered(directories, "small")
    assert let_draft(large, small).draft_model == small
    event = AuditEvent.objects.get()
    assert event.before is not None
    assert event.after is not None
    assert (event.before["draft_model"], event.after["draft_model"]) == (None, "small")


def test_a_model_of_another_vocabulary_is_refused_with_the_token(
    large: LanguageModel, directories: dict[str, Path]
) -> None:
    with pytest.raises(ValidationError) as refusal:
        let_draft(large, offered(directories, "foreign"))
    [message] = refusal.value.message_dict["draft_model"]
    assert "foreign has another vocabulary than large" in message
    assert "token 2 is '<|im_end|>' here and '<|eot_id|>' there" in message
    assert not AuditEvent.objects.exists()


def test_a_retired_model_and_one_that_cannot_be_read_are_refused(
    large: LanguageModel, directories: dict[str, Path]
) -> None:
    small = offered(directories, "small")
    small.retired_at = timezone.now()
    small.save()
    with pytest.raises(ValidationError, match="small is retired: add it again"):
        let_draft(large, small)
    with pytest.raises(ValidationError, match=r"cannot be compared: .*tokenizer\.json is missing"):
        let_draft(large, LanguageModelFactory())


@pytest.mark.parametrize(
    ("drafter", "named", "words"),
    [
        ("draft_model", False, "Choose the model that guesses"),
        ("suffix_pool", True, "The drafter is not a draft model"),
        ("", True, "The drafter is not a draft model"),
    ],
)
def test_a_draft_model_is_named_if_and_only_if_one_drafts(
    large: LanguageModel, directories: dict[str, Path], drafter: str, named: bool, words: str
) -> None:
    small = offered(directories, "small") if named else None
    with pytest.raises(ValidationError, match=words):
        let_draft(large, small, drafter=drafter)


def test_a_model_does_not_draft_for_itself(large: LanguageModel) -> None:
    with pytest.raises(ValidationError, match="gains nothing by guessing for itself"):
        let_draft(large, large)


def test_a_draft_model_that_was_retired_since_does_not_hold_up_other_changes(
    large: LanguageModel, directories: dict[str, Path]
) -> None:
    small = offered(directories, "small")
    let_draft(large, small)
    LanguageModel.objects.filter(id=small.id).update(retired_at=timezone.now())
    assert let_draft(large, small, slots=3).slots == 3


def test_candidates_are_the_others_that_are_offered_and_the_one_that_drafts_now(
    large: LanguageModel, directories: dict[str, Path]
) -> None:
    small = offered(directories, "small")
    LanguageModelFactory(retired_at=timezone.now())
    LanguageModelFactory(drafter="draft_model", draft_model=small)
    others = LanguageModel.objects.exclude(id=large.id).filter(retired_at=None)
    assert set(draft_models.candidates(large)) == set(others)
    let_draft(large, small)
    LanguageModel.objects.filter(id=small.id).update(retired_at=timezone.now())
    assert small in draft_models.candidates(large)
