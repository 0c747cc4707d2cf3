"""A process that is started on a database without its tables says so in one line, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from signalbox.configuration import ROOT
from signalbox.migrations_check import NotMigratedError, require_migrated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of an installation whose state directory is empty."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SIGNALBOX_", "DATABASE_URL"))}
    return {**inherited, "SIGNALBOX_STATE_DIR": str(tmp_path / "state")}


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("command", [["web"], ["celery"], ["worker", "tiny"]], ids=lambda each: each[0])
def test_on_an_empty_database_one_line_names_the_command_that_fills_it(
    environment: dict[str, str], command: list[str]
) -> None:
    done = manage(environment, *command)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert "manage.py migrate" in line


@pytest.fixture
def missing(transactional_db: None) -> Iterator[str]:
    """The newest migration of accounts, which the database says it lacks."""
    ((app, name),) = MigrationLoader(connection).graph.leaf_nodes("accounts")
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(app, name)
    yield f"{app}.{name}"
    recorder.record_applied(app, name)


def test_on_a_database_of_an_older_version_the_first_missing_migration_is_named(missing: str) -> None:
    with pytest.raises(NotMigratedError) as error:
        require_migrated()
    assert "is older than this version" in str(error.value)
    assert missing in str(error.value)
    assert "manage.py migrate" in str(error.value)


@pytest.mark.usefixtures("transactional_db")
def test_on_a_database_with_all_its_tables_nothing_is_said() -> None:
    require_migrated()
