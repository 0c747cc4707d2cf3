"""Where caches cannot give back what was guessed wrongly, nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.speculative.rollback import cannot_roll_back
from tests.inference.engine.driving import Drive, alone, prompts_of
from tests.inference.engine.speculating import PENALISED, SpeculativeDrive, knowing
from tests.inference.engine.test_row_prefixes import batch_of, random_weights, recurrent
from tests.inference.engine.tiny_model import make_tiny_model

WINDOW = 16


@pytest.fixture(scope="module")
def sliding_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "sliding", sliding_window=WINDOW)


def test_attention_over_the_whole_text_can_always_be_cut(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model)
    drive.admit("g", prompts_of(drive)["g2"])
    assert drive.engine.cannot_speculate("g") is None
    drive.slice_zero("g")
    assert drive.engine.cannot_speculate("g") is None
    drive.engine.into_classic("g")
    assert drive.engine.cannot_speculate("g") == "it is decoding"


def test_recurrent_states_are_refused_by_name() -> None:
    refusal = cannot_roll_back(batch_of(random_weights(recurrent())).prompt_cache, 3)
    assert refusal is not None
    assert "ArraysCache" in refusal
    assert "KVCache" not in refusal


@pytest.mark.parametrize("length", range(1, 20))
def test_a_sliding_window_is_refused_once_it_is_full(sliding_model: Path, length: int) -> None:
    drive = SpeculativeDrive(sliding_model)
    prompt = prompts_of(drive)["g2"][:length]
    assert len(prompt) == length
    drive.admit("g", prompt)
    refusal = drive.engine.cannot_speculate("g")
    drive.drafter.script = knowing([*prompt, *alone(sliding_model, prompt)])
    drive.slice_zero("g")
    # What was said of the prompt holds for the round after it.
    assert (drive.round("g", 1).proposed == 0) == (refusal is not None)
    if refusal is not None:
        assert f"window of {WINDOW} is full" in refusal


@pytest.mark.parametrize("wrong_every", [1, 2, 5, 0])
def test_a_text_grows_past_its_window_unharmed(sliding_model: Path, wrong_every: int) -> None:
    prompt = prompts_of(Drive(sliding_model))["g0"][:3]
    expected = alone(sliding_model, prompt, PENALISED, 30)
    wrong = (lambda position: position % wrong_every == 0) if wrong_every else (lambda position: False)
    for moves in (False, True):
        drive = SpeculativeDrive(sliding_model, knowing([*prompt, *expected], wrong))
        drive.start("g", prompt, PENALISED)
        proposed = []
        while len(drive.tokens["g"]) < 30 and not (moves and drive.engine.cannot_speculate("g")):
            proposed.append(drive.round("g", 5).proposed)
        if moves:
            drive.engine.into_classic("g")
            drive.decode_until(30)
        else:
            assert proposed[0] == 5
            assert proposed[-1] == 0
            assert len(prompt) + 30 > WINDOW
        assert drive.tokens["g"][:30] == expected
