"""The database itself refuses to change what is chained, by whatever way it is asked, on SQLite and on PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.db.models import F, Model
from django.test import Client

from accounts import audit
from accounts.audit import triggers, verification
from accounts.audit.canonical import GENESIS_HASH
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
from signalbox.health import NotReady
from tests.accounts.audit.older import record_in_format_1
from tests.accounts.audit.raw_rows import copy_row
from tests.factories import ACTOR

_AT = datetime(2027, 1, 2, tzinfo=UTC)
_GENERATION = uuid.UUID(int=5)


def _assignment() -> LaneAssignment:
    with every_tenant("test"):
        made: LaneAssignment = LaneAssignment.objects.create(
            generation_id=_GENERATION,
            tenant_id=uuid.uuid4(),
            tenant_name="Rail",
            given_lane="normal",
            reason="requested",
            entitlement_id=uuid.uuid4(),
            policy_version=1,
        )
    return made


def _event() -> AuditEvent:
    with transaction.atomic():
        return audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, {"n": 1})


def _personal_value() -> AuditPersonalValue:
    _event()
    value: AuditPersonalValue = AuditPersonalValue.objects.get(path="actor_name")
    return value


ROWS: dict[type[Model], Callable[[], Model]] = {
    AuditEvent: _event,
    LaneAssignment: _assignment,
    SealedAssignment: lambda: SealedAssignment.objects.create(
        generation_id=_GENERATION, batch=1, index=0, hash="ab" * 32
    ),
    AuditPersonalValue: _personal_value,
    AuditHead: lambda: AuditHead.objects.get(),
    AuditSigningKey: lambda: AuditSigningKey.objects.create(id="k", public_key="ab" * 32, created_at=_AT),
    AuditCheckpoint: lambda: AuditCheckpoint.objects.create(
        at=_AT, sequence=1, hash="ab" * 32, key_id="k", signature="cd" * 64
    ),
    AuditArchive: lambda: AuditArchive.objects.create(
        first_sequence=10,
        last_sequence=20,
        previous_hash="ab" * 32,
        last_hash="cd" * 32,
        assignments=0,
        file_name="x",
        file_sha256="ef" * 32,
        file_bytes=1,
        created_at=_AT,
    ),
}

pytestmark = pytest.mark.django_db
each_table = pytest.mark.parametrize("model", ROWS, ids=lambda model: model.__name__)


def _execute(sql: str, *values: Any) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, values)


def _rows(model: Any) -> list[dict[str, Any]]:
    with every_tenant("test"):
        return list(model._default_manager.order_by("pk").values())


def _refused(change: Callable[[], object]) -> None:
    with pytest.raises(DatabaseError, match="is append-only"), transaction.atomic():
        change()


def test_every_table_of_the_audit_is_guarded_or_said_not_to_be() -> None:
    """What is no proof: what one walk found, and what the operator has set (each change of that is an event)."""
    tables = {model.__name__ for model in apps.get_app_config("accounts").get_models()}
    of_the_audit = {name for name in tables if name.startswith("Audit")} | {
        "LaneAssignment",
        "SealedAssignment",
    }
    assert of_the_audit == {model.__name__ for model in ROWS} | {"AuditVerification", "AuditSettings"}
    assert {guard.model for guard in triggers.GUARDS} == set(ROWS)
    assert triggers.missing() == []


@each_table
def test_no_row_can_be_changed(model: Any) -> None:
    row = ROWS[model]()
    before = _rows(model)
    table, key = model._meta.db_table, model._meta.pk.column
    field = next(one for one in model._meta.concrete_fields if not one.primary_key)
    with every_tenant("test"):
        # To what it is already: it is the statement that is refused.
        _refused(lambda: model._default_manager.filter(pk=row.pk).update(**{field.attname: F(field.attname)}))
        _refused(row.save)
    _refused(lambda: _execute(f"UPDATE {table} SET {field.column} = {field.column}"))
    _refused(lambda: _execute(f"UPDATE {table} SET {key} = {key}"))
    assert _rows(model) == before


@each_table
def test_no_row_can_be_taken_out(model: Any) -> None:
    row = ROWS[model]()
    if model is AuditPersonalValue:
        row.delete()
        assert not model.objects.filter(pk=row.pk).exists()
        return
    before = _rows(model)
    with every_tenant("test"):
        _refused(row.delete)
        _refused(lambda: model._default_manager.filter(pk=row.pk).delete())
        _refused(lambda: model._default_manager.all()._raw_delete(using="default"))
    _refused(lambda: _execute(f"DELETE FROM {model._meta.db_table}"))
    assert _rows(model) == before


@each_table
def test_no_table_can_be_emptied_at_once(model: Any) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no TRUNCATE: it deletes")
    ROWS[model]()
    before = _rows(model)
    for cascade in ("", " CASCADE"):
        _refused(lambda cascade=cascade: _execute(f"TRUNCATE {model._meta.db_table}{cascade}"))
    assert _rows(model) == before


@each_table
def test_no_row_can_be_written_over(model: Any) -> None:
    """By the engine's own way to replace a row that is there: nothing of it is kept."""
    row = ROWS[model]()
    before = _rows(model)
    fields = model._meta.concrete_fields
    table, columns = model._meta.db_table, ", ".join(f'"{field.column}"' for field in fields)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {table} WHERE {model._meta.pk.column} = %s", [_raw(row)])
        [values] = cursor.fetchall()
    places = ", ".join(["%s"] * len(fields))
    if connection.vendor == "sqlite":
        for verb in ("INSERT OR REPLACE", "REPLACE"):
            _refused(
                lambda verb=verb: _execute(f"{verb} INTO {table} ({columns}) VALUES ({places})", *values)
            )
    else:
        key = model._meta.pk.column
        upsert = f"ON CONFLICT ({key}) DO UPDATE SET {key} = EXCLUDED.{key}"
        _refused(
            lambda: _execute(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE {key} = %s {upsert}",
                _raw(row),
            )
        )
    assert _rows(model) == before


def _raw(row: Model) -> Any:
    """The row's key as its table has it."""
    return row._meta.pk.get_db_prep_value(row.pk, connection)


def test_an_event_cannot_be_replaced_through_its_other_unique_column() -> None:
    """SQLite deletes what is in the way of ``INSERT OR REPLACE`` without asking a trigger: also by ``hash``."""
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite replaces rows")
    event = _event()
    columns = [field.column for field in AuditEvent._meta.concrete_fields if field.column != "sequence"]
    listed = ", ".join(f'"{column}"' for column in columns)
    into, source = (
        f"accounts_auditevent (sequence, {listed})",
        f"SELECT 99, {listed} FROM accounts_auditevent",
    )
    _refused(lambda: _execute(f"INSERT OR REPLACE INTO {into} {source}"))
    assert [row["sequence"] for row in _rows(AuditEvent)] == [event.sequence]


def test_the_head_moves_on_and_never_back() -> None:
    head = AuditHead.objects.get()
    AuditHead.objects.update(sequence=head.sequence + 5, hash="ab" * 32)
    for sequence in (head.sequence, head.sequence + 4, head.sequence + 5):
        _refused(lambda sequence=sequence: AuditHead.objects.update(sequence=sequence, hash="cd" * 32))
    assert AuditHead.objects.get().hash == "ab" * 32


def _archived(first: int, last: int) -> None:
    AuditArchive.objects.create(
        first_sequence=first,
        last_sequence=last,
        previous_hash=GENESIS_HASH,
        last_hash="cd" * 32,
        assignments=1,
        file_name="x",
        file_sha256="ef" * 32,
        file_bytes=1,
        created_at=_AT,
    )


def _vouch(first: int) -> AuditEvent:
    """The event that tells of the archive that begins with ``first``."""
    with transaction.atomic():
        return audit.record(
            ACTOR,
            "audit.archive",
            audit.ObjectRef("audit_archive", str(first)),
            None,
            {"first_sequence": first},
        )


def _sealed_chain() -> None:
    """Three events, the second and the third with a leaf, and the second's assignment."""
    for _ in range(3):
        _event()
    _assignment()
    SealedAssignment.objects.create(generation_id=_GENERATION, batch=2, index=0, hash="ab" * 32)
    SealedAssignment.objects.create(generation_id=uuid.uuid4(), batch=3, index=0, hash="ab" * 32)


def _refused_to_go(last: int) -> None:
    """Nothing of what there is up to the event ``last`` can be taken out."""
    with every_tenant("test"):
        _refused(lambda: LaneAssignment.objects.all()._raw_delete(using="default"))
    _refused(lambda: SealedAssignment.objects.filter(batch__lte=last)._raw_delete(using="default"))
    _refused(lambda: AuditEvent.objects.filter(sequence__lte=last)._raw_delete(using="default"))


def test_what_an_archive_covers_stays_while_no_event_tells_of_it() -> None:
    _sealed_chain()
    _archived(1, 2)
    _refused_to_go(2)
    _vouch(3)
    _refused_to_go(2)
    _vouch(1)
    with every_tenant("test"):
        assert LaneAssignment.objects.all()._raw_delete(using="default") == 1


def test_an_event_that_is_not_in_the_chain_vouches_for_nothing() -> None:
    """Behind the head it was recorded by nobody; and before its archive's end it would go with what it lets go."""
    _sealed_chain()
    told = _vouch(1)
    _archived(1, told.sequence)
    _refused_to_go(told.sequence)
    places: list[Any] = [told.sequence + 1, 10**9]
    if connection.vendor == "sqlite":
        places += [told.sequence + 0.5, "x", b"x", float("inf")]
    for number, place in enumerate(places):
        with transaction.atomic():
            copy_row(told, sequence=place, hash=f"{number:064}")
            _refused_to_go(told.sequence)
            transaction.set_rollback(True)


def test_only_what_an_archive_covers_can_be_taken_out() -> None:
    _sealed_chain()
    _archived(1, 2)
    _vouch(1)
    with every_tenant("test"):
        _refused(lambda: AuditEvent.objects.filter(sequence=3).delete())
        _refused(lambda: SealedAssignment.objects.filter(batch=3).delete())
        assert LaneAssignment.objects.all()._raw_delete(using="default") == 1
        assert SealedAssignment.objects.filter(batch=2)._raw_delete(using="default") == 1
        assert AuditEvent.objects.filter(sequence__lte=2)._raw_delete(using="default") == 2
    assert [row["sequence"] for row in _rows(AuditEvent)] == [3, 4]


def test_an_assignment_that_no_batch_has_sealed_stays() -> None:
    _event()
    _assignment()
    _archived(1, 1)
    _vouch(1)
    with every_tenant("test"):
        _refused(lambda: LaneAssignment.objects.all()._raw_delete(using="default"))


def test_a_trigger_that_is_missing_is_named_and_makes_the_site_unready(valkey: Any) -> None:
    guard = triggers.GUARDS[0]
    suffix = "update" if connection.vendor == "sqlite" else "change"
    name = f"accounts_auditevent_refuses_{suffix}"
    on_table = "" if connection.vendor == "sqlite" else f" ON {guard.table}"
    _execute(f"DROP TRIGGER {name}{on_table}")
    try:
        assert triggers.missing() == [name]
        answer = Client().get("/health/ready")
        assert (answer.status_code, answer.json()["reason"]) == (503, NotReady.AUDIT_UNGUARDED.value)
    finally:
        triggers.install()
    assert triggers.missing() == []
    assert Client().get("/health/ready").json()["reason"] != NotReady.AUDIT_UNGUARDED.value


def test_a_trigger_that_is_switched_off_counts_as_missing() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite switches no trigger off")
    name = "accounts_auditevent_refuses_change"
    _execute(f"ALTER TABLE accounts_auditevent DISABLE TRIGGER {name}")
    assert triggers.missing() == [name]
    _execute(f"ALTER TABLE accounts_auditevent ENABLE TRIGGER {name}")
    assert triggers.missing() == []


def test_a_trigger_of_the_same_name_that_refuses_nothing_counts_as_missing() -> None:
    table = triggers.GUARDS[0].table
    if connection.vendor == "sqlite":
        idle = [f"{table}_refuses_update"]
        _execute(f"DROP TRIGGER {idle[0]}")
        _execute(f"CREATE TRIGGER {idle[0]} BEFORE UPDATE ON {table} FOR EACH ROW BEGIN SELECT 1; END")
    else:
        # Both of its triggers call the one function.
        idle = [f"{table}_refuses_change", f"{table}_refuses_truncate"]
        _execute(
            f"CREATE OR REPLACE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RETURN NEW; END'"
        )
    assert triggers.missing() == idle
    triggers.install()
    assert triggers.missing() == []


def test_they_can_be_put_in_place_again_and_again() -> None:
    triggers.install()
    triggers.install()
    assert triggers.missing() == []
    triggers.remove()
    triggers.remove()
    assert len(triggers.missing()) == len(triggers.GUARDS) * (3 if connection.vendor == "sqlite" else 2)
    triggers.install()
    assert triggers.missing() == []


@pytest.mark.django_db(transaction=True)
def test_a_migration_takes_them_away_and_puts_them_back() -> None:
    """Backwards to what had no such tables, and forwards again, with what older versions had written in between."""
    _event()
    kept = _rows(LaneAssignment), AuditEvent.objects.count()
    try:
        call_command("migrate", "accounts", "0009", verbosity=0)
        with connection.cursor() as cursor:
            tables = connection.introspection.table_names(cursor)
            cursor.execute("UPDATE accounts_auditevent SET request_id = request_id")
        assert "accounts_sealedassignment" not in tables
    finally:
        call_command("migrate", verbosity=0)
    assert triggers.missing() == []
    _refused(lambda: AuditEvent.objects.update(request_id=""))
    assert (_rows(LaneAssignment), AuditEvent.objects.count()) == kept


@pytest.mark.django_db(transaction=True)
def test_a_chain_that_was_begun_by_an_older_version_goes_on_after_the_migration(tampering: Any) -> None:
    record_in_format_1(2, tampering)
    call_command("migrate", verbosity=0)
    _event()
    found = verification.verify(from_scratch=True)
    assert (found.events, found.fault) == (3, None)
