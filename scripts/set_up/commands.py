"""Run another program, watch what it writes, and keep it for the error message."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.set_up.problems import explain

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def run(
    what: str,
    command: Sequence[str | Path],
    *,
    watch: Callable[[str], None] = lambda line: None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run ``command`` in the checkout; ``watch`` gets each line. Returns all output.

    Raises ``SetUpError`` naming ``what`` when it fails.
    """
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines = []
    for line in process.stdout or ():
        lines.append(line)
        watch(line.strip())
    if process.wait() != 0:
        raise explain(what, "".join(lines))
    return "".join(lines)


def show(what: str, command: Sequence[str | Path]) -> None:
    """Run ``command`` in the checkout with its output shown as it is, progress bars included."""
    sys.stdout.flush()
    if subprocess.run([str(part) for part in command], cwd=ROOT, stdin=subprocess.DEVNULL).returncode != 0:
        raise explain(what, "see the lines above")
