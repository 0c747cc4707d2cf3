#!/usr/bin/env python
"""Django's command line for Signalbox."""

import os
import sys
from pathlib import Path


def main() -> None:
    # `platform/` is a source root, not a package: behind the script's own directory, so that
    # `import platform` stays the standard library's.
    sys.path.insert(1, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
