"""Who installs Python packages: uv, which is pinned and ten times as fast, or else pip, which is in every Python.

pip brings uv, by its lock file. uv is told of the index that the user has configured for pip; where that
configuration holds more than uv would understand, and wherever uv fails, pip does everything itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.set_up import commands, stamps
from scripts.set_up.commands import PYTHON, ROOT, VENV
from scripts.set_up.problems import ObstacleError, SetUpError

_BOOTSTRAP = ROOT / "requirements" / "bootstrap.lock"
_UV = VENV / "bin" / "uv"
_UV_STAMP = VENV / ".signalbox-uv"
#: Settings of pip that say where packages come from, in ways that uv would have to be taught.
_ONLY_PIP = {"no-index", "trusted-host", "client-cert", "proxy"}


def install(lock: Path, watch: Callable[[str], None]) -> None:
    """Install what ``lock`` names and nothing else, every hash checked. Raises ``SetUpError``."""
    settings = _pip_settings()
    if not _ONLY_PIP & settings.keys():
        try:
            _install_with_uv(lock, settings, watch)
        except SetUpError as error:
            if isinstance(error, ObstacleError) and not _has_uv():
                raise  # pip itself has met it, when it was to bring uv
            print(f"  uv could not do it, so pip does, which takes longer. ({str(error).splitlines()[0]})")
        else:
            return
    commands.run(
        "Installing the Python packages",
        [*_pip(), "install", *_EXACTLY, "--progress-bar", "off", "--requirement", lock],
        watch=watch,
    )


def download(lock: Path, directory: Path) -> None:
    """Download what ``lock`` names, and nothing else, to ``directory``."""
    command = [*_pip(), "download", *_EXACTLY, "--dest", directory, "--requirement", lock]
    commands.run(f"Downloading {lock.stem}", command)


_EXACTLY = ["--require-hashes", "--no-deps", "--disable-pip-version-check"]


def _install_with_uv(lock: Path, settings: dict[str, str], watch: Callable[[str], None]) -> None:
    if not _has_uv():
        commands.run("Installing uv", [*_pip(), "install", *_EXACTLY, "--quiet", "--requirement", _BOOTSTRAP])
        stamps.mark(_UV_STAMP, stamps.digest([_BOOTSTRAP]))
    environment = {"UV_NO_PROGRESS": "1", "VIRTUAL_ENV": str(VENV)}
    if "index-url" in settings:
        environment["UV_DEFAULT_INDEX"] = settings["index-url"]
    if "cert" in settings:
        environment["SSL_CERT_FILE"] = settings["cert"]
    command: list[str | Path] = [_UV, "pip", "install", "--python", PYTHON, "--require-hashes", "--no-deps"]
    command += ["--requirement", lock]
    commands.run("Installing the Python packages", command, watch=watch, env=environment)


def _has_uv() -> bool:
    return stamps.done(_UV_STAMP, stamps.digest([_BOOTSTRAP]))


def _pip_settings() -> dict[str, str]:
    """What the user has configured for pip, in files and in the environment, without the sections' names."""
    listed = subprocess.run([*map(str, _pip()), "config", "list"], cwd=ROOT, capture_output=True, text=True)
    pairs = (line.partition("=") for line in listed.stdout.splitlines())
    return {name.rpartition(".")[2]: value.strip("'\"") for name, _, value in pairs}


def _pip() -> list[str | Path]:
    """pip for the environment: its own, or this Python's where distributions leave ``ensurepip`` out."""
    if any(VENV.glob("lib/python*/site-packages/pip")):
        return [PYTHON, "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", PYTHON]
