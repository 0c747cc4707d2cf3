"""`./manage.py` under whatever Python comes first: it finds the checkout's environment, or says in a line how to."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from signalbox.configuration import ROOT

_SYSTEM_PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def manage(checkout: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """``manage.py help`` of a checkout, under a Python that sees none of the packages installed for its user."""
    return subprocess.run(
        [str(python), "-I", str(checkout / "manage.py"), "help"], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "manage.py", tmp_path)
    return tmp_path


def test_without_an_environment_one_line_says_how_to_get_one(checkout: Path) -> None:
    done = manage(checkout, _SYSTEM_PYTHON)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "`make up`, then: .venv/bin/python manage.py" in done.stderr


def test_the_checkouts_environment_is_taken_over_the_systems_python(checkout: Path) -> None:
    seen = checkout / "arguments"
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{seen}"\n')
    python.chmod(0o755)
    assert manage(checkout, _SYSTEM_PYTHON).returncode == 0
    assert seen.read_text().splitlines()[-2:] == [str(checkout / "manage.py"), "help"]


def test_an_environment_that_was_not_filled_yet_is_tried_once_and_not_for_ever(checkout: Path) -> None:
    venv.create(checkout / ".venv", with_pip=False, symlinks=True)
    done = manage(checkout, checkout / ".venv" / "bin" / "python")
    assert done.returncode == 1
    assert "lacks Signalbox's packages" in done.stderr


@pytest.mark.slow
def test_this_environment_goes_on_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "help", "web"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "Serve the site" in done.stdout
