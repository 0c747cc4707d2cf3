"""`python3 -m scripts.set_up run|test`, as `make up` and `make test` call it.

This file has to be read by whatever Python there is, to say what is wrong with it.
"""

from __future__ import annotations

import os
import shutil
import sys

OLDEST = (3, 11)


def newer_python() -> str | None:
    """A Python on the PATH that is new enough, when the one that runs this is not."""
    candidates = (shutil.which(f"python3.{minor}") for minor in (13, 12, 11, 14))
    return next((path for path in candidates if path), None)


def main() -> None:
    if sys.version_info < OLDEST:
        other = newer_python()
        if other is None:
            sys.exit(
                f"Signalbox needs Python 3.11 or newer; {sys.executable} is "
                f"{sys.version_info[0]}.{sys.version_info[1]}. Install a newer one, or name it: "
                "make PYTHON=/path/to/python3"
            )
        os.execv(other, [other, "-m", "scripts.set_up", *sys.argv[1:]])
    from scripts.set_up.steps import run

    sys.exit(run(sys.argv[1:]))


main()
