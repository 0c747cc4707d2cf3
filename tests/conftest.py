"""What every test stands on: a state directory of its own, a real Valkey, a real database."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from hypothesis import settings

from tests.state_directory import STATE_DIR

django.setup()

# Examples share two cores with everything else: how long one takes says nothing. Each run draws others; to look
# further in one run: `--hypothesis-profile thorough`.
settings.register_profile("signalbox", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("signalbox")

pytest_plugins = [
    "tests.fixtures.admin",
    "tests.fixtures.audit_triggers",
    "tests.fixtures.connections",
    "tests.fixtures.migrated_database",
    "tests.fixtures.passwords",
    "tests.fixtures.pristine_database",
    "tests.fixtures.valkey",
    "tests.fixtures.live_stack",
    "tests.fixtures.chromium",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the database, for the pass over it on PostgreSQL; put what takes longest first."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("django_db") or fixtures & {
            "db",
            "transactional_db",
            "django_db_reset_sequences",
        }:
            item.add_marker("database")
    slow = {
        item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")
    }
    # Begun last, one of them would leave the other processes of a parallel run idle.
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """All modules and tests are there to stay: looking through them for garbage took a twelfth of their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session")
def state_dir() -> Path:
    return STATE_DIR


@pytest.fixture(autouse=True)
def _nothing_kept_of_a_chain() -> Iterator[None]:
    """A checkpoint kept outside is held against whatever chain the next test has, which would seem to be broken."""
    yield
    kept = [file for file in (STATE_DIR / "audit").rglob("*") if file.is_file()]
    for file in kept:
        file.unlink()
    assert not kept, "files of the test's own chain: use tests.accounts.audit.own_state, or delete them"
