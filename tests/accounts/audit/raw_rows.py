"""Rows changed below Django, as by somebody who owns the database: what stands in them may be anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, models, transaction


@contextmanager
def undone() -> Iterator[None]:
    """What is done in it is undone at its end."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def unchecked(model: type[models.Model]) -> Iterator[None]:
    """Without the table's check constraints, inside of a test's own transaction."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
            yield
            cursor.execute("PRAGMA ignore_check_constraints = OFF")
            return
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = %s::regclass",
            [model._meta.db_table],
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f'ALTER TABLE {model._meta.db_table} DROP CONSTRAINT "{name}"')
        yield


def raw(row: models.Model, column: str) -> Any:
    """What stands in a column of the row, not converted."""
    key, value = _key(row)
    with connection.cursor() as cursor:
        # As an expression, so that the driver does not know the column's type.
        cursor.execute(f'SELECT +"{column}" FROM {row._meta.db_table} WHERE "{key}" = %s', [value])
        [(found,)] = cursor.fetchall()
    return found


def set_raw(row: models.Model, column: str, value: Any, *, sql: str = "%s") -> None:
    """Let ``value`` stand in a column of the row; ``sql`` is the expression that it is put through."""
    key, by = _key(row)
    with unchecked(type(row)), connection.cursor() as cursor:
        cursor.execute(f'UPDATE {row._meta.db_table} SET "{column}" = {sql} WHERE "{key}" = %s', [value, by])
        assert cursor.rowcount == 1


def copy_row(row: models.Model, **columns: Any) -> None:
    """Insert the row once more, with other values in some columns."""
    key, by = _key(row)
    meta = row._meta
    kept = [
        field.column
        for field in meta.concrete_fields
        if field.column not in columns and not isinstance(field, models.AutoField)
    ]
    names = ", ".join(f'"{name}"' for name in [*columns, *kept])
    values = ", ".join([*["%s"] * len(columns), *(f'"{name}"' for name in kept)])
    with unchecked(type(row)), connection.cursor() as cursor:
        cursor.execute(
            f'INSERT INTO {meta.db_table} ({names}) SELECT {values} FROM {meta.db_table} WHERE "{key}" = %s',
            [*columns.values(), by],
        )
        assert cursor.rowcount == 1


def _key(row: models.Model) -> tuple[str, Any]:
    key = row._meta.pk
    assert key is not None
    return str(key.column), key.get_db_prep_value(row.pk, connection)
