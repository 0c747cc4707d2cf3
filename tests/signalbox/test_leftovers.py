"""A test session leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from signalbox.configuration import ROOT


@pytest.mark.slow
def test_the_processes_of_a_session_remove_their_state_directories() -> None:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SIGNALBOX_", "PYTEST_"))}
    # One process that shares the work out and one that does it, with Valkey.
    session = ["-m", "pytest", "-q", "-n", "1", "tests/signalbox/test_embedded_valkey.py"]
    # A short path: sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="sb-left-") as directory:
        done = subprocess.run(
            [sys.executable, *session],
            env={**inherited, "TMPDIR": directory},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=150,
        )
        left = [path.name for path in Path(directory).iterdir() if not path.name.startswith("pytest-of-")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert left == []
