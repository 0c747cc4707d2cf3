"""Events as people read them: names where they still are, and "(erased)" where they were."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from accounts import audit
from accounts.audit import verification
from accounts.audit.reading import ERASED, disclosable, disclose
from accounts.models import AuditEvent, AuditPersonalValue
from tests.factories import ACTOR, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def event() -> AuditEvent:
    ada: Any = UserFactory(username="ada")
    with transaction.atomic():
        return audit.record(
            ACTOR,
            "user.change",
            ada,
            {"email": "", "is_staff": False},
            {"email": "a@b.example", "is_staff": True},
        )


def test_an_event_says_everything_that_was_recorded(event: AuditEvent) -> None:
    said = disclose(event)
    assert (said.actor_name, said.address, said.object_name) == ("tester", "192.0.2.7", "ada")
    assert (said.before, said.after) == (
        {"email": "", "is_staff": False},
        {"email": "a@b.example", "is_staff": True},
    )


def test_what_was_erased_is_said_to_be_and_the_chain_holds(event: AuditEvent) -> None:
    AuditPersonalValue.objects.exclude(path="actor_name").delete()
    said = disclose(AuditEvent.objects.get())
    assert (said.actor_name, said.address, said.object_name) == ("tester", ERASED, ERASED)
    assert said.before == {"email": "", "is_staff": False}
    assert said.after == {"email": ERASED, "is_staff": True}
    assert verification.verify(from_scratch=True).fault is None


def test_what_was_masked_as_a_secret_stays_masked() -> None:
    with transaction.atomic():
        event = audit.record(
            ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, {"password": "hunter2"}
        )
    assert disclose(event).after == {"password": "***"}
    assert disclose(event).before is None


def test_an_older_event_says_what_stands_in_its_row() -> None:
    event = AuditEvent(sequence=1, format=1, actor_name="ada", address="192.0.2.1", object_name="bob")
    assert disclose(event).actor_name == "ada"
    assert (disclose(event).address, disclose(event).object_name) == ("192.0.2.1", "bob")


def test_a_list_reads_all_names_at_once(django_assert_num_queries: Any) -> None:
    for _ in range(3):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, None)
    with django_assert_num_queries(2):
        names = [disclose(event).actor_name for event in disclosable(AuditEvent.objects.all())]
    assert names == ["tester"] * 3
