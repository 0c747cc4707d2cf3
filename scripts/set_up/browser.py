"""A Chromium for the browser tests: the machine's own, or the one that Playwright brings."""

from __future__ import annotations

import subprocess

from scripts.set_up import commands
from scripts.set_up.commands import PYTHON, ROOT
from scripts.set_up.console import Step


def ensure() -> None:
    """Install Playwright's Chromium unless the tests already find one."""
    found = subprocess.run([PYTHON, "-m", "tests.fixtures.chromium"], cwd=ROOT, capture_output=True)
    if found.returncode == 0:
        return
    with Step("Installing Chromium for the browser tests (none was found on this machine)") as step:
        commands.run(
            "Installing Chromium (install your system's own package `chromium` instead, if that cannot work here)",
            [PYTHON, "-m", "playwright", "install", "chromium"],
            watch=step.progress,
        )
