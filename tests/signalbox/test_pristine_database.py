"""A test that commits leaves the next one the database that the migrations made, whatever it did to it."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, transaction

from accounts.audit import triggers
from accounts.models import Lane, LaneAssignment
from accounts.tenancy import every_tenant
from inference.models import LanguageModel
from tests.factories import LanguageModelFactory
from tests.fixtures.pristine_database import restore
from tests.fixtures.stored_text import stored_text
from tests.inference.doors import accepted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey")]


def _cells() -> list[str]:
    return sorted(stored_text().splitlines())


def test_seeds_and_triggers_are_there_and_nothing_else() -> None:
    pristine = _cells()
    model: LanguageModel = LanguageModelFactory()
    accepted(model)
    Lane.objects.filter(name="high").update(description="Changed by a test")
    Lane.objects.create(name="mine", rank=9, service_tier="mine")
    triggers.remove()
    with every_tenant("a test looks at what it made"):
        assert LaneAssignment.objects.exists()
    assert _cells() != pristine
    restore()
    assert _cells() == pristine
    assert triggers.missing() == []


def test_what_may_not_be_deleted_is_no_obstacle() -> None:
    pristine = _cells()
    accepted(LanguageModelFactory())
    with every_tenant("a test deletes"), pytest.raises(DatabaseError), transaction.atomic():
        LaneAssignment.objects.all().delete()
    restore()
    assert _cells() == pristine
