"""What stands outside of the chain's numbers, or between them, was not recorded there: it is found and named.

Without the database's own constraints: whoever owns it can drop them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from accounts.audit.verification import verify, verify_and_store
from accounts.models import (
    AuditArchive,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    LaneAssignment,
    SealedAssignment,
)
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import Built, Tampering, build, record_events
from tests.accounts.audit.own_state import settle
from tests.accounts.audit.raw_rows import copy_row, set_raw

pytestmark = pytest.mark.django_db
between = pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has whole numbers only")
UNKNOWN = uuid.UUID("cd" * 16)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tampering: Tampering) -> Iterator[Built]:
    settle(monkeypatch, tmp_path)
    chain = build(tampering)
    with tampering():
        yield chain


def named(*, from_scratch: bool = True) -> tuple[str, int, str, str]:
    fault = verify(from_scratch=from_scratch).fault
    assert fault is not None, "nothing was found"
    return fault.kind.value, fault.sequence, fault.reason.value, fault.id


def put_event(sequence: Any) -> None:
    copy_row(AuditEvent.objects.order_by("-sequence")[0], sequence=sequence, hash="f" * 64)


def put_leaf(batch: Any, index: Any = 0) -> None:
    """An assignment that nobody made, with a leaf."""
    source = SealedAssignment.objects.order_by("batch", "index")[0]
    with every_tenant("the test looks"):
        assignment = LaneAssignment.objects.get(pk=source.pk)
    unknown = UNKNOWN.hex if connection.vendor == "sqlite" else UNKNOWN
    copy_row(assignment, generation_id=unknown)
    copy_row(source, generation_id=unknown, batch=batch, index=index)


def put_value(sequence: Any) -> None:
    copy_row(AuditPersonalValue.objects.order_by("event_id")[0], sequence=sequence)


@pytest.mark.parametrize("from_scratch", [True, False])
@pytest.mark.parametrize("sequence", [0, -3])
def test_an_event_before_the_first_one_is_found(built: Built, sequence: int, from_scratch: bool) -> None:
    verify_and_store(from_scratch=True)
    put_event(sequence)
    assert named(from_scratch=from_scratch) == ("event", sequence, "inserted", "")


@pytest.mark.parametrize("from_scratch", [True, False])
@pytest.mark.parametrize("batch", [0, -1])
def test_a_leaf_of_a_batch_before_the_first_event_is_found(
    built: Built, batch: int, from_scratch: bool
) -> None:
    verify_and_store(from_scratch=True)
    put_leaf(batch)
    assert named(from_scratch=from_scratch) == ("assignment", batch, "misplaced", str(UNKNOWN))


@pytest.mark.parametrize("index", [-1, -(2**31)])
def test_a_leaf_before_the_first_one_of_a_batch_is_found(built: Built, index: int) -> None:
    batch = next(iter(built.batches))
    put_leaf(batch, index)
    assert named() == ("assignment", batch, "inserted", str(UNKNOWN))


def test_a_leaf_before_the_first_one_is_found_also_where_a_walk_begins_with_its_batch(built: Built) -> None:
    batch = max(built.batches)
    AuditEvent.objects.filter(sequence__gt=batch).delete()
    AuditPersonalValue.objects.filter(event_id__gt=batch).delete()
    AuditHead.objects.update(sequence=batch, hash=AuditEvent.objects.get(sequence=batch).hash)
    assert verify_and_store(from_scratch=True).fault is None
    put_leaf(batch, -1)
    assert named(from_scratch=False) == ("assignment", batch, "inserted", str(UNKNOWN))


@pytest.mark.parametrize("sequence", [0, -1])
def test_a_personal_value_before_the_first_event_is_found(built: Built, sequence: int) -> None:
    put_value(sequence)
    assert named() == ("event", sequence, "inserted", "")


def test_a_personal_value_behind_the_head_is_found(built: Built) -> None:
    put_value(built.head + 3)
    assert named() == ("event", built.head + 3, "inserted", "")


def test_a_leaf_with_a_negative_place_in_an_archived_batch_is_found(built: Built) -> None:
    batch = 6
    put_leaf(batch, -1)
    with every_tenant("the test takes it away"):
        LaneAssignment.objects.filter(pk=UNKNOWN).delete()
    # As python counts it is the last one, which it would fit.
    assert named() == ("assignment", batch, "altered", str(UNKNOWN))


def test_what_is_before_the_first_event_is_named_before_all_that_holds() -> None:
    record_events(1)
    put_event(0)
    found = verify(from_scratch=True)
    assert found.fault is not None
    assert (found.fault.sequence, found.last_sequence, found.events) == (0, 0, 0)


# SQLite has other numbers, and other things than numbers


@between
@pytest.mark.parametrize("from_scratch", [True, False])
def test_an_event_between_two_is_found(built: Built, from_scratch: bool) -> None:
    if not from_scratch:
        verify_and_store(from_scratch=True)
        record_events(3)
    place = AuditHead.objects.get().sequence - 1
    put_event(place - 0.5)
    assert named(from_scratch=from_scratch) == ("event", place, "altered", "")


@between
def test_an_event_between_two_is_found_at_the_end_of_a_page(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in (1, 2, 3):
        monkeypatch.setattr("accounts.audit.chain_rows.EVENTS", page)
        with transaction.atomic():
            put_event(built.first + 3.5)
            assert named() == ("event", built.first + 4, "altered", "")
            transaction.set_rollback(True)


@between
def test_a_leaf_of_a_batch_between_two_events_is_found(built: Built) -> None:
    batch = next(iter(built.batches))
    put_leaf(batch - 0.5)
    assert named() == ("assignment", batch, "misplaced", str(UNKNOWN))


@between
@pytest.mark.parametrize("place", [0.5, "x", b"x", float("inf"), 2**63 - 1])
def test_a_leaf_behind_all_events_is_found_whatever_its_batch_is(built: Built, place: Any) -> None:
    put_leaf(built.head + place if isinstance(place, float) else place)
    assert named()[::2] == ("assignment", "misplaced")
    assert named()[3] == str(UNKNOWN)


@between
@pytest.mark.parametrize("place", [0.5, "x", b"x", float("inf"), 2**63 - 1])
def test_an_event_behind_all_others_is_found_whatever_its_number_is(built: Built, place: Any) -> None:
    put_event(built.head + place if isinstance(place, float) else place)
    kind, sequence, reason, _ = named()
    assert (kind, reason) == ("event", "inserted")
    assert sequence > built.head


@between
def test_a_leaf_between_two_places_of_a_batch_is_found(built: Built) -> None:
    batch = next(iter(built.batches))
    put_leaf(batch, 1.5)
    assert named() == ("assignment", batch, "altered", str(UNKNOWN))


@between
@pytest.mark.parametrize("archived", [True, False])
def test_a_personal_value_between_two_events_is_found(built: Built, archived: bool) -> None:
    place = 3 if archived else built.first + 1
    put_value(place - 0.5)
    assert named() == ("event", place, "altered", "")


@between
def test_a_leaf_in_the_archived_part_between_two_batches_is_found(built: Built) -> None:
    put_leaf(2.5)
    assert named() == ("assignment", 3, "misplaced", str(UNKNOWN))


# The database refuses what is out of bounds, where nobody has dropped its constraints


@pytest.mark.parametrize(
    ("put", "constraint"),
    [
        (
            lambda: AuditEvent.objects.create(sequence=0, at="2026-12-01T00:00:00Z", hash="x"),
            "audit_event_from_one",
        ),
        (
            lambda: SealedAssignment.objects.create(generation_id=UNKNOWN, batch=0, index=0, hash="x"),
            "sealed_assignment_from_one",
        ),
        (
            lambda: AuditArchive.objects.create(
                first_sequence=0,
                last_sequence=5,
                assignments=0,
                file_bytes=1,
                created_at="2026-12-01T00:00:00Z",
            ),
            "audit_archive_from_one",
        ),
    ],
    ids=["event", "leaf", "archive"],
)
def test_the_database_refuses_numbers_below_one(put: Any, constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        put()


def test_a_row_that_is_no_event_of_the_chain_is_unsealed_until_it_is_sealed_and_then_told_to_be_late(
    built: Built,
) -> None:
    """An assignment that is put there with a time of long ago proves nothing before it is sealed, and then its seal."""
    with every_tenant("the test looks"):
        source = LaneAssignment.objects.get(pk=built.unsealed)
    unknown = UNKNOWN.hex if connection.vendor == "sqlite" else UNKNOWN
    copy_row(source, generation_id=unknown, created_at="2026-01-01 12:00:00")
    found = verify(from_scratch=True)
    assert (found.fault, found.unsealed) == (None, 2)
    assert found.notes == (
        "An assignment of 2026-01-01 12:00Z waits to be sealed, the oldest of 2: nothing seals, or somebody has put it "
        "there.",
    )


@between
def test_an_archive_of_no_whole_number_is_found(built: Built) -> None:
    set_raw(AuditArchive.objects.get(), "first_sequence", 0.5)
    assert named()[::2] == ("archive", "altered")
