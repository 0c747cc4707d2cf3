"""Rows that readers do not see, and rows that are there twice: a walk along the chain finds each of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from accounts.audit import verification
from accounts.audit.faults import Fault, FaultKind
from accounts.models import LaneAssignment
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import seal
from tests.accounts.audit.own_state import settle

pytestmark = pytest.mark.django_db(transaction=True)
only_on_sqlite = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="PostgreSQL lets nobody detach an index from its table"
)
_TABLE = LaneAssignment._meta.db_table


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settle(monkeypatch, tmp_path)


def found(*, from_scratch: bool = True) -> Fault | None:
    return verification.verify(from_scratch=from_scratch).fault


@pytest.fixture
def sealed(tampering: Any) -> None:
    with tampering():
        seal(6)
    assert found() is None


@only_on_sqlite
@pytest.mark.usefixtures("sealed")
def test_an_index_that_does_not_show_a_row_is_found(tampering: Any) -> None:
    with tampering(), every_tenant("test"), connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = %s AND sql IS NOT NULL",
            [_TABLE],
        )
        [(name, sql), *_] = cursor.fetchall()
        [hidden] = LaneAssignment.objects.order_by("generation_id").values_list("pk", flat=True)[:1]
        cursor.execute(f"DROP INDEX {name}")
        # An index of fewer rows, which then says of itself that it has all.
        cursor.execute(f"{sql} WHERE generation_id <> '{hidden.hex}'")
        cursor.execute("PRAGMA writable_schema = 1")
        cursor.execute("UPDATE sqlite_master SET sql = %s WHERE name = %s", [sql, name])
        cursor.execute("PRAGMA writable_schema = RESET")
    fault = found()
    assert fault is not None
    assert (fault.kind, fault.id) == (FaultKind.TABLE, _TABLE)
    assert name in fault.message


@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize("from_scratch", [True, False])
@pytest.mark.parametrize(
    "instead",
    ["", "CREATE UNIQUE INDEX instead ON {table} (generation_id) WHERE given_lane = 'none'"],
    ids=["nothing", "one over some rows"],
)
def test_a_table_that_was_made_anew_without_its_key_is_found(
    tampering: Any, instead: str, from_scratch: bool
) -> None:
    key = f"{_TABLE}_pkey"
    with tampering(), connection.schema_editor() as editor:
        if connection.vendor == "sqlite":
            editor.execute(f"CREATE TABLE other AS SELECT * FROM {_TABLE}")
            editor.execute(f"DROP TABLE {_TABLE}")
            editor.execute(f"ALTER TABLE other RENAME TO {_TABLE}")
        else:
            editor.execute(f"ALTER TABLE {_TABLE} DROP CONSTRAINT {key} CASCADE")
        if instead:
            editor.execute(instead.format(table=_TABLE))
    fault = found(from_scratch=from_scratch)
    if connection.vendor == "postgresql":
        # The rows are put back after a test, and there not what holds them.
        with tampering(), connection.schema_editor() as editor:
            editor.execute("DROP INDEX IF EXISTS instead")
            editor.execute(f"ALTER TABLE {_TABLE} ADD CONSTRAINT {key} PRIMARY KEY (generation_id)")
    assert fault is not None
    assert (fault.kind, fault.id) == (FaultKind.TABLE, _TABLE)
    assert "generation_id" in fault.message
