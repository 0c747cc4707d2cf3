"""Do the tables hold their rows once each, and do all of their indexes show them?

Readers ask indexes. One that is out of step with its table hides rows from them that a walk along the chain still
finds; a table without its unique constraints may hold two rows where one was recorded, and shows either.
"""

from __future__ import annotations

from collections import defaultdict

from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import Model

from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.triggers import GUARDS, unique_columns


def check_constraints() -> None:
    """Raise ``Broken`` where a table of what is chained has lost a unique constraint."""
    with connection.cursor() as cursor:
        for guard in GUARDS:
            there = _unique_on(cursor, guard.table)
            for columns in unique_columns(guard.model):
                if frozenset(columns) not in there:
                    raise _bad(
                        guard.model,
                        f"has no unique constraint on {', '.join(columns)} any more: it was made anew",
                    )


def _unique_on(cursor: CursorWrapper, table: str) -> set[frozenset[str]]:
    """The sets of columns that are unique over all rows; Django's introspection counts those over some rows too."""
    if connection.vendor == "postgresql":
        cursor.execute(
            "SELECT array_agg(a.attname::text) FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
            "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid AND i.indisready "
            "AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid",
            [table],
        )
        return {frozenset(columns) for (columns,) in cursor.fetchall()}
    cursor.execute(
        "SELECT l.name, i.name FROM pragma_index_list(%s) l, pragma_index_info(l.name) i "
        'WHERE l."unique" AND NOT l.partial '
        "UNION ALL SELECT '', name FROM pragma_table_info(%s) WHERE pk",
        [table, table],
    )
    columns: dict[str, set[str]] = defaultdict(set)
    for index, column in cursor.fetchall():
        # An expression has no name, and says nothing of any column.
        columns[index].add(column or "")
    return {frozenset(names) for names in columns.values()}


def check_indexes() -> None:
    """Raise ``Broken`` where an index does not show the rows of its table. Reads all of them.

    Only SQLite has a check for it that whoever uses the database may run; PostgreSQL's is its extension ``amcheck``,
    for the database's owner.
    """
    if connection.vendor != "sqlite":
        return
    with connection.cursor() as cursor:
        for guard in GUARDS:
            cursor.execute(f"PRAGMA integrity_check('{guard.table}')")
            [said, *_] = (str(row[0]) for row in cursor.fetchall())
            if said != "ok":
                raise _bad(guard.model, f"and its indexes do not hold the same rows (SQLite: {said})")


def _bad(model: type[Model], what: str) -> Broken:
    table = model._meta.db_table
    return Broken(0, FaultKind.TABLE, FaultReason.ALTERED, f"The table {table} {what}.", record_id=table)
