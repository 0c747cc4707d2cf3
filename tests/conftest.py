"""What every test stands on: a state directory of its own, a real Valkey, a real database."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Before Django is loaded: settings are derived from the environment once. Named here and not in pyproject.toml,
# because pytest-django would load them from there before it reads this file.
os.environ["DJANGO_SETTINGS_MODULE"] = "signalbox.settings"
_STATE = Path(tempfile.mkdtemp(prefix="signalbox-test-"))
os.environ["SIGNALBOX_STATE_DIR"] = str(_STATE)
os.environ.setdefault("SIGNALBOX_LOG_LEVEL", "WARNING")
(_STATE / "vendor").mkdir()

from tests.fixtures import postgresql  # noqa: E402

if os.environ.get("SIGNALBOX_TEST_DATABASE") == "postgresql":
    os.environ["DATABASE_URL"] = postgresql.start()
else:
    os.environ.pop("DATABASE_URL", None)

import django  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

django.setup()

# Examples share two cores with everything else: how long one takes says nothing.
settings.register_profile("signalbox", deadline=None)
settings.load_profile("signalbox")

pytest_plugins = [
    "tests.fixtures.admin",
    "tests.fixtures.connections",
    "tests.fixtures.passwords",
    "tests.fixtures.seeds",
    "tests.fixtures.valkey",
    "tests.fixtures.live_stack",
    "tests.fixtures.chromium",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the database, for the pass over it on PostgreSQL; put what drives a browser last."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("django_db") or fixtures & {
            "db",
            "transactional_db",
            "django_db_reset_sequences",
        }:
            item.add_marker("database")
    # Last: a browser driven from here keeps an event loop running, beside which no test may start its own.
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def state_dir() -> Path:
    return _STATE
