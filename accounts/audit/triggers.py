"""The database refuses to change what is chained: triggers on SQLite and PostgreSQL.

They stop mistakes, faults of ours and injected statements; whoever owns the database can drop them, which is what the
chain and its checkpoints are for. They are taken away before a migration, because SQLite cannot rebuild a table that
another one's trigger reads, and put in place after it. Readiness asks whether they are there.

Nothing that is chained can be updated or truncated. It can be deleted only once an ``AuditArchive`` row covers it and
an event of the chain tells of that row: whoever makes up the row has to make up an event too, and to have the head go
through it. Personal values can be deleted (that is erasure), not rewritten. The head only moves on. On SQLite ``INSERT
OR REPLACE`` deletes without asking a trigger, so the place of a row that is there refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model, UniqueConstraint

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


@dataclass(frozen=True, slots=True)
class _Guard:
    """What is refused of one table. ``OLD`` and ``NEW`` are the row's two states in its SQL conditions."""

    model: type[Model]
    #: Under which condition an update passes; empty: never.
    update_if: str = ""
    #: Under which condition a delete passes; empty: never.
    delete_if: str = ""

    @property
    def table(self) -> str:
        return self.model._meta.db_table


def unique_columns(model: type[Model]) -> list[tuple[str, ...]]:
    """The columns in which no two rows of a table are the same, each set of them."""
    meta = model._meta
    columns = {field.name: str(field.column) for field in meta.concrete_fields}
    alone = [(columns[field.name],) for field in meta.concrete_fields if field.unique]
    together = [one.fields for one in meta.constraints if isinstance(one, UniqueConstraint)]
    return [*alone, *(tuple(columns[name] for name in names) for names in together)]


#: That ``number`` is archived: an archive covers it, and an event vouches for that, which is behind the archive (a row
#: cannot vouch for its own deletion), not behind the head, and no fraction (SQLite has them between those taken).
_ARCHIVED: Final = (
    "EXISTS (SELECT 1 FROM accounts_auditarchive a, accounts_auditevent e, accounts_audithead h "
    "WHERE {number} BETWEEN a.first_sequence AND a.last_sequence "
    "AND e.object_kind = 'audit_archive' AND e.object_id = CAST(a.first_sequence AS TEXT) "
    "AND e.action = 'audit.archive' AND e.sequence > a.last_sequence AND e.sequence = CAST(e.sequence AS BIGINT) "
    "AND h.id = 1 AND e.sequence <= h.sequence)"
)

GUARDS: Final = (
    _Guard(AuditEvent, delete_if=_ARCHIVED.format(number="OLD.sequence")),
    _Guard(
        LaneAssignment,
        delete_if=(
            "EXISTS (SELECT 1 FROM accounts_sealedassignment s "  # noqa: S608 — our own names
            f"WHERE s.generation_id = OLD.generation_id AND {_ARCHIVED.format(number='s.batch')})"
        ),
    ),
    _Guard(SealedAssignment, delete_if=_ARCHIVED.format(number="OLD.batch")),
    _Guard(AuditPersonalValue, delete_if="1 = 1"),
    _Guard(AuditHead, update_if="NEW.id = OLD.id AND NEW.sequence > OLD.sequence"),
    _Guard(AuditSigningKey),
    _Guard(AuditCheckpoint),
    _Guard(AuditArchive),
)


def install(using: str = DEFAULT_DB_ALIAS) -> None:
    """Put every trigger in place, in the form that this version has. May be repeated."""
    connection = connections[using]
    with connection.cursor() as cursor:
        for guard in GUARDS:
            for statement in _statements(connection, guard):
                cursor.execute(statement)


def remove(using: str = DEFAULT_DB_ALIAS) -> None:
    """Take every trigger away. May be repeated, and where there are no tables yet."""
    connection = connections[using]
    with connection.cursor() as cursor:
        for guard in GUARDS:
            for name in _names(connection, guard):
                on_table = "" if connection.vendor == "sqlite" else f" ON {guard.table}"
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}{on_table}")


def missing(using: str = DEFAULT_DB_ALIAS) -> list[str]:
    """The names of the triggers that are not in place, are switched off, or are others than ours. One query."""
    connection = connections[using]
    # What a trigger does: on SQLite its own text has it, on PostgreSQL its function, and no condition of its own.
    query = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        if connection.vendor == "sqlite"
        else "SELECT tgname, prosrc FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
        "WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgqual IS NULL"
    )
    with connection.cursor() as cursor:
        cursor.execute(query)
        present = dict(cursor.fetchall())
    return [
        name
        for guard in GUARDS
        for name, does in _texts(connection, guard).items()
        if present.get(name) != does
    ]


def remove_before_migrate(*, using: str, **_: Any) -> None:
    """Receiver of ``pre_migrate``."""
    remove(using)


def install_after_migrate(*, using: str, **_: Any) -> None:
    """Receiver of ``post_migrate``. Tables may be missing where a migration was run to an older state."""
    tables = set(connections[using].introspection.table_names())
    if all(guard.table in tables for guard in GUARDS):
        install(using)


def _names(connection: BaseDatabaseWrapper, guard: _Guard) -> list[str]:
    return list(_texts(connection, guard))


def _texts(connection: BaseDatabaseWrapper, guard: _Guard) -> dict[str, str]:
    """What each trigger of a table does, by the trigger's name, as the database has it written."""
    if connection.vendor == "sqlite":
        return _sqlite_triggers(guard)
    return {f"{guard.table}_refuses_{kind}": _body(guard) for kind in ("change", "truncate")}


def _statements(connection: BaseDatabaseWrapper, guard: _Guard) -> Sequence[str]:
    return _on_sqlite(guard) if connection.vendor == "sqlite" else _on_postgresql(guard)


def _message(guard: _Guard, what: str) -> str:
    return f"{guard.table} is append-only: {what} refused"


def _on_sqlite(guard: _Guard) -> list[str]:
    triggers = _sqlite_triggers(guard)
    return [
        statement for name in triggers for statement in (f"DROP TRIGGER IF EXISTS {name}", triggers[name])
    ]


def _sqlite_triggers(guard: _Guard) -> dict[str, str]:
    table = guard.table
    conditions = {
        "update": ("UPDATE", guard.update_if and f"NOT ({guard.update_if})"),
        "delete": ("DELETE", guard.delete_if and f"NOT ({guard.delete_if})"),
        "replace": ("INSERT", _is_there(guard)),
    }
    return {
        f"{table}_refuses_{kind}": (
            f"CREATE TRIGGER {table}_refuses_{kind} BEFORE {verb} ON {table} FOR EACH ROW "
            f"{f'WHEN {when} ' if when else ''}BEGIN SELECT RAISE(ABORT, '{_message(guard, verb)}'); END"
        )
        for kind, (verb, when) in conditions.items()
    }


def _is_there(guard: _Guard) -> str:
    """That a row is there which the new one would take the place of: by its key, or by another unique column."""
    return " OR ".join(
        f"EXISTS (SELECT 1 FROM {guard.table} WHERE "  # noqa: S608 — our own names
        + " AND ".join(f'"{column}" = NEW."{column}"' for column in columns)
        + ")"
        for columns in unique_columns(guard.model)
    )


def _body(guard: _Guard) -> str:
    """What the function does that both triggers of a table on PostgreSQL call."""
    return f"""
        BEGIN
            IF TG_OP = 'UPDATE' THEN
                IF {guard.update_if or "false"} THEN RETURN NEW; END IF;
            ELSIF TG_OP = 'DELETE' THEN
                IF {guard.delete_if or "false"} THEN RETURN OLD; END IF;
            END IF;
            RAISE EXCEPTION '{guard.table} is append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
        END
        """


def _on_postgresql(guard: _Guard) -> list[str]:
    table = guard.table
    function = f"{table}_refuse"
    return [
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $body${_body(guard)}$body$",
        f"DROP TRIGGER IF EXISTS {table}_refuses_change ON {table}",
        f"CREATE TRIGGER {table}_refuses_change BEFORE UPDATE OR DELETE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}()",
        f"DROP TRIGGER IF EXISTS {table}_refuses_truncate ON {table}",
        f"CREATE TRIGGER {table}_refuses_truncate BEFORE TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
    ]
