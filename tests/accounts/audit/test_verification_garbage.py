"""Rows that cannot even be read (SQLite stores anything in any column) are named like those that were altered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, models, transaction
from django.utils import timezone

from accounts.audit import chain_rows, sealing, verification
from accounts.audit.verification import verify, verify_and_store
from accounts.models import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    AuditSigningKey,
    AuditVerification,
    LaneAssignment,
    SealedAssignment,
)
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import Built, Tampering, build
from tests.accounts.audit.own_state import settle
from tests.accounts.audit.raw_rows import raw, set_raw, undone

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL refuses to store it"),
]

_NO_TEXT = b"\xff\xfe"
_DEEP = "[" * 100_000


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tampering: Tampering) -> Iterator[Built]:
    settle(monkeypatch, tmp_path)
    chain = build(tampering)
    with tampering():
        yield chain


def named() -> tuple[str, int, str, str]:
    fault = verify(from_scratch=True).fault
    assert fault is not None, "nothing was found"
    return fault.kind.value, fault.sequence, fault.reason.value, fault.id


def _set(table: str, column: str, value: Any, where: str, key: Any) -> None:
    with connection.cursor() as cursor:
        # Whoever owns the database can switch off what checks its rows.
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        # Bytes that are to be a text's: as a blob they would be another type.
        written = "CAST(%s AS TEXT)" if isinstance(value, bytes) else "%s"
        cursor.execute(f'UPDATE {table} SET "{column}" = {written} WHERE {where} = %s', [value, key])
        assert cursor.rowcount == 1
        cursor.execute("PRAGMA ignore_check_constraints = OFF")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "yesterday"),
        ("at", "2026-99-99 00:00:00"),
        ("at", 5),
        ("tenant_id", "no id"),
        ("before", "{"),
        ("after", _DEEP),
        ("after", _NO_TEXT),
        ("personal", "[]"),
        ("personal", "null"),
        ("action", _NO_TEXT),
        ("action", 5),
        ("hash", _NO_TEXT),
        ("previous_hash", 7),
        ("format", "two"),
    ],
)
@pytest.mark.parametrize("page", [1, 3, 1000])
def test_an_event_that_cannot_be_read_is_named(
    built: Built, monkeypatch: pytest.MonkeyPatch, page: int, column: str, value: Any
) -> None:
    monkeypatch.setattr(chain_rows, "EVENTS", page)
    _set("accounts_auditevent", column, value, "sequence", built.first + 4)
    assert named() == ("event", built.first + 4, "altered", "")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tenant_id", "no id"),
        ("user_id", 5),
        ("step_downs", "{"),
        ("budget_position", _NO_TEXT),
        ("tenant_name", _NO_TEXT),
        ("created_at", "yesterday"),
        ("policy_version", "one"),
    ],
)
def test_an_assignment_that_cannot_be_read_is_named(built: Built, column: str, value: Any) -> None:
    batch, ids = next(iter(built.batches.items()))
    _set("accounts_laneassignment", column, value, "generation_id", ids[2].hex)
    assert named() == ("assignment", batch, "altered", str(ids[2]))


@pytest.mark.parametrize(("column", "value"), [("generation_id", "no id"), ("hash", _NO_TEXT)])
@pytest.mark.parametrize("page", [1, 2, 2000])
def test_a_leaf_that_cannot_be_read_is_named(
    built: Built, monkeypatch: pytest.MonkeyPatch, page: int, column: str, value: Any
) -> None:
    monkeypatch.setattr(chain_rows, "_LEAVES", page)
    batch, ids = next(iter(built.batches.items()))
    _set("accounts_sealedassignment", column, value, "generation_id", ids[2].hex)
    assert named()[:3] == ("assignment", batch, "altered")


def test_a_leaf_whose_id_is_written_in_another_way_is_named(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    _set("accounts_sealedassignment", "generation_id", ids[2].hex.upper(), "generation_id", ids[2].hex)
    assert named() == ("assignment", batch, "altered", str(ids[2]))


def test_a_head_that_cannot_be_read_is_found(built: Built) -> None:
    _set("accounts_audithead", "sequence", "x", "id", 1)
    assert named()[:3] == ("head", 0, "altered")


@pytest.mark.parametrize(
    ("column", "value"), [("last_sequence", "x"), ("file_bytes", "x"), ("last_hash", _NO_TEXT)]
)
def test_an_archive_that_cannot_be_read_is_named(built: Built, column: str, value: Any) -> None:
    _set("accounts_auditarchive", column, value, "first_sequence", 1)
    assert named()[:3] == ("archive", 1, "altered")


def test_a_leaf_in_no_place_is_found(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    SealedAssignment.objects.create(generation_id=built.unsealed, batch=99, index=0, hash="0" * 64)
    _set("accounts_sealedassignment", "batch", "x", "batch", 99)
    assert named() == ("assignment", 0, "misplaced", str(built.unsealed))
    _set("accounts_sealedassignment", "batch", "x", "generation_id", ids[4].hex)
    assert named()[:3] == ("assignment", batch, "missing")


@pytest.mark.parametrize(
    ("column", "value"),
    [("at", "2026-99-99 00:00:00"), ("at", "yesterday"), ("sequence", "x"), ("hash", _NO_TEXT)],
)
def test_a_checkpoint_that_cannot_be_read_is_found(built: Built, column: str, value: Any) -> None:
    _set("accounts_auditcheckpoint", column, value, "sequence", built.checkpoint)
    assert (named()[0], named()[2]) == ("checkpoint", "altered")


def test_personal_values_that_cannot_be_read_are_named(built: Built) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE accounts_auditpersonalvalue SET value = CAST(%s AS TEXT) WHERE sequence = %s AND path = 'address'",
            [_NO_TEXT, built.first + 1],
        )
    assert named()[:3] == ("event", built.first + 1, "altered")


def test_sealing_goes_on_behind_a_batch_that_cannot_be_read(built: Built) -> None:
    _set("accounts_auditevent", "after", "{", "sequence", max(built.batches))
    assert sealing.unsealed().count == 1
    assert sealing.seal(timezone.now()) == 1
    assert AuditEvent.objects.filter(sequence=built.head + 1).exists()


# Anything in any column

#: What SQLite stores wherever it is put, and the expression that it is put through.
GARBAGE: dict[str, tuple[Any, str]] = {
    "bytes": (b"\x00\xff", "%s"),
    "no text": (_NO_TEXT, "CAST(%s AS TEXT)"),
    "text": ("x", "%s"),
    "no text at all": ("", "%s"),
    "infinity": (float("inf"), "%s"),
    "minus infinity": (float("-inf"), "%s"),
    "a fraction": (1.5, "%s"),
    "a huge number": (2**63 - 1, "%s"),
    "a negative number": (-7, "%s"),
    "deep": (_DEEP, "%s"),
    "a year that there is not": ("10000-01-01 00:00:00", "%s"),
    "the first moment": ("0001-01-01 00:00:00", "%s"),
    "nothing": (None, "%s"),
}


def _rows(built: Built) -> dict[str, tuple[models.Model, set[str]]]:
    """Of each table a row, and what may be named instead of it: its kind, and that of what it belongs to."""
    _, ids = next(iter(built.batches.items()))
    with every_tenant("the test looks"):
        assignment = LaneAssignment.objects.get(pk=ids[2])
    return {
        "event": (AuditEvent.objects.get(sequence=built.first + 2), {"event"}),
        "assignment": (assignment, {"assignment"}),
        "leaf": (SealedAssignment.objects.get(pk=ids[2]), {"assignment"}),
        "value": (AuditPersonalValue.objects.exclude(person_id=None).order_by("-event_id")[0], {"event"}),
        "head": (AuditHead.objects.get(), {"head", "event", "checkpoint"}),
        "archive": (AuditArchive.objects.get(), {"archive"}),
        "checkpoint": (AuditCheckpoint.objects.get(sequence=built.checkpoint), {"checkpoint"}),
        "key": (AuditSigningKey.objects.get(), {"key", "checkpoint"}),
    }


#: Columns that prove nothing by themselves.
_NO_PROOF = {("value", "id"), ("checkpoint", "id"), ("head", "id")}
#: What a column may hold, where no hash and no signature covers it.
_ALLOWED = {
    ("value", "person_id", "nothing"),
    ("archive", "created_at", "the first moment"),
    ("key", "created_at", "the first moment"),
    # The first key has none, because no key vouches for it.
    ("key", "signature", "text"),
}
#: What is tried in each column; all of it in one of each type.
_EVERYWHERE = ("bytes", "no text", "text")


@pytest.mark.slow
@pytest.mark.parametrize(
    "table", ["event", "assignment", "leaf", "value", "head", "archive", "checkpoint", "key"]
)
def test_anything_in_any_column_is_a_fault_that_names_the_record(built: Built, table: str) -> None:
    row, kinds = _rows(built)[table]
    tried = set()
    for field in row._meta.concrete_fields:
        column = str(field.column)
        before = raw(row, column)
        kinds_of_garbage = _EVERYWHERE if type(field) in tried else GARBAGE
        tried.add(type(field))
        for what in kinds_of_garbage:
            value, sql = GARBAGE[what]
            if (table, column) in _NO_PROOF or (table, column, what) in _ALLOWED:
                continue
            with undone():
                try:
                    with transaction.atomic():
                        set_raw(row, column, value, sql=sql)
                except IntegrityError:
                    continue
                if _stands(row, column, before):
                    continue
                fault = verify(from_scratch=True).fault
                assert fault is not None, f"{column}: {what} was not found"
                assert fault.kind in kinds, f"{column}: {what}: {fault}"
                if table in ("assignment", "leaf") and column != "generation_id":
                    assert fault.id in (str(row.pk), ""), f"{column}: {what}: {fault}"
                if table == "event" and column != "sequence":
                    assert fault.sequence == built.first + 2, f"{column}: {what}: {fault}"


def _stands(row: models.Model, column: str, before: Any) -> bool:
    """Whether the column holds what it did. (A row whose key was changed is not found by it.)"""
    if row._meta.pk is not None and row._meta.pk.column == column:
        return False
    try:
        return bool(raw(row, column) == before)
    except DatabaseError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("from_scratch", [True, False])
@pytest.mark.parametrize("what", GARBAGE)
def test_a_verification_that_cannot_be_read_is_taken_for_none(
    built: Built, what: str, from_scratch: bool
) -> None:
    stored = verify_and_store(from_scratch=True)
    value, sql = GARBAGE[what]
    for field in AuditVerification._meta.concrete_fields:
        with undone():
            try:
                with transaction.atomic():
                    set_raw(stored, str(field.column), value, sql=sql)
            except IntegrityError:
                continue
            found = verify(from_scratch=from_scratch)
            # Any whole number may be what was found, and any text the hash there.
            if field.attname not in ("last_sequence", "last_hash"):
                assert found.fault is None, f"{field.column}: {found.fault}"
            verification.last_good()


def test_leaves_of_all_kinds_of_batches_are_never_an_exception(built: Built) -> None:
    batch, ids = next(iter(built.batches.items()))
    leaf = SealedAssignment.objects.get(pk=ids[2])
    for value in (
        batch + 0.5,
        batch - 0.5,
        0.25,
        -0.25,
        built.head + 0.5,
        "3",
        "",
        b"",
        b"3",
        10**18,
        -(10**18),
    ):
        with undone():
            set_raw(leaf, "batch", value)
            fault = verify(from_scratch=True).fault
            assert fault is not None, value
            assert fault.kind == "assignment", value


def test_an_archive_or_a_head_whose_numbers_are_texts_does_not_stop_what_is_told(built: Built) -> None:
    for row, column in (
        (AuditHead.objects.get(), "hash"),
        (AuditArchive.objects.get(), "first_sequence"),
        (AuditSigningKey.objects.get(), "created_at"),
        (AuditSigningKey.objects.get(), "public_key"),
    ):
        with undone():
            set_raw(row, column, _NO_TEXT, sql="CAST(%s AS TEXT)")
            stored = verify_and_store(from_scratch=True)
            assert stored.fault is not None
