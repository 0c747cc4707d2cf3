"""A state directory and a database of its own for every process that runs tests.

A plugin and not a part of ``conftest.py``: processes that share the work inherit this one's environment, and
pytest-django loads the settings, which are derived from it once, before it reads any ``conftest.py``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.fixtures import postgresql

STATE_DIR = Path(tempfile.mkdtemp(prefix="signalbox-test-"))
# Registered before anything that is to be stopped in it, so that it is done last.
atexit.register(shutil.rmtree, STATE_DIR, ignore_errors=True)
(STATE_DIR / "vendor").mkdir()
(STATE_DIR / "static").mkdir()

os.environ["DJANGO_SETTINGS_MODULE"] = "signalbox.settings"
os.environ["SIGNALBOX_STATE_DIR"] = str(STATE_DIR)
os.environ.setdefault("SIGNALBOX_LOG_LEVEL", "WARNING")
# Compiling all modules anew takes most of a process's start, and the tests start hundreds: whatever the environment
# says, the compiled ones are kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if os.environ.get("SIGNALBOX_TEST_DATABASE") == "postgresql":
    os.environ["DATABASE_URL"] = postgresql.start()
else:
    os.environ.pop("DATABASE_URL", None)
