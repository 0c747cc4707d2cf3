"""Whether the database has the tables that this code expects.

Asked once, by a process that starts: without them it would answer every request with a traceback.
"""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor


class NotMigratedError(RuntimeError):
    """Migrations are missing; the message says how they are made up for."""


def require_migrated() -> None:
    """Raise ``NotMigratedError`` where the database lacks a migration: it is empty, or older than the code.

    A database that cannot be reached is none of its business: it may come back, and whoever uses it says so.
    """
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError:
        return
    finally:
        connection.close()
    if not missing:
        return
    state = "is older than this version" if executor.loader.applied_migrations else "is empty"
    first, _ = missing[0]
    raise NotMigratedError(
        f"The database {state}: {len(missing)} migrations are missing, {first} first. "
        "Run `manage.py migrate` (`manage.py up` does it by itself)."
    )
