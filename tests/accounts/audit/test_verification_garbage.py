"""Rows that cannot even be read (SQLite stores anything in any column) are named like those that were altered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from accounts.audit import chain_rows, sealing
from accounts.audit.verification import verify
from accounts.models import AuditEvent, SealedAssignment
from tests.accounts.audit.chains import Built, Tampering, build
from tests.accounts.audit.own_state import settle

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
