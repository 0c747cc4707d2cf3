"""Operators publish and withdraw prefixes in the admin; others look."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from accounts.audit.reading import disclose
from accounts.models import AuditEvent
from accounts.principal import Actor
from inference.models import LanguageModel, PublishedPrefix
from inference.published_prefixes import publish, withdraw
from tests.factories import LanguageModelFactory
from tests.inference.engine.tiny_model import make_tiny_model

TEXT = "  You are the <signal box>.\r\nAnswer. \r\n"


def _url(name: str, *arguments: object) -> str:
    return reverse(f"admin:inference_publishedprefix_{name}", args=arguments)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "published")


@pytest.fixture
def model(model_dir: Path, db: None) -> LanguageModel:
    made: LanguageModel = LanguageModelFactory(name="tiny", directory=str(model_dir))
    return made


@pytest.fixture
def prefix(model: LanguageModel) -> PublishedPrefix:
    return publish(model=model, name="box", text=TEXT, actor=Actor.system("test"))


def test_a_prefix_is_published_to_the_letter_with_the_operator_as_actor(
    as_operator: Client, model: LanguageModel
) -> None:
    form = as_operator.get(_url("add")).content.decode()
    assert "Every tenant can notice that this text is in use" in form
    values = {"language_model": model.pk, "name": "box", "text": TEXT}
    answer = as_operator.post(_url("add"), values, follow=True)
    assert answer.status_code == 200
    published = PublishedPrefix.objects.get()
    assert published.text == TEXT.replace("\r\n", "\n")
    event = AuditEvent.objects.get()
    assert (event.action, event.object_id) == ("published_prefix.publish", str(published.pk))
    assert disclose(event).actor_name == "operator"


def test_a_refusal_is_shown_at_its_field(as_operator: Client, prefix: PublishedPrefix) -> None:
    values = {"language_model": prefix.language_model_id, "name": "box", "text": "Another."}
    answer = as_operator.post(_url("add"), values)
    assert "is published for tiny already" in answer.content.decode()
    assert "name" in answer.context["adminform"].form.errors
    answer = as_operator.post(_url("add"), {**values, "name": "long", "text": "a long one " * 2000})
    assert "text" in answer.context["adminform"].form.errors
    assert PublishedPrefix.objects.count() == 1


def test_only_models_that_can_use_one_are_offered(as_operator: Client, model: LanguageModel) -> None:
    LanguageModelFactory(name="gone", retired_at=model.created_at)
    LanguageModelFactory(name="no chats", has_chat_template=False)
    field = as_operator.get(_url("add")).context["adminform"].form.fields["language_model"]
    assert list(field.queryset) == [model]


def test_a_prefix_is_withdrawn_after_a_question(as_operator: Client, prefix: PublishedPrefix) -> None:
    asked = as_operator.get(_url("withdraw", prefix.pk)).content.decode()
    assert "Withdraw box?" in asked
    prefix.refresh_from_db()
    assert prefix.withdrawn_at is None
    answer = as_operator.post(_url("withdraw", prefix.pk), follow=True)
    assert "box is withdrawn." in answer.content.decode()
    prefix.refresh_from_db()
    assert prefix.withdrawn_at is not None
    assert AuditEvent.objects.latest("sequence").action == "published_prefix.withdraw"
    page = as_operator.get(_url("change", prefix.pk)).content.decode()
    assert _url("withdraw", prefix.pk) not in page


def test_its_page_shows_it_and_changes_nothing(as_operator: Client, prefix: PublishedPrefix) -> None:
    page = as_operator.get(_url("change", prefix.pk))
    assert "You are the &lt;signal box&gt;." in page.content.decode()
    assert _url("withdraw", prefix.pk) in page.content.decode()
    as_operator.post(_url("change", prefix.pk), {"name": "other", "text": "Other."})
    prefix.refresh_from_db()
    assert (prefix.name, prefix.text) == ("box", TEXT.replace("\r\n", "\n"))


def test_whoever_may_only_look_publishes_and_withdraws_nothing(
    as_onlooker: Client, prefix: PublishedPrefix
) -> None:
    assert as_onlooker.get(_url("changelist")).status_code == 200
    assert as_onlooker.get(_url("add")).status_code == 403
    assert as_onlooker.post(_url("withdraw", prefix.pk)).status_code == 403
    prefix.refresh_from_db()
    assert prefix.withdrawn_at is None


def test_they_are_listed_by_their_state(as_operator: Client, prefix: PublishedPrefix) -> None:
    withdraw(prefix=prefix, actor=Actor.system("test"))
    publish(model=prefix.language_model, name="kept", text="Kept.", actor=Actor.system("test"))
    for state, name in (("live", "kept"), ("ended", "box")):
        rows = as_operator.get(_url("changelist"), {"state": state}).context["cl"].result_list
        assert [row.name for row in rows] == [name]
