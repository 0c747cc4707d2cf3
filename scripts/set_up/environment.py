"""The virtual environment, filled from the lock files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from scripts.set_up import installers, stamps
from scripts.set_up.commands import PYTHON, ROOT, VENV
from scripts.set_up.console import Step
from scripts.set_up.problems import SetUpError, explain, need_space

_STAMP = VENV / ".signalbox-locks.json"
#: There while the environment is being made.
_UNFINISHED = VENV / ".signalbox-unfinished"
_SPACE_MB = 1500
_NEEDED = re.compile(r"^[a-z0-9][^ ]*==", re.MULTILINE)

_NO_PIP = (
    f"{sys.executable} can make no virtual environment: it has neither `ensurepip` nor pip. "
    "On Debian and Ubuntu: apt install python3-venv. Then try again."
)


def install(*locks: str) -> None:
    """Make ``.venv`` hold what ``requirements/<lock>.lock`` name, the last of which includes the others."""
    if holds(*locks):
        return
    _make()
    need_space(VENV, _SPACE_MB, "The virtual environment")
    lock = _path(locks[-1])
    total = len(_NEEDED.findall(lock.read_text()))
    with Step(f"Installing {total} Python packages of requirements/{lock.name}, hashes checked") as step:
        installers.install(lock, step.progress)
    stamps.mark(_STAMP, json.dumps({**_kept(lock), **_wanted(*locks), "python": _version()}))


def holds(*locks: str) -> bool:
    """Whether there is nothing to install."""
    return _is_made() and _wanted(*locks).items() <= _installed().items()


def complete() -> bool:
    """Whether the environment holds what some version of the lock files named: it can be asked things."""
    return PYTHON.exists() and "runtime" in _installed()


def _kept(lock: Path) -> dict[str, str]:
    """What stays installed beside ``lock``: Node.js is no part of the others, nor they of it."""
    installed = _installed()
    return installed if lock.stem == "node" else {k: v for k, v in installed.items() if k == "node"}


def _wanted(*locks: str) -> dict[str, str]:
    return {lock: stamps.digest([_path(lock)]) for lock in locks}


def _path(lock: str) -> Path:
    return ROOT / "requirements" / f"{lock}.lock"


def _version() -> str:
    return ".".join(str(part) for part in sys.version_info[:2])


def _installed() -> dict[str, str]:
    if not _STAMP.exists():
        return {}
    recorded: dict[str, str] = json.loads(_STAMP.read_text())
    return recorded


def _is_made() -> bool:
    return (
        PYTHON.exists() and not _UNFINISHED.exists() and _installed().get("python", _version()) == _version()
    )


def _make() -> None:
    """Make the environment where there is none, and anew where its Python is gone or is of another version.

    And where making it came to no end: without a whole pip of its own nothing would ever be installed.
    """
    if _is_made():
        return
    need_space(VENV, _SPACE_MB, "The virtual environment")
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    if not has_ensurepip and importlib.util.find_spec("pip") is None:
        raise SetUpError(_NO_PIP)
    with Step(f"Making the virtual environment .venv with Python {_version()}"):
        if VENV.exists():
            shutil.rmtree(VENV)
        VENV.mkdir()
        _UNFINISHED.touch()
        try:
            venv.create(VENV, with_pip=has_ensurepip, symlinks=True)
        except subprocess.CalledProcessError as error:
            raise explain("Making the virtual environment", os.fsdecode(error.output or b"")) from error
        _UNFINISHED.unlink()
