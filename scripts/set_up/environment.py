"""The virtual environment, filled from the lock files with every hash checked.

pip does it, for it is in every Python and obeys whatever index, proxy and certificate the user has configured for it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import venv
from pathlib import Path

from scripts.set_up import commands, stamps
from scripts.set_up.commands import PYTHON, ROOT, VENV
from scripts.set_up.console import Step
from scripts.set_up.problems import SetUpError, need_space

_STAMP = VENV / ".signalbox-locks.json"
_SPACE_MB = 2500
_NEEDED = re.compile(r"^[a-z0-9][^ ]*==", re.MULTILINE)

_NO_PIP = (
    f"{sys.executable} can make no virtual environment: it has neither `ensurepip` nor pip. "
    "On Debian and Ubuntu: apt install python3-venv. Then try again."
)


def install(*locks: str) -> None:
    """Make ``.venv`` hold what ``requirements/<lock>.lock`` name, the last of which includes the others."""
    _make()
    wanted = {lock: stamps.digest([_path(lock)]) for lock in locks}
    if wanted.items() <= _installed().items():
        return
    need_space(VENV, _SPACE_MB, "The virtual environment")
    lock = _path(locks[-1])
    total = len(_NEEDED.findall(lock.read_text()))
    with Step(f"Installing {total} Python packages of requirements/{lock.name}, hashes checked") as step:
        count = 0

        def watch(line: str) -> None:
            nonlocal count
            if line.startswith("Collecting"):
                count += 1
                step.progress(f"{count} of {total}: {line.removeprefix('Collecting ').split()[0]}")
            elif line.startswith("Installing collected"):
                step.progress("unpacking")

        commands.run(
            "Installing the Python packages",
            [
                *_pip(),
                "install",
                "--require-hashes",
                "--no-deps",
                "--progress-bar",
                "off",
                "--requirement",
                lock,
            ],
            watch=watch,
            env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
    stamps.mark(_STAMP, json.dumps(wanted | {"python": _version()}))


def pip_download(lock: Path, directory: Path) -> None:
    """Download what ``lock`` names, and nothing else, to ``directory``; pip shows its progress."""
    command = [
        *_pip(),
        "download",
        "--require-hashes",
        "--no-deps",
        "--dest",
        directory,
        "--requirement",
        lock,
    ]
    commands.run(f"Downloading {lock.stem}", command)


def _path(lock: str) -> Path:
    return ROOT / "requirements" / f"{lock}.lock"


def _version() -> str:
    return ".".join(str(part) for part in sys.version_info[:2])


def _installed() -> dict[str, str]:
    if not _STAMP.exists():
        return {}
    recorded: dict[str, str] = json.loads(_STAMP.read_text())
    return recorded


def _make() -> None:
    """Make the environment where there is none, and anew where its Python is gone or is of another version."""
    if PYTHON.exists() and _installed().get("python", _version()) == _version():
        return
    need_space(VENV, _SPACE_MB, "The virtual environment")
    with Step(f"Making the virtual environment .venv with Python {_version()}"):
        if VENV.exists():
            shutil.rmtree(VENV)
        has_ensurepip = importlib.util.find_spec("ensurepip") is not None
        if not has_ensurepip and not _pip_outside():
            raise SetUpError(_NO_PIP)
        venv.create(VENV, with_pip=has_ensurepip, symlinks=True)


def _pip_outside() -> bool:
    return importlib.util.find_spec("pip") is not None


def _pip() -> list[str | Path]:
    """pip for the environment: its own, or this Python's where distributions leave ``ensurepip`` out."""
    if any(VENV.glob("lib/python*/site-packages/pip")):
        return [PYTHON, "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", PYTHON]
