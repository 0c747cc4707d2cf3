"""What an operator publishes for all tenants is checked, recorded without its words, and can be withdrawn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from django.db import IntegrityError

from accounts import key_text
from accounts.audit import verification
from accounts.models import AuditEvent
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from inference.models import LanguageModel, PublishedPrefix
from inference.published_prefixes import live_texts, publish, withdraw
from tests.factories import LanguageModelFactory
from tests.inference.engine.tiny_model import CHAT_TEMPLATE, make_tiny_model

pytestmark = pytest.mark.django_db

ACTOR = Actor.system("test")
TEXT = "You are the signal box.\nAnswer who was given priority, when and why.\n"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "published")


@pytest.fixture
def model(model_dir: Path) -> LanguageModel:
    made: LanguageModel = LanguageModelFactory(directory=str(model_dir), context_length=512)
    return made


def refusal(model: LanguageModel, name: str = "box", text: str = TEXT) -> ChangeRefused:
    with pytest.raises(ChangeRefused) as refused:
        publish(model=model, name=name, text=text, actor=ACTOR)
    assert not live_texts(model)
    assert not AuditEvent.objects.exists()
    return refused.value


def test_publishing_is_recorded_by_length_and_checksum_and_never_by_the_text(model: LanguageModel) -> None:
    prefix = publish(model=model, name=" box ", text=TEXT, actor=ACTOR)
    assert (prefix.name, prefix.text, prefix.withdrawn_at) == ("box", TEXT, None)
    event = AuditEvent.objects.get()
    assert (event.action, event.object_id, event.before) == (
        "published_prefix.publish",
        str(prefix.pk),
        None,
    )
    assert event.after == {
        "name": "box",
        "language_model_id": str(model.pk),
        "withdrawn_at": None,
        "characters": len(TEXT),
        "sha256": hashlib.sha256(TEXT.encode()).hexdigest(),
    }
    withdraw(prefix=prefix, actor=ACTOR)
    assert "priority" not in json.dumps(
        [[e.before, e.after, e.object_name] for e in AuditEvent.objects.all()]
    )
    assert verification.verify(from_scratch=True).fault is None


def test_withdrawing_is_recorded_once(model: LanguageModel) -> None:
    prefix = publish(model=model, name="box", text=TEXT, actor=ACTOR)
    withdrawn = withdraw(prefix=prefix, actor=ACTOR)
    assert withdrawn.withdrawn_at is not None
    assert withdraw(prefix=prefix, actor=ACTOR).withdrawn_at == withdrawn.withdrawn_at
    actions = list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True))
    assert actions == ["published_prefix.publish", "published_prefix.withdraw"]
    event = AuditEvent.objects.latest("sequence")
    assert event.before is not None
    assert event.after is not None
    assert event.before["withdrawn_at"] is None
    assert event.after["withdrawn_at"] is not None


def test_live_are_those_of_the_model_that_were_not_withdrawn_each_once(model: LanguageModel) -> None:
    other = LanguageModelFactory(directory=model.directory)
    first = publish(model=model, name="first", text=TEXT, actor=ACTOR)
    publish(model=model, name="second", text="Second.", actor=ACTOR)
    publish(model=model, name="the same", text=TEXT, actor=ACTOR)
    publish(model=other, name="first", text="Another model's.", actor=ACTOR)
    assert live_texts(model) == [TEXT, "Second."]
    withdraw(prefix=first, actor=ACTOR)
    assert live_texts(model) == ["Second.", TEXT]


def test_a_name_is_taken_until_it_is_withdrawn(model: LanguageModel) -> None:
    first = publish(model=model, name="box", text=TEXT, actor=ACTOR)
    with pytest.raises(ChangeRefused) as refused:
        publish(model=model, name="box", text="Another.", actor=ACTOR)
    assert (refused.value.code, refused.value.field) == (ChangeRefusal.NAME_TAKEN, "name")
    withdraw(prefix=first, actor=ACTOR)
    assert publish(model=model, name="box", text="Another.", actor=ACTOR).pk != first.pk


def test_the_database_holds_to_one_live_name_as_well(model: LanguageModel) -> None:
    publish(model=model, name="box", text=TEXT, actor=ACTOR)
    with pytest.raises(IntegrityError):
        PublishedPrefix.objects.create(language_model=model, name="box", text="Another.")


def test_line_ends_of_forms_are_those_that_clients_send(model: LanguageModel) -> None:
    prefix = publish(model=model, name="box", text="  One.\r\nTwo. \r\n", actor=ACTOR)
    assert prefix.text == "  One.\nTwo. \n"


def test_what_leaves_no_room_or_is_empty_is_refused(model: LanguageModel) -> None:
    long = refusal(model, text="a long one " * 300)
    assert (long.code, long.field) == (ChangeRefusal.INVALID, "text")
    assert "512" in long.message
    assert refusal(model, text=" \n ").field == "text"
    assert refusal(model, text="x" * 100_001).field == "text"
    assert refusal(model, name="").field == "name"


def test_a_key_is_not_published(model: LanguageModel) -> None:
    assert refusal(model, text=f"Use {key_text.draw()}").code is ChangeRefusal.CONTAINS_KEY


def test_a_retired_model_gets_none(model: LanguageModel) -> None:
    LanguageModel.objects.filter(pk=model.pk).update(retired_at=model.created_at)
    assert refusal(model).field == "language_model"


@pytest.mark.parametrize(
    "template",
    [
        CHAT_TEMPLATE.replace("message['content']", "message['content'] | upper"),
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
        "{% for m in messages | reverse %}{{ '<|im_start|>' + m.content }}{% endfor %}",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system prompts') }}{% endif %}",
        None,
    ],
    ids=["changed", "left out", "behind the user", "refused", "no template"],
)
def test_a_template_that_does_not_begin_with_it_is_told(tmp_path: Path, template: str | None) -> None:
    directory = make_tiny_model(tmp_path / "odd")
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    odd = LanguageModelFactory(directory=str(directory))
    told = refusal(odd)
    assert (told.code, told.field) == (ChangeRefusal.INVALID, "text")
    assert "chat template" in told.message


def test_a_model_whose_files_are_gone_is_named(tmp_path: Path) -> None:
    gone = LanguageModelFactory(directory=str(tmp_path / "gone"))
    assert refusal(gone).field == "language_model"
