"""`platform/` is a source root beside the standard library's `platform`, and must never shadow it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox.configuration import ROOT

_PRINT_ORIGIN = "import platform; print(platform.__file__); platform.python_version()"


def test_no_python_file_lies_directly_in_the_platform_folder() -> None:
    assert [path.name for path in (ROOT / "platform").glob("*.py")] == []


def test_pytest_imports_the_standard_librarys_platform_from_the_repository_root() -> None:
    import platform

    assert Path(str(platform.__file__)).is_relative_to(_standard_library())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("python", ["-c", _PRINT_ORIGIN]),
        ("manage.py", ["manage.py", "shell", "--no-imports", "--verbosity", "0", "--command", _PRINT_ORIGIN]),
        (
            "celery",
            ["-c", f"import sys; sys.path.append('platform'); import signalbox.celery; {_PRINT_ORIGIN}"],
        ),
        (
            "web server",
            ["-c", f"import sys; sys.path.append('platform'); import daphne.cli; {_PRINT_ORIGIN}"],
        ),
    ],
)
def test_every_program_imports_the_standard_librarys_platform(program: str, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "signalbox.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.splitlines()[-1]).is_relative_to(_standard_library()), program


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["celery", "daphne"])
def test_the_tools_own_commands_start_from_the_repository_root(tool: str) -> None:
    arguments = {"celery": ["-A", "signalbox.celery", "report"], "daphne": ["--help"]}[tool]
    done = subprocess.run(
        [str(Path(sys.executable).parent / tool), *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "platform"),
            "DJANGO_SETTINGS_MODULE": "signalbox.settings",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def _standard_library() -> Path:
    return Path(os.__file__).parent
