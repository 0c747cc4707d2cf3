from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from inference.engine.drafting.neutral_building import build
from inference.engine.drafting.pool_files import PoolContent
from inference.engine.drafting.suffix_pool import unpack
from inference.engine.engine import Engine
from inference.messages import Sampling
from inference.tokenization.template import render_chat
from tests.inference.engine.driving import alone

PROMPTS = ("Where is the signal box?", "List three lanes.", "x", "Say it again.", "And once more.")


class Interrupted(Exception):
    """Somebody pressed Ctrl-C."""


class Building:
    """Builds with one engine, and counts the answers."""

    def __init__(self, model_dir: Path, notes: Path) -> None:
        self.engine = Engine(model_dir)
        self.answered: list[int] = []
        self._notes = notes

    def build(
        self, prompts: Sequence[str] = PROMPTS, answer_tokens: int = 6, stop_after: int | None = None
    ) -> PoolContent:
        self.answered = []

        def advance(count: int) -> None:
            self.answered.append(count)
            if sum(self.answered) == stop_after:
                raise Interrupted

        return build(
            self.engine, prompts, answer_tokens=answer_tokens, rows=2, notes=self._notes, advance=advance
        )


@pytest.fixture
def building(tiny_model: Path, tmp_path: Path) -> Building:
    return Building(tiny_model, tmp_path / "tiny.pool.unfinished")


def test_it_goes_on_where_it_was_interrupted(tiny_model: Path, tmp_path: Path, building: Building) -> None:
    with pytest.raises(Interrupted):
        building.build(stop_after=3)
    notes = tmp_path / "tiny.pool.unfinished"
    # Killed while the next answer was written.
    notes.write_text(notes.read_text() + "[4, [1, 2")
    again = Building(tiny_model, notes)
    content = again.build()
    assert again.answered == [3, 1, 1]
    expected = [
        alone(tiny_model, render_chat(again.engine.tokenizer, [{"role": "user", "content": prompt}]), count=6)
        for prompt in PROMPTS
    ]
    assert [unpack(text).tolist() for text in content.texts] == expected
    assert again.engine.keys == ()


def test_notes_of_other_prompts_or_lengths_are_not_used(building: Building) -> None:
    building.build()
    building.build(prompts=PROMPTS[:2])
    assert building.answered == [0, 1, 1]
    building.build(prompts=PROMPTS[:2], answer_tokens=5)
    assert building.answered == [0, 1, 1]


def test_an_answer_ends_before_the_token_that_ends_it(
    building: Building, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = building.engine
    turn_end = max(engine.tokenizer.eos_ids)
    ending = Sampling(seed=0, temperature=0.0, logit_bias={turn_end: 1000.0})
    monkeypatch.setattr("inference.engine.drafting.neutral_building._GREEDY", ending)
    assert building.build().texts == (b"",) * len(PROMPTS)
