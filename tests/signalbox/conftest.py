from __future__ import annotations

from pathlib import Path

import pytest

from signalbox.configuration import ROOT
from tests.fixtures.once import once
from tests.heartbeats import heartbeats_last
from tests.signalbox.browser.site import prepare

__all__ = ["heartbeats_last", "site_state"]


@pytest.fixture(scope="session")
def site_state(
    tiny_model_dir: Path, migrated_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The state directory that every ``Site`` starts with a copy of."""
    if not (ROOT / "node_modules").is_dir():
        pytest.fail("the chat page's packages are missing: run `npm ci`, or `make test`, which does")
    made = once(
        tmp_path_factory, "site", lambda directory: prepare(directory, migrated_database, tiny_model_dir)
    )
    return made / "state"
