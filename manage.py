#!/usr/bin/env python3
"""Django's command line for Signalbox."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent
#: Interpreter option that says: this Python was chosen here already, do not choose again.
_CHOSEN = "signalbox-environment"


def main() -> None:
    choose_environment()
    # `platform/` is a source root, not a package: behind the script's own directory, so that
    # `import platform` stays the standard library's.
    sys.path.insert(1, str(ROOT / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
    from django.core.management import execute_from_command_line

    from signalbox.typed_keys import objection_to

    if objection := objection_to(sys.argv[1:]):
        sys.exit(objection)
    execute_from_command_line(sys.argv)


def choose_environment() -> None:
    """Go on here if this is a virtual environment with our packages, else as the same command in the checkout's own.

    Read by whatever Python there is: it only has to be able to say what is missing.
    """
    complete = all(find_spec(package) for package in ("django", "django_scopes"))
    if complete and sys.prefix != sys.base_prefix:
        return
    python = ROOT / ".venv" / "bin" / "python"
    if os.access(python, os.X_OK) and _CHOSEN not in sys._xoptions:
        os.execv(python, [str(python), "-X", _CHOSEN, *sys.argv])
    if not complete:
        sys.exit(
            f"{sys.executable} lacks Signalbox's packages. Set it up with `make up`, then: .venv/bin/python manage.py"
        )


if __name__ == "__main__":
    main()
