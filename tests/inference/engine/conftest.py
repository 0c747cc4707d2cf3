from __future__ import annotations

from pathlib import Path

import pytest

from tests.inference.engine.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session", params=["full attention", "sliding window"])
def any_tiny_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Also with a rotating cache, whose window is shorter than most of the texts."""
    window = 16 if request.param == "sliding window" else None
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", sliding_window=window)
