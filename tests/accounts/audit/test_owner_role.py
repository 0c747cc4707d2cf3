"""What docs/operations.md says of PostgreSQL: the role that the processes run under cannot touch the audit's guards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from signalbox import store
from signalbox.configuration import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.database,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no roles"),
]

ATTEMPTS = [
    "UPDATE accounts_auditevent SET action = 'thing.other'",
    "DELETE FROM accounts_auditevent",
    "TRUNCATE accounts_auditevent CASCADE",
    "UPDATE accounts_audithead SET sequence = 0",
    "DROP TRIGGER accounts_auditevent_refuses_change ON accounts_auditevent",
    "ALTER TABLE accounts_auditevent DISABLE TRIGGER ALL",
    "ALTER TABLE accounts_auditevent RENAME TO other",
    "DROP TABLE accounts_auditcheckpoint",
    "DROP FUNCTION accounts_auditevent_refuse() CASCADE",
    "CREATE OR REPLACE FUNCTION accounts_auditevent_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN RETURN NEW; END'",
    "SET session_replication_role = replica",
    "SET ROLE db_owner",
]


def url_of(role: str, database: str) -> str:
    """The test's server, as somebody else and with another database."""
    server = re.sub(r"//[^@]*@", f"//{role}@", os.environ["DATABASE_URL"])
    return f"{server.rpartition('/')[0]}/{database}"


def manage(role: str, state_dir: Path, *arguments: str) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": url_of(role, "signalbox"),
        "SIGNALBOX_STATE_DIR": str(state_dir),
        "VALKEY_URL": store.url(),
    }
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def documented() -> Iterator[None]:
    """The page's statements, run as they are there."""
    page = (ROOT / "docs" / "operations.md").read_text()
    [statements] = re.findall(r"```sql\n(CREATE ROLE.*?)```", page, re.DOTALL)
    before, inside = statements.split("\\c signalbox\n")
    own = os.environ["DATABASE_URL"]
    try:
        for url, part in [(own, before), (own.rpartition("/")[0] + "/signalbox", inside)]:
            with psycopg.connect(url, autocommit=True) as session:
                for statement in part.split(";"):
                    if statement.strip():
                        session.execute(statement.encode())
        yield
    finally:
        with psycopg.connect(own, autocommit=True) as session:
            session.execute("DROP DATABASE IF EXISTS signalbox WITH (FORCE)")
            session.execute("DROP ROLE IF EXISTS db_app")
            session.execute("DROP ROLE IF EXISTS db_owner")


@pytest.mark.usefixtures("documented", "valkey")
def test_the_role_that_the_processes_run_under_appends_and_can_do_nothing_else(tmp_path: Path) -> None:
    manage("db_owner", tmp_path, "migrate", "--verbosity", "0")
    manage("db_app", tmp_path, "audit", "checkpoint")
    with psycopg.connect(url_of("db_app", "signalbox"), autocommit=True) as session:
        for attempt in ATTEMPTS:
            with pytest.raises(psycopg.Error):
                session.execute(attempt.encode())
        counted = session.execute("SELECT count(*) FROM accounts_auditevent").fetchone()
        assert counted == (1,)
