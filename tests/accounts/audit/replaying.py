"""A chain that the product's own functions made once, put again into every later test's database and state directory.

Making it takes a third of a second of a processor, and hundreds of tests begin with the same one. What is put again is
what stood in the rows and files, sign for sign.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Generic, TypeVar

from django.apps import apps
from django.db import connection

from accounts.audit import archive_files
from accounts.models import AuditHead
from tests.fixtures.audit_triggers import without_triggers
from tests.state_directory import STATE_DIR

Made = TypeVar("Made")

#: A value as it would stand in a statement.
_LITERAL = {"sqlite": "quote({})", "postgresql": "quote_nullable({}::text)"}


@dataclass(frozen=True)
class _Recording(Generic[Made]):
    made: Made
    statements: list[str]
    files: Path


def made_once(make: Callable[..., Made]) -> Callable[..., Made]:
    """``make`` writes an audit's first chain; from its second call on, what it wrote then is written again.

    Where a test has begun a chain already, ``make`` itself goes on with that one. It is to make the same whatever
    fixtures it is handed.
    """
    recorded: list[_Recording[Made]] = []

    @wraps(make)
    def make_or_replay(*fixtures: Any) -> Made:
        state = archive_files.configuration().state_dir
        if AuditHead.objects.get().sequence != 0 or _has_files(state):
            return make(*fixtures)
        if not recorded:
            made = make(*fixtures)
            recorded.append(_Recording(made, list(_statements()), STATE_DIR / f"made-{make.__name__}"))
            _copy(state, recorded[0].files)
            return made
        with without_triggers(), connection.cursor() as cursor:
            for statement in recorded[0].statements:
                cursor.execute(statement)
        _copy(recorded[0].files, state)
        return recorded[0].made

    return make_or_replay


def _statements() -> Iterator[str]:
    """What makes the audit's tables what they are now."""
    literal = _LITERAL[connection.vendor]
    for model in apps.get_app_config("accounts").get_models():
        if not model.__name__.startswith(("Audit", "LaneAssignment", "SealedAssignment")):
            continue
        table = connection.ops.quote_name(model._meta.db_table)
        columns = [connection.ops.quote_name(field.column) for field in model._meta.concrete_fields]
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(map(literal.format, columns))} FROM {table}")
            rows = cursor.fetchall()
        yield f"DELETE FROM {table}"
        if rows:
            values = ", ".join(f"({', '.join(row)})" for row in rows)
            yield f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values}"


#: Where a chain's files are: its archives, its checkpoints outside of the database, its keys.
_DIRECTORIES = ("audit", "secrets")


def _has_files(state: Path) -> bool:
    return any(path.is_file() for name in _DIRECTORIES for path in (state / name).rglob("*"))


def _copy(one: Path, other: Path) -> None:
    for name in _DIRECTORIES:
        if (one / name).is_dir():
            shutil.copytree(one / name, other / name, dirs_exist_ok=True)
