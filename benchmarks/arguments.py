"""What every benchmark is told on its command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.processes import ROOT


def parser(description: str | None, *, installed: bool = True) -> argparse.ArgumentParser:
    """A parser that knows where the installation's files are, and which of its models to use.

    Not ``installed``: for a script that makes an installation of its own.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if not installed:
        return made
    made.add_argument("--state", type=Path, default=ROOT / ".signalbox", help="set up by `make up`")
    made.add_argument("--model", default="smollm2-135m-instruct")
    return made
