"""Processes of their own that write to the test's audit."""

from __future__ import annotations

import os
import subprocess
import sys

from signalbox.configuration import ROOT
from tests.fixtures.database import database_url


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start ``writing_process`` on the test's database."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.accounts.audit.writing_process", *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": database_url(),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for its end, which is to be a good one."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
