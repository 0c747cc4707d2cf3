from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.inference.engine.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a directory of safetensors that nobody has prepared. Not to be changed."""
    directory = make_tiny_model(tmp_path_factory.mktemp("checkpoint") / "tiny")
    (directory / "signalbox.json").unlink()
    return directory


@pytest.fixture
def own_checkpoint(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint that a test may spoil."""
    return Path(shutil.copytree(checkpoint, tmp_path / "own"))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Where models are prepared: not there yet."""
    return tmp_path / "state" / "models"
