"""Speculation says what plain decoding says, and what it says otherwise is told from rounding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.speculation_divergence import (
    NEAR_TIE,
    Answer,
    Comparison,
    compare,
    plain,
    refuse_unless_near_ties,
    speculated,
)
from inference.engine.engine import Engine
from tests.inference.engine.speculating import ScriptedDrafter, knowing
from tests.inference.engine.tiny_model import make_tiny_model

PROMPT = list(range(40, 60))
TOKENS = 40


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(make_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def decoded(engine: Engine) -> Answer:
    return plain(engine, PROMPT, TOKENS)


def sometimes_wrong(decoded: Answer) -> ScriptedDrafter:
    draw = Random(5)
    wrong = {len(PROMPT) + position for position in range(TOKENS) if draw.random() < 0.3}
    return ScriptedDrafter(knowing([*PROMPT, *decoded.tokens], wrong.__contains__))


def test_on_the_stock_blas_speculation_moves_no_gap_and_changes_no_token(
    engine: Engine, decoded: Answer
) -> None:
    answer = speculated(engine, PROMPT, TOKENS, sometimes_wrong(decoded), draft_tokens=4)
    assert engine.keys == ()
    assert 0 < answer.accepted < sum(answer.drafted)
    assert len(answer.drafted) < TOKENS - 1
    found = compare(decoded, answer)
    assert (found.moved, found.diverged_at, len(found.gaps)) == (0.0, None, TOKENS)
    assert all(gap > 0 for gap in found.gaps)
    refuse_unless_near_ties([found], 0.0)


def test_another_answer_is_found_at_its_first_token_and_refused(
    engine: Engine, decoded: Answer, tmp_path: Path
) -> None:
    another = plain(Engine(make_tiny_model(tmp_path / "another", seed=1)), PROMPT, TOKENS)
    same = next(
        position
        for position, (token, said) in enumerate(zip(decoded.tokens, another.tokens, strict=True))
        if token != said
    )
    found = compare(decoded, another)
    assert (found.diverged_at, len(found.gaps)) == (same, same + 1)
    assert found.gaps[-1] > NEAR_TIE
    with pytest.raises(SystemExit, match="refused: a first divergence at a gap of"):
        refuse_unless_near_ties([found], NEAR_TIE)


def answer(tokens: Sequence[int], *logits: Sequence[float]) -> Answer:
    return Answer(list(tokens), [np.array(row, dtype=np.float32) for row in logits])


def test_a_tie_that_falls_the_other_way_is_counted_and_not_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    decoded = answer([2, 0, 1], [0, 3, 5], [4.0001, 4, 1], [0, 9, 0])
    other = answer([2, 1, 0], [0, 3.0001, 5], [4, 4.0001, 1], [9, 0, 0])
    found = compare(decoded, other)
    assert found.diverged_at == 1
    assert found.gaps == pytest.approx([2.0, 0.0001], abs=1e-5)
    assert found.moved == pytest.approx(0.0001, abs=1e-5)
    refuse_unless_near_ties([found, compare(decoded, decoded)], NEAR_TIE)
    assert capsys.readouterr().out.startswith("1 of 2 answers differ, each from a near-tie on")


def test_gaps_that_move_by_more_than_rounding_are_refused_also_where_no_token_changes() -> None:
    decoded, other = answer([2], [0, 3, 5]), answer([2], [0, 4, 5])
    found = compare(decoded, other)
    assert found == Comparison([2.0], 1.0, None)
    with pytest.raises(SystemExit, match="refused: a gap was moved by 1"):
        refuse_unless_near_ties([found], NEAR_TIE)


def test_an_answer_that_ends_earlier_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="an answer of 2 tokens became one of 1"):
        compare(answer([1, 1], [0, 1], [0, 1]), answer([1], [0, 1]))
