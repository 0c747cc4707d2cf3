"""A state directory that cannot be used ends every process in one line: what, where, why, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from signalbox.configuration import ROOT

#: Root passes over every mode, unless it lacks these capabilities.
_MODES_HOLD = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def refusal(command: str, state_dir: Path) -> str:
    """What ``manage.py COMMAND`` says that cannot work on ``state_dir``, whose modes hold for it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIGNALBOX_")}
    done = subprocess.run(
        [*_MODES_HOLD, sys.executable, str(ROOT / "manage.py"), command],
        env={**inherited, "SIGNALBOX_STATE_DIR": str(state_dir)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.strip().splitlines()
    return line


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    yield state_dir
    state_dir.chmod(0o700)


def test_a_file_in_the_state_directorys_place_is_named(state_dir: Path) -> None:
    state_dir.rmdir()
    state_dir.touch()
    assert refusal("up", state_dir).startswith(f"The state directory {state_dir} is not a directory. ")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o500, 0o600], ids=["unwritable", "unsearchable"])
def test_a_state_directory_without_permission_is_named(mode: int, state_dir: Path) -> None:
    state_dir.chmod(mode)
    line = refusal("up", state_dir)
    assert line.startswith(f"The state directory {state_dir} cannot be written by ")
    assert f"mode {mode:03o}" in line
    assert "set SIGNALBOX_STATE_DIR" in line


def test_a_place_where_no_state_directory_can_be_made_is_named(state_dir: Path) -> None:
    state_dir.chmod(0o500)
    line = refusal("up", state_dir / "below" / "state")
    assert line.startswith(f"The state directory {state_dir / 'below' / 'state'} cannot be made by ")
    assert f"{state_dir} is " in line


@pytest.mark.slow
@pytest.mark.parametrize("command", ["up", "web", "worker", "celery"])
def test_a_secret_that_cannot_be_read_is_named(command: str, state_dir: Path) -> None:
    secret = state_dir / "secrets" / "django_secret_key"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("a secret of another user's, once run as root\n")
    secret.chmod(0o000)
    assert refusal(command, state_dir).startswith(f"The secret {secret} cannot be read by ")


def test_an_empty_secret_is_refused(state_dir: Path) -> None:
    secret = state_dir / "secrets" / "django_secret_key"
    secret.parent.mkdir(mode=0o700)
    secret.touch()
    assert refusal("web", state_dir) == f"The secret {secret} holds no text. Restore it from your backup."


@pytest.mark.slow
@pytest.mark.parametrize("name", ["db.sqlite3", "db.sqlite3-wal"])
def test_a_database_of_another_user_is_named(name: str, state_dir: Path) -> None:
    path = state_dir / name
    path.touch(mode=0o000)
    assert refusal("worker", state_dir).startswith(f"The database {path} cannot be read and written by ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logs", "valkey"])
def test_a_directory_of_another_user_is_named(name: str, state_dir: Path) -> None:
    path = state_dir / name
    path.mkdir(mode=0o000)
    assert f" {path} cannot be written by " in refusal("up", state_dir)


@pytest.mark.slow
def test_a_log_and_a_lock_of_another_user_are_named(state_dir: Path) -> None:
    lock = state_dir / "up.lock"
    lock.touch(mode=0o000)
    assert f" {lock} cannot be read and written by " in refusal("up", state_dir)
    lock.unlink()
    log = state_dir / "logs" / "valkey.log"
    log.touch(mode=0o000)
    assert f"The log of valkey cannot be opened: [Errno 13] Permission denied: '{log}'" in refusal(
        "up", state_dir
    )
