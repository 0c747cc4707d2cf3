"""Whatever is done to any row of a chain: it is found, and nothing that is whole is named before it.

Hypothesis draws what is done: bits flipped in any column, its text cut short, rows dropped, exchanged, put in, moved,
an end cut off, all of it by somebody who knows how records are hashed, or does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import DatabaseError, connection, models, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts.audit import archive_files, signing_keys
from accounts.audit.faults import Fault
from accounts.audit.verification import verify
from accounts.models import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    AuditSigningKey,
    LaneAssignment,
    SealedAssignment,
)
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import Built, Tampering, build, chain_anew, forge, set_row
from tests.accounts.audit.own_state import settle
from tests.accounts.audit.raw_rows import copy_row
from tests.factories import ACTOR

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.timeout(900)]

#: Columns that prove nothing, or of which another row tells.
_OTHERS = {
    AuditCheckpoint: {"id"},
    AuditArchive: {"created_at"},
    AuditHead: {"id"},
    AuditPersonalValue: {"id", "event"},
}
_TABLES = (
    AuditEvent,
    LaneAssignment,
    SealedAssignment,
    AuditHead,
    AuditCheckpoint,
    AuditArchive,
    AuditPersonalValue,
    AuditSigningKey,
)
_EXAMPLES = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tampering: Tampering) -> Iterator[Built]:
    settle(monkeypatch, tmp_path)
    chain = build(tampering)
    with tampering():
        yield chain


@pytest.fixture
def with_keys(built: Built) -> Built:
    """The same with a second key, which the first one vouches for, in an event behind all others."""
    signing_keys.rotate(actor=ACTOR)
    return replace(built, head=built.head + 1)


class _Refused(Exception):
    """The database itself does not let it be done."""


def _attempt(tamper: Callable[[], Any]) -> Fault | None:
    """What is found of it; nothing of it is left. Raises ``_Refused``."""
    with transaction.atomic():
        try:
            with transaction.atomic():
                tamper()
            return verify(from_scratch=True).fault
        except DatabaseError as error:
            raise _Refused from error
        finally:
            transaction.set_rollback(True)


def _rows(model: type[models.Model]) -> list[Any]:
    with every_tenant("the test looks"):
        return list(model._base_manager.order_by("pk"))


def _sequence_of(row: Any, built: Built) -> int:
    """The event at which a fault of ``row`` is to be found, or before it."""
    match row:
        case AuditEvent():
            return row.sequence
        case SealedAssignment():
            return row.batch
        case LaneAssignment():
            sealed = SealedAssignment.objects.filter(pk=row.pk).first()
            return sealed.batch if sealed else 0
        case AuditCheckpoint() | AuditSigningKey():
            # It may be said to be of any event now, or what it has signed is.
            return 2**63
        case AuditArchive():
            return row.last_sequence + 1
        case AuditPersonalValue():
            return int(row.event_id)
        case _:
            return built.head + 3


def _content(row: Any) -> list[Any]:
    """What a row says, however it is written."""
    unread = _OTHERS.get(type(row), set())
    return [getattr(row, field.attname) for field in row._meta.fields if field.name not in unread]


# Bytes


@dataclass(frozen=True)
class _Spoiling:
    """Of what stands in a column, as text, one bit of a character is flipped (None: it is cut off there)."""

    row: Any
    field: Any
    at: int
    bit: int | None

    def do(self) -> None:
        table, key = self.row._meta.db_table, self.row._meta.pk
        column = f'"{self.field.column}"'
        where = f'FROM {table} WHERE "{key.column}" = %s'
        by = key.get_db_prep_value(self.row.pk, connection)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT CAST({column} AS TEXT) {where}", [by])
            [(text,)] = cursor.fetchall()
            if not text:
                raise DatabaseError("there is nothing to spoil")
            at = self.at % len(text)
            spoiled = text[:at]
            if self.bit is not None:
                spoiled += chr(ord(text[at]) ^ (1 << self.bit)) + text[at + 1 :]
            kind = "TEXT" if connection.vendor == "sqlite" else self.field.db_type(connection)
            cursor.execute(
                f'UPDATE {table} SET {column} = CAST(%s AS {kind}) WHERE "{key.column}" = %s', [spoiled, by]
            )


def _is_unchanged(row: Any) -> bool:
    """Whether the row says what it said: it was only written in another way, as an id in capitals."""
    try:
        with every_tenant("the test looks"):
            now = type(row)._base_manager.filter(pk=row.pk).first()
        return now is not None and _content(now) == _content(row)
    except (ValueError, TypeError, AttributeError, DatabaseError):
        return False


@settings(_EXAMPLES, max_examples=96)
@given(data=st.data())
def test_a_flipped_bit_or_a_lost_end_in_any_column_of_any_row_is_found(
    with_keys: Built, data: st.DataObject
) -> None:
    built = with_keys
    model = data.draw(st.sampled_from(_TABLES))
    rows = [row for row in _rows(model) if row.pk != built.unsealed]
    row = data.draw(st.sampled_from(rows))
    fields = [field for field in row._meta.fields if field.name not in _OTHERS.get(model, set())]
    spoiling = _Spoiling(
        row,
        data.draw(st.sampled_from(fields)),
        data.draw(st.integers(0, 200)),
        data.draw(st.none() | st.integers(0, 5)),
    )
    unchanged = False

    def tamper() -> None:
        nonlocal unchanged
        spoiling.do()
        unchanged = _is_unchanged(row)

    try:
        found = _attempt(tamper)
    except _Refused:
        return
    if found is None:
        # PostgreSQL reads a value, of which there are several texts, and keeps one form of it.
        assert unchanged, f"{spoiling} was not found"
        assert connection.vendor == "postgresql", f"{spoiling} was not found"
        return
    assert found.sequence <= _sequence_of(row, built), f"{spoiling}: {found} is not the first"
    if model in (AuditEvent, LaneAssignment) and spoiling.field.name not in ("sequence", "generation_id"):
        assert found.sequence == _sequence_of(row, built), f"{spoiling}: {found} is whole"


# Rows


def _drop(row: Any) -> Callable[[], None]:
    def do() -> None:
        with every_tenant("the test takes one away"):
            type(row)._base_manager.filter(pk=row.pk).delete()

    return do


def _exchange(one: Any, other: Any) -> Callable[[], None]:
    """Each gets the other's place: its key, or what stands in for it."""

    def do() -> None:
        if isinstance(one, SealedAssignment):
            set_row(one, index=10_000)
            set_row(other, batch=one.batch, index=one.index)
            set_row(one, batch=other.batch, index=other.index)
            return
        key, aside = one._meta.pk.attname, 10_000
        if isinstance(one, LaneAssignment):
            fields = [field.attname for field in one._meta.fields if not field.primary_key]
            set_row(one, **{name: getattr(other, name) for name in fields})
            set_row(other, **{name: getattr(one, name) for name in fields})
            return
        first, second = one.pk, other.pk
        set_row(one, **{key: aside})
        set_row(other, **{key: first})
        set_row(type(one)(pk=aside), **{key: second})

    return do


@_EXAMPLES
@given(data=st.data())
def test_a_dropped_row_is_found_and_named(with_keys: Built, data: st.DataObject) -> None:
    built = with_keys
    model = data.draw(
        st.sampled_from(
            (AuditEvent, LaneAssignment, SealedAssignment, AuditHead, AuditArchive, AuditSigningKey)
        )
    )
    row = data.draw(st.sampled_from([row for row in _rows(model) if row.pk != built.unsealed]))
    found = _attempt(_drop(row))
    assert found is not None, f"that {row!r} is gone was not found"
    if model is AuditArchive:
        assert found.sequence == 1
    elif model is AuditHead:
        assert (found.kind, found.reason) == ("head", "missing")
    elif model is AuditSigningKey:
        # Of the first one what it has signed comes before it.
        assert (found.kind, found.id) == ("key", row.pk) or found.reason == "unknown_key"
    else:
        assert found.sequence == _sequence_of(row, built)
        assert found.reason in ("missing", "truncated")


@_EXAMPLES
@given(data=st.data())
def test_exchanged_rows_are_found_and_the_first_is_named(built: Built, data: st.DataObject) -> None:
    model = data.draw(st.sampled_from((AuditEvent, LaneAssignment, SealedAssignment)))
    rows = [row for row in _rows(model) if row.pk != built.unsealed]
    one, other = data.draw(
        st.lists(st.sampled_from(rows), min_size=2, max_size=2, unique_by=lambda row: row.pk)
    )
    found = _attempt(_exchange(one, other))
    assert found is not None, f"that {one!r} and {other!r} were exchanged was not found"
    assert found.sequence == min(_sequence_of(one, built), _sequence_of(other, built))


@_EXAMPLES
@given(data=st.data())
def test_an_event_that_was_put_in_with_a_hash_of_its_own_is_found(built: Built, data: st.DataObject) -> None:
    place = data.draw(st.integers(built.first, built.head + 1))
    hashed = data.draw(st.booleans())

    def tamper() -> None:
        for later in AuditEvent.objects.filter(sequence__gte=place).order_by("-sequence"):
            set_row(later, sequence=later.sequence + 1)
        AuditPersonalValue.objects.filter(event_id__gte=place).delete()
        before = AuditEvent.objects.filter(sequence=place - 1).first()
        AuditEvent.objects.create(
            sequence=place,
            format=2,
            at=AuditEvent.objects.order_by("-at")[0].at,
            actor_kind="system",
            action="thing.invent",
            object_kind="thing",
            object_id="1",
            previous_hash=before.hash if before else AuditArchive.objects.get().last_hash,
            hash="x" * 64,
        )
        if hashed:
            forge(place)

    found = _attempt(tamper)
    assert found is not None
    # Behind the end only the head knows better.
    assert found.sequence == (place if place <= built.head else built.head)
    if hashed and place < built.head:
        # Where a batch was, its leaves are of another event now; where the checkpoint was, it has another hash.
        assert found.reason in ("inserted", "misplaced", "rewritten")


#: What puts a row into a table; the kinds of fault that it may be found as, and the first and last event to name.
_PutIn = tuple[Callable[[], object], set[str], int, int]
_UNKNOWN = uuid.UUID("cd" * 16)


def _written(value: uuid.UUID) -> Any:
    return value.hex if connection.vendor == "sqlite" else value


def _an_assignment(built: Built, draw: Any) -> _PutIn:
    """One that nobody made, with a leaf in a batch that there is, or is not. (Without a leaf it waits to be sealed.)"""
    leaf = draw(st.sampled_from(_rows(SealedAssignment)))
    batch, index = draw(st.integers(1, built.head + 2)), draw(st.integers(0, 12))
    with every_tenant("the test looks"):
        assignment = LaneAssignment.objects.get(pk=leaf.pk)

    def do() -> None:
        copy_row(assignment, generation_id=_written(_UNKNOWN))
        copy_row(leaf, generation_id=_written(_UNKNOWN), batch=batch, index=index)

    return do, {"assignment"}, batch, batch


def _a_personal_value(built: Built, draw: Any) -> _PutIn:
    value = draw(st.sampled_from(_rows(AuditPersonalValue)))
    sequence, path = draw(st.integers(1, built.head + 3)), draw(st.sampled_from(["after.phone", value.path]))
    return lambda: copy_row(value, sequence=sequence, path=path), {"event"}, sequence, sequence


def _a_checkpoint(built: Built, draw: Any) -> _PutIn:
    """Of a true one, with something else in a column that is signed. (A second copy of one says nothing else.)"""
    row = draw(st.sampled_from(_rows(AuditCheckpoint)))
    sequence = draw(st.integers(0, built.head + 3).filter(lambda other: other != row.sequence))
    at = row._meta.get_field("at").get_db_prep_value(row.at + timedelta(seconds=1), connection)
    signed = {"sequence": sequence, "hash": "0" * 64, "key_id": "0" * 16, "signature": "0" * 128, "at": at}
    column = draw(st.sampled_from(sorted(signed)))
    stands_at = sequence if column == "sequence" else row.sequence

    def do() -> None:
        copy_row(row, id=_written(_UNKNOWN), **{column: signed[column]})

    return do, {"checkpoint"}, stands_at, stands_at


def _an_archive(built: Built, draw: Any) -> _PutIn:
    """One that has everything of a true one, but for its file and for an event that tells of it."""
    first = draw(st.integers(built.first, built.head))
    last = draw(st.integers(first, built.head))
    hashes = dict(AuditEvent.objects.values_list("sequence", "hash"))
    [true] = AuditArchive.objects.all()
    changes = {
        "first_sequence": first,
        "last_sequence": last,
        "previous_hash": hashes.get(first - 1, true.last_hash),
        "last_hash": hashes[last],
        "file_name": archive_files.name_of(first, last),
    }
    return lambda: copy_row(true, **changes), {"archive"}, built.first, first


def _a_key(built: Built, draw: Any) -> _PutIn:
    """Somebody's own, before, between or behind ours, signed by itself or by nobody."""
    private = Ed25519PrivateKey.from_private_bytes(draw(st.binary(min_size=32, max_size=32)))
    public = private.public_key().public_bytes_raw().hex()
    ours = signing_keys.public_keys()
    second = timedelta(seconds=1)
    forged = AuditSigningKey(
        id=signing_keys.id_of(public),
        public_key=public,
        signed_by=draw(st.sampled_from(["", ours[0].id, ours[-1].id])),
        created_at=draw(
            st.sampled_from(
                [
                    ours[0].created_at - second,
                    ours[0].created_at + timedelta(microseconds=1),
                    ours[-1].created_at + second,
                ]
            )
        ),
    )
    if forged.signed_by:
        forged.signature = private.sign(signing_keys.introduction(forged)).hex()
    # Between ours it seems to have signed then, and what was signed is looked at before the keys.
    return lambda: forged.save(force_insert=True), {"key", "checkpoint"}, 0, built.head


def _a_head(built: Built, draw: Any) -> _PutIn:
    [head] = _rows(AuditHead)
    return lambda: copy_row(head, id=2), {"head"}, 0, 0


@settings(_EXAMPLES, max_examples=40)
@given(data=st.data())
def test_a_row_that_was_put_into_any_table_is_found(with_keys: Built, data: st.DataObject) -> None:
    puts_in = data.draw(
        st.sampled_from([_an_assignment, _a_personal_value, _a_checkpoint, _an_archive, _a_key, _a_head])
    )
    do, kinds, first, last = puts_in(with_keys, data.draw)
    try:
        found = _attempt(do)
    except _Refused:
        return
    assert found is not None, f"{puts_in.__name__} was put in"
    assert found.kind in kinds
    assert first <= found.sequence <= last, f"{found} is not the first"


@_EXAMPLES
@given(data=st.data())
def test_an_end_that_was_cut_off_is_found(built: Built, data: st.DataObject) -> None:
    last = data.draw(st.integers(built.first, built.head - 1))
    rewound, leaves_too = data.draw(st.booleans()), data.draw(st.booleans())

    def tamper() -> None:
        AuditEvent.objects.filter(sequence__gt=last).delete()
        if leaves_too:
            SealedAssignment.objects.filter(batch__gt=last).delete()
            AuditPersonalValue.objects.filter(event_id__gt=last).delete()
        if rewound:
            AuditHead.objects.update(sequence=last, hash=AuditEvent.objects.get(sequence=last).hash)

    found = _attempt(tamper)
    if not rewound:
        assert found is not None
        assert (found.sequence, found.reason) == (last + 1, "truncated")
    elif last < built.checkpoint or not leaves_too:
        assert found is not None
    else:
        assert found is None, "that is for a checkpoint to tell, or for the last verification"


@_EXAMPLES
@given(data=st.data())
def test_a_chain_made_anew_is_found_by_the_checkpoint(built: Built, data: st.DataObject) -> None:
    first = data.draw(st.integers(built.first, built.checkpoint))
    column, value = data.draw(
        st.sampled_from(
            [("action", "thing.invent"), ("actor_id", "eve"), ("request_id", "req_9"), ("object_id", "9")]
        )
    )

    def tamper() -> None:
        set_row(AuditEvent.objects.get(sequence=first), **{column: value})
        chain_anew(first)

    found = _attempt(tamper)
    assert found is not None
    assert found.sequence <= built.checkpoint
    assert found.kind in ("checkpoint", "archive", "batch", "assignment", "event")
