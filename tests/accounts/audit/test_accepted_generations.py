"""Each generation that was accepted has its lane assignment, in the database or in an archive."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import time_machine
from django.db import connection
from django.utils import timezone

from accounts.audit import archives, checkpoints, sealing
from accounts.audit.verification import verify, verify_and_store
from accounts.models import AuditEvent, LaneAssignment
from accounts.tenancy import every_tenant
from inference.models import Generation
from tests.accounts.audit.chains import Tampering, assignment, record_events
from tests.accounts.audit.own_state import settle
from tests.accounts.audit.raw_rows import set_raw, undone
from tests.factories import GenerationFactory, LanguageModelFactory, TenantFactory

pytestmark = pytest.mark.django_db
garbage = pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL refuses to store it")


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of the archives' files."""
    return settle(monkeypatch, tmp_path).audit_archive_dir


@pytest.fixture
def accepted() -> list[Generation]:
    """Three generations, the older two with assignments that are sealed."""
    tenant, model = TenantFactory(), LanguageModelFactory()
    with every_tenant("the test accepts"):
        made = [GenerationFactory(tenant=tenant, model=model) for _ in range(3)]
        LaneAssignment.objects.bulk_create([assignment(generation_id=one.id) for one in made[:2]])
    assert sealing.seal(timezone.now()) == 2
    return made


def assign_to(generation: Generation) -> LaneAssignment:
    made = assignment(generation_id=generation.id)
    with every_tenant("the test assigns"):
        made.save(force_insert=True)
    return made


def named(*, from_scratch: bool = True) -> tuple[str, str, str] | None:
    fault = verify(from_scratch=from_scratch).fault
    return (fault.kind.value, fault.reason.value, fault.id) if fault else None


@pytest.mark.parametrize("from_scratch", [True, False])
def test_a_generation_whose_assignment_was_taken_away_before_it_was_sealed_is_found(
    accepted: list[Generation], tampering: Tampering, from_scratch: bool
) -> None:
    late = assign_to(accepted[2])
    assert verify_and_store(from_scratch=True).fault is None
    with tampering(), every_tenant("the test takes it away"):
        LaneAssignment.objects.filter(pk=late.pk).delete()
    assert named(from_scratch=from_scratch) == ("assignment", "missing", str(accepted[2].id))


def test_what_was_accepted_before_the_last_walk_is_left_to_one_from_scratch(
    accepted: list[Generation],
) -> None:
    assign_to(accepted[2])
    assert verify_and_store(from_scratch=True).fault is None
    with every_tenant("the test accepts"):
        old = GenerationFactory(tenant=accepted[0].tenant, model=accepted[0].model)
        Generation.objects.filter(id=old.id).update(created_at=timezone.now() - timedelta(hours=1))
    assert named(from_scratch=False) is None
    assert named() == ("assignment", "missing", str(old.id))


def test_one_whose_assignment_is_archived_has_it_there(accepted: list[Generation], files: Path) -> None:
    assert checkpoints.make(timezone.now())
    assert archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    with every_tenant("the test looks"):
        assert not LaneAssignment.objects.exists()
    assert named() == ("assignment", "missing", str(accepted[2].id))
    assign_to(accepted[2])
    assert named() is None
    # Nobody knows what is in a file that is not here.
    next(files.glob("*.gz")).unlink()
    assert verify_and_store(from_scratch=True).fault is None
    assert named(from_scratch=False) is None


@garbage
def test_a_generation_that_cannot_be_read_is_a_fault(accepted: list[Generation]) -> None:
    for value in ("zz", b"\xff\xfe", 7):
        with undone():
            set_raw(accepted[2], "id", value)
            for from_scratch in (True, False):
                assert named(from_scratch=from_scratch) == ("assignment", "altered", "")


@garbage
def test_the_first_event_behind_the_archives_that_cannot_be_read_is_a_fault(
    accepted: list[Generation], tampering: Tampering
) -> None:
    assign_to(accepted[2])
    assert checkpoints.make(timezone.now())
    record_events(2)
    assert archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    record_events(2)
    assert verify_and_store(from_scratch=True).fault is None
    with tampering():
        following = AuditEvent.objects.order_by("sequence")[0]
        for value in ("2026-13-01 00:00:00", 7):
            with undone():
                set_raw(following, "at", value)
                fault = verify(from_scratch=False).fault
                assert fault is not None
                assert (fault.kind, fault.sequence, fault.reason) == ("event", following.sequence, "altered")


def test_a_walk_of_a_clock_that_ran_ahead_hides_nothing_that_was_accepted_since(
    accepted: list[Generation],
) -> None:
    assign_to(accepted[2])
    with time_machine.travel(timezone.now() + timedelta(days=5)):
        assert verify_and_store(from_scratch=True).fault is None
    assert named(from_scratch=False) is None
    with every_tenant("the test accepts"):
        made = GenerationFactory(tenant=accepted[0].tenant, model=accepted[0].model)
        # Not by the last minutes alone: the next walk may be an hour later.
        Generation.objects.filter(id=made.id).update(created_at=timezone.now() - timedelta(hours=1))
    assert named(from_scratch=False) == ("assignment", "missing", str(made.id))
