"""Two models mean the same by their token ids, or it is told where they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.tokenization import vocabulary
from inference.tokenization.tokenizer import TokenizerError
from tests.inference.engine.tiny_model import make_tiny_model


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return make_tiny_model(tmp_path / "one"), make_tiny_model(tmp_path / "other", seed=1)


def _edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_models_of_one_family_have_the_same_vocabulary(pair: tuple[Path, Path]) -> None:
    assert vocabulary.difference(*pair) is None


def test_how_far_the_logits_are_padded_makes_no_difference(pair: tuple[Path, Path]) -> None:
    record = pair[1] / "signalbox.json"
    _edit(record, vocab_size=json.loads(record.read_text())["vocab_size"] + 64)
    assert vocabulary.difference(*pair) is None


def test_a_token_that_is_spelled_otherwise_is_named(pair: tuple[Path, Path]) -> None:
    file = pair[1] / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_end|>", "<|eot_id|>"))
    difference = vocabulary.difference(*pair)
    assert difference == "token 2 is '<|im_end|>' here and '<|eot_id|>' there"


def test_a_token_that_only_one_has_is_named(pair: tuple[Path, Path]) -> None:
    definition = json.loads((pair[1] / "tokenizer.json").read_text())
    new_id = len(definition["model"]["vocab"])
    extra = {**definition["added_tokens"][0], "id": new_id, "content": "<|tool|>"}
    _edit(pair[1] / "tokenizer.json", added_tokens=[*definition["added_tokens"], extra])
    assert vocabulary.difference(*pair) == f"token {new_id} is missing here and '<|tool|>' there"


def test_what_cannot_be_read_is_an_error_and_no_difference(pair: tuple[Path, Path]) -> None:
    (pair[1] / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="is missing"):
        vocabulary.difference(*pair)
