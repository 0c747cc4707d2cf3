from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from inference.engine.engine import Engine
from inference.engine.preparation.problems import PreparationError
from inference.engine.preparation.record import RECORD_NAME
from inference.tokenization.tokenizer import TokenizerError


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


def change_config(model_dir: Path, **changes: object) -> None:
    """Change the configuration, and the record with it: the damage is not in the bytes."""
    path, record_path = model_dir / "config.json", model_dir / RECORD_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    record = json.loads(record_path.read_text())
    record["files"]["config.json"]["size_bytes"] = path.stat().st_size
    record_path.write_text(json.dumps(record))


def test_a_directory_that_is_no_prepared_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="not a prepared model"):
        Engine(tmp_path)


def test_weights_that_are_missing_or_cut_short_are_named(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PreparationError, match=r"model\.safetensors"):
        Engine(copy)
    weights.unlink()
    with pytest.raises(PreparationError, match=r"model\.safetensors"):
        Engine(copy)


def test_code_that_comes_with_a_model_is_never_run(copy: Path) -> None:
    ran = copy / "ran"
    (copy / "custom.py").write_text(f"open({str(ran)!r}, 'w')")
    change_config(copy, model_file="custom.py", auto_map={"AutoModel": "custom.Model"})
    with pytest.raises(PreparationError, match=r"custom\.py"):
        Engine(copy)
    assert not ran.exists()


def test_weights_that_do_not_fit_the_configuration_are_refused(copy: Path) -> None:
    change_config(copy, hidden_size=32)
    with pytest.raises(PreparationError, match="cannot be run"):
        Engine(copy)


def test_an_unknown_architecture_is_refused(copy: Path) -> None:
    change_config(copy, model_type="no_such_model")
    with pytest.raises(PreparationError, match="no_such_model"):
        Engine(copy)
