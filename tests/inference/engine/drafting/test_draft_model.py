"""A small model that guesses for another: its caches follow the sequence, and no other sequence's is left in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.engine.drafting.draft_model import DraftModel
from inference.engine.drafting.drafter import DrafterFault
from inference.tokenization import tokenizer
from inference.tokenization.vocabulary import checksum
from tests.inference.engine.drafting.contexts import context, drafted
from tests.inference.engine.driving import TEXTS, alone
from tests.inference.engine.tiny_model import make_tiny_model


@pytest.fixture(autouse=True)
def _never_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights are sure of nothing: drafts would end with their first token."""
    monkeypatch.setattr("inference.engine.drafting.draft_model.LEAST_CONFIDENCE", 0.0)


def draft_model(model_dir: Path) -> DraftModel:
    return DraftModel(model_dir, tokenizer.load(model_dir))


def test_it_drafts_what_the_model_would_say(any_tiny_model: Path) -> None:
    prompt = tokenizer.load(any_tiny_model).encode(TEXTS[2])
    said = alone(any_tiny_model, prompt, count=8)
    assert drafted(draft_model(any_tiny_model), context(prompt), k=8) == said


def test_interleaved_sequences_and_wrong_guesses_leave_nothing_behind(any_tiny_model: Path) -> None:
    encode = tokenizer.load(any_tiny_model).encode
    shared = draft_model(any_tiny_model)
    texts = {f"g{number}": encode(text) for number, text in enumerate(TEXTS)}
    for turn in range(3):
        for number, key in enumerate(texts):
            now = context(texts[key], key)
            guesses = drafted(shared, now, k=4)
            assert guesses == drafted(draft_model(any_tiny_model), now, k=4), (turn, key)
            accepted = (turn + number) % 5
            texts[key] = [*texts[key], *guesses[:accepted], 7 + turn]
            shared.observe(guesses[:accepted], 4, accepted)
            shared.release()


def test_a_draft_ends_where_the_model_is_in_doubt(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert drafted(draft_model(tiny_model), context([5, 6, 7]), k=8) == []


def test_it_never_runs_beyond_its_own_context(tmp_path: Path) -> None:
    short = draft_model(make_tiny_model(tmp_path / "short", context_length=16))
    assert len(drafted(short, context(range(3, 17)), k=8)) == 2
    assert drafted(short, context(range(3, 19)), k=8) == []
    assert drafted(short, context(range(3, 30)), k=8) == []


def test_memory_counts_weights_and_caches(tiny_model: Path) -> None:
    drafter = draft_model(tiny_model)
    weights = drafter.memory_bytes
    assert weights >= (tiny_model / "model.safetensors").stat().st_size
    drafter.bind(context(range(3, 100)))
    # Keys and values of two layers with two heads of 16, in f32.
    assert drafter.memory_bytes - weights >= 96 * 2 * 2 * 2 * 16 * 4
    drafter.finish(context([3]))
    assert drafter.memory_bytes == weights


def test_without_a_sequence_there_is_no_guess(tiny_model: Path) -> None:
    drafter = draft_model(tiny_model)
    assert drafter.draft(4) == []
    drafter.bind(context([5]))
    assert len(drafter.draft(4)) == 4
    drafter.release()
    assert drafter.draft(4) == []


def test_a_model_of_other_tokens_is_refused_by_the_first_that_differs(
    tiny_model: Path, tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other")
    file = other / "tokenizer.json"
    definition = json.loads(file.read_text())
    [special] = [token for token in definition["added_tokens"] if token["id"] == 1]
    vocabulary = definition["model"]["vocab"]
    vocabulary["<|fim|>"] = vocabulary.pop(special["content"])
    special["content"] = "<|fim|>"
    file.write_text(json.dumps(definition))
    assert checksum(tokenizer.load(other)) != checksum(tokenizer.load(tiny_model))
    with pytest.raises(DrafterFault, match=r"token 1 is '<\|im_start\|>' here and '<\|fim\|>' there"):
        DraftModel(other, tokenizer.load(tiny_model))


def test_what_is_no_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(DrafterFault, match="cannot be loaded"):
        DraftModel(tmp_path, tokenizer.load(tiny_model))
